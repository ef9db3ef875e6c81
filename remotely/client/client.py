"""The engine of a cluster: places actors through the master, and calls them directly.

Threads: a call is sent by the thread that makes it, and received by the thread that waits for it
(channel.py).  One daemon thread runs the loop: it talks with the master, hears of deaths, prints
what actors print, and takes in the replies of submitted calls.  It never runs a user's code but
the done-callbacks of futures, and never waits for anything.

Over 500 lines, and Client over 250: the eleven verbs of the seam, and what the master says to them,
share one state.  What they do is in files of their own:

    births.py     actors are made, and made again
    channels.py   the channel of each actor
    closing.py    actors are ended
    question.py   what the master is asked
    display.py    what is printed
"""

import functools
import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

import msgspec

from remotely.client.actor_factory import ActorFactory, heavy_modules, send_sources
from remotely.client.actor_state import ActorState
from remotely.client.channels import Channels
from remotely.client.deadlock import WaitReporter
from remotely.client.display import Display
from remotely.client.end_errors import end_error
from remotely.client.log_listener import LogListener
from remotely.client.question import Question, Questions
from remotely.client.ref import Ref
from remotely.client.termination import Terminations
from remotely.engine import Options, RemoteActor
from remotely.errors import (
    ActorDied,
    ActorRaised,
    CallTimeout,
    MasterLost,
    NotAllowed,
    NotConnected,
    RemotelyError,
    VersionMismatch,
    WorkerLost,
    error_class,
)
from remotely.futures import unretrieved, wakeup
from remotely.futures.future import CallFuture
from remotely.machine import daemons, folders, this_machine
from remotely.objects.idempotent import RetriedFuture
from remotely.protocol import control
from remotely.protocol.address import FORKED, nobody, parse_address, unknown_host
from remotely.protocol.control import Obituary
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import CONNECT_S, DRAIN_S, LEASE_S, PLACE_S, TERM_S, TICK_EVERY_S
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus, as_objects, status_facts
from remotely.transport import key_files, sockets
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink
from remotely.values import arena, codec, source_finder, source_library
from remotely.values.codec import NOTHING
from remotely.values.memory_peer import OutgoingValue
from remotely.values.shipping import Shipment

SAY_WAITING_AFTER_S = 2.5  # a cluster that is just starting needs no word
TEND_EVERY_S = 1.0  # to all channels
FAREWELL_S = DRAIN_S + TERM_S + 2.0  # for our actors to end, when we do
MASTER_SILENT_S = 3.0  # then it need not be waited for any more
SHUT_DOWN = "remotely was shut down here"
DESCRIPTORS = 65_536  # a handle that is called takes five; many systems allow 1,024


class Client:
    """Implements `engine.Engine` on a cluster.

    `on_shutdown` takes down a cluster that is ours alone; `on_forget`, in a forked child, lets go
    of what keeps it alive.
    """

    def __init__(
        self,
        address: str,
        key: MemberKey,
        shipment: Shipment,
        patience_s: float = PLACE_S,
        show_output: bool = True,
        job: str = "",
        inside: str = "",
        on_shutdown: Callable[[], None] = lambda: None,
        on_forget: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self.cluster = f"{address} {key.master_public.decode()}"
        self._nonce = secrets.token_hex(16)
        self.session = bound_id("client", key.pair.public, self._nonce)
        self.job = job or self.session
        self.inside = inside  # this actor; empty in a script
        self._waits = WaitReporter(inside, self._tell) if inside else None
        self._key = key
        self._patience_s = min(max(0.0, patience_s), control.LONGEST_S)
        self._on_shutdown = on_shutdown
        self._on_forget = on_forget
        self.host = this_machine.identity()
        self._pid = os.getpid()
        self._closed = False
        self._questions = Questions(self._tell)
        self._actors: weakref.WeakValueDictionary[str, ActorState] = weakref.WeakValueDictionary()
        self._welcome: Future[control.Welcome] = Future()
        self._farewell = threading.Event()
        self._leaving = False
        self._display = Display(show_output)
        self._log_listener = LogListener(self._display.show)
        self._unretrieved: deque[tuple[str, BaseException]] = deque()
        self._on_unretrieved = self._note_unretrieved  # bound once, not with each call

        daemons.raise_descriptor_limit(at_most=DESCRIPTORS)
        self._loop = Loop()
        self._context = sockets.new_context()
        self._link = MasterLink(
            self._loop,
            self._context,
            address,
            key,
            self._hello,
            self._hear,
            self._refused,
        )
        self._channels = Channels(
            self._context, self._loop, key.pair, self.host, self._waits, self._ask
        )
        self._terminations = Terminations(self._loop, self._link, self._channels)
        self._factory = ActorFactory(
            self,
            shipment,
            self._patience_s,
            self._actors,
            self._ask,
            self._channels,
            self._terminations,
        )
        self._loop.every(TICK_EVERY_S, self._check_master)
        self._loop.every(arena.TIDY_EVERY_S, arena.tidy)
        self._loop.every(TEND_EVERY_S, self._channels.tend)
        self._thread = threading.Thread(target=self._loop.run, name="remotely-client", daemon=True)
        self._thread.start()
        try:
            self._welcome.result(CONNECT_S)
        except (TimeoutError, FutureTimeout):
            self._abandon()
            raise MasterLost(nobody(address, "it does not answer as a master")) from None
        except BaseException:
            self._abandon()
            raise

    def check_python(self) -> None:
        """Raise VersionMismatch if no worker runs the Python of this process."""
        pythons = self._welcome.result().pythons
        if pythons and this_machine.PYTHON not in pythons:
            self.shutdown()
            raise VersionMismatch(
                f"this is Python {this_machine.PYTHON}; the workers at {self.address} run "
                f"{' and '.join(pythons)}, and code does not travel between versions"
            )

    # --- the engine's verbs -----------------------------------------------------------------------

    def place(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        count: int,
    ) -> list[RemoteActor]:
        self._check()
        source_finder.refuse_while_importing("makes an actor")
        source_library.library.gather()
        what = cls.__name__
        encoded = codec.encode((cls, args, kwargs), (what, f"{what}: args", f"{what}: kwargs"))
        actors = [self._factory.new_actor(cls, options, count) for _ in range(count)]
        self._factory.make(actors, encoded, options)
        return list(actors)

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        encoded = codec.encode_arguments(args, kwargs, method)
        return self._send(remotes, Kind.CALL, method, encoded, background, retries)

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        return self._send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        encoded = codec.encode(value, name)
        return self._send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def put(self, value: object) -> Ref:
        return Ref(codec.encode(value))

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        self._check()
        deadline = time.monotonic() + grace_s
        actors = [r for r in remotes if isinstance(r, ActorState) and r.ended is None]
        if not grace_s:
            self._terminations.kill(actors)
            return
        asked = self._send(actors, Kind.END, "", NOTHING, background=True)[::-1]
        failures: list[BaseException] = []  # of the classes' own `close`
        try:
            while asked:
                try:
                    asked.pop().result(max(0.0, deadline - time.monotonic()))
                except (ActorDied, WorkerLost, CallTimeout):
                    pass
                except Exception as error:
                    failures.append(error)
            for actor in actors:
                self._terminations.see_off(actor, deadline)
        finally:
            for actor in actors:
                self._terminations.mark_closed(actor)
        if failures:
            raise failures[0]

    def release(self, remote: RemoteActor) -> None:
        if self._closed or self._pid != os.getpid():
            return
        assert isinstance(remote, ActorState)
        remote.is_released = True
        if remote.owned and remote.ended is None:
            self._terminations.ask_for([remote.actor], PLACE_S)
        if (channel := remote.channel) is not None:  # no call is in flight: it would hold a handle
            drop = functools.partial(self._channels.end, channel, _last_handle_gone)
            self._loop.call(drop)

    def find(self, name: str) -> RemoteActor:
        located = self._ask(lambda t: control.Locate(ticket=t, name=name)).result()
        if located.location is None:
            raise NameError(f"there is no actor named {name!r} on this cluster")
        return self.borrow(located.location.actor, name)

    def borrow(self, actor: str, name: str) -> RemoteActor:
        found = self._actors.get(actor)
        if found is None:
            request = control.Request(
                actor=actor, name=name, class_name="", owner="", job="", python=this_machine.PYTHON
            )
            found = self._actors[actor] = ActorState(self, request, owned=False)
        return found

    def forget(self) -> None:
        """In a forked child: leave to the parent what is its, the cluster's life above all."""
        self._on_forget()

    def shutdown(self) -> None:
        if self._closed or self._pid != os.getpid():
            return
        self._leaving = True
        try:
            self._tell(control.Goodbye())
            deadline = time.monotonic() + FAREWELL_S
            while not self._farewell.wait(MASTER_SILENT_S):
                if self._link.silent_s() > MASTER_SILENT_S or time.monotonic() > deadline:
                    break
        finally:
            try:
                self._abandon()
            finally:
                self._on_shutdown()

    # --- asking the master ------------------------------------------------------------------------

    def report(self) -> ClusterStatus:
        return as_objects(status_facts(self.status(), self.address.removeprefix("tcp://")))

    def status(self, fresh: bool = True) -> control.Status:
        """Return who is on the cluster; `fresh`: and what they do and use at this moment."""
        found: control.Status = self._ask(
            lambda t: control.AskStatus(ticket=t, fresh=fresh)
        ).result()
        return found

    def read_log(self, actor: str, offset: int) -> Future[control.LogPiece]:
        """Return the future of the next piece of an actor's output."""
        return self._ask(lambda t: control.ReadLog(ticket=t, actor=actor, offset=offset))

    def _ask(self, message: Callable[[int], msgspec.Struct]) -> Question:
        self._check()
        if self._loop.is_own_thread():
            raise RemotelyError(
                "the done-callback of a future cannot ask the master (for a new actor, one by its "
                "name, or the status): it runs where the answer would arrive. Do it in a thread of "
                "your own"
            )
        return self._questions.ask(message)

    def _tell(self, message: msgspec.Struct) -> None:
        self._loop.call(lambda: self._link.send(message))

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise NotConnected(FORKED)
        if self._closed:
            raise NotConnected("remotely was shut down here; call remotely.connect() to go on")

    # --- calling ----------------------------------------------------------------------------------

    def _send(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: codec.Encoded,
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        self._check()
        source_library.library.look()
        outgoing = OutgoingValue(encoded, several=len(remotes) > 1)
        futures = []
        try:
            for remote in remotes:
                future: CallFuture[Any]
                what = f"{remote.name}.{name}"
                if retries:
                    again = functools.partial(self._send_again, kind, name, encoded)
                    future = RetriedFuture(what, remote, again, retries)
                else:
                    future = CallFuture(what, remote)
                if background and kind is Kind.CALL:
                    future.on_unretrieved = self._on_unretrieved
                self._send_to(remote, kind, name, outgoing, future, background)
                futures.append(future)
        finally:
            outgoing.close()
        return futures

    def _send_again(
        self, kind: Kind, name: str, encoded: codec.Encoded, future: CallFuture[Any]
    ) -> None:
        self._check()
        assert isinstance(future.keep, ActorState)
        outgoing = OutgoingValue(encoded)
        try:
            self._send_to(future.keep, kind, name, outgoing, future, background=True)
        finally:
            outgoing.close()

    def _send_to(
        self,
        remote: RemoteActor,
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        assert isinstance(remote, ActorState)
        channel = remote.channel
        if channel is None or channel.ended:
            try:
                channel = self._channels.of(remote)
            except RemotelyError as error:
                future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
                future.tell()
                return
        if channel.sources_sent < len(source_library.library.batches):
            send_sources(remote, channel)
        channel.send(kind, name, outgoing, future, background)

    # --- on the loop's thread ---------------------------------------------------------------------

    def _hello(self) -> control.Hello:
        return control.Hello(
            session=self.session,
            python=this_machine.PYTHON,
            pid=os.getpid(),
            host=self.host,
            machine=this_machine.machine_name(),
            actor=self.inside,
            modules=heavy_modules(),
            nonce=self._nonce,
        )

    def _hear(self, message: object) -> None:
        match message:
            case control.Placed(ticket=ticket, location=location):
                self._questions.answer(ticket, location)
            case control.NotPlaced(ticket=ticket, error=error, why=why):
                self._questions.fail(ticket, (error_class(error) or RemotelyError)(why))
            case control.Queued(ticket=ticket, why=why):
                self._questions.wait(ticket, why)
                if why:
                    self._loop.after(SAY_WAITING_AFTER_S, lambda: self._say_waiting(ticket))
            case (
                control.Located(ticket=ticket)
                | control.Status(ticket=ticket)
                | control.LogPiece(ticket=ticket)
            ):
                self._questions.answer(ticket, message)
            case control.Died(obituary=obituary):
                self._hear_of_death(obituary)
            case control.Printed():
                self._display.show(message)
            case control.Logged():
                self._log_listener.hear(message)
            case control.AskFigures():
                self._link.send(control.Unanswered(calls=self._channels.unanswered()))
            case control.Welcome():
                if not self._welcome.done():
                    self._welcome.set_result(message)
                else:
                    self._terminations.ask_again()
                    for question in self._questions.unanswered():
                        self._link.send(question)
            case control.Deadlocked() if self._waits is not None:
                self._waits.hear(message)
            case control.Farewell():
                self._farewell.set()

    def _say_waiting(self, ticket: int) -> None:
        if why := self._questions.take_wait(ticket):
            text = f"remotely: waiting for room: {why} (giving up after {self._patience_s:g} s)"
            asked, _, _ = why.partition(". ")  # a group of 100 waits as one
            self._display.complain(asked, text)

    def _note_unretrieved(self, what: str, error: BaseException) -> None:
        """On any thread, amid anything: a future with this error was dropped."""
        is_own = isinstance(error, RemotelyError) and not isinstance(error, ActorRaised)
        leaves = self._leaving and is_own
        if leaves or isinstance(error, NotConnected) or self._pid != os.getpid():
            return
        self._unretrieved.append((what, error))
        if not self._closed:
            self._loop.call(self._report_unretrieved)

    def _report_unretrieved(self) -> None:
        while self._unretrieved:
            what, error = self._unretrieved.popleft()
            text = unretrieved.report_text(what, error)
            self._display.complain(unretrieved.report_key(what, error), text)

    def _refused(self, error: RemotelyError) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
        elif isinstance(error, NotAllowed):  # our key was revoked
            self._questions.refuse(type(error), str(error))

    def _check_master(self) -> None:
        if self._link.silent_s() > LEASE_S and self._questions:
            why = nobody(self.address, f"silent for {self._link.silent_s():.0f} s")
            self._questions.fail_all(MasterLost, why)

    def _hear_of_death(self, obituary: Obituary) -> None:
        if not obituary.restarting:
            self._terminations.told(obituary.actor)
        actor = self._actors.get(obituary.actor)
        if actor is None or (obituary.restarting and obituary.life < actor.request.life):
            return
        how = end_error(actor.name, actor.location, obituary)
        channel = actor.channel
        if not obituary.restarting:
            actor.ended = how
            actor.gone = True
            wakeup.wake(actor)
        elif actor.remade_from is not None and (actor.owned or obituary.lost):
            with actor.life_lock:
                # Then the master was told to end it.
                is_given_up = actor.ended is not None or actor.is_released
                if not is_given_up:
                    actor.settled = False
                    actor.expect_life(obituary.life + 1)
            if not is_given_up:
                remake = functools.partial(self._factory.remake, actor, *actor.remade_from)
                threading.Thread(target=remake, name="remotely-restart", daemon=True).start()
        else:  # the next call asks where it is, and is answered when it is there again
            actor.expect_life(obituary.life + 1)
        is_over = not obituary.restarting or (channel and channel.location.life <= obituary.life)
        if channel is not None and is_over:
            self._channels.end(channel, how, obituary.asked)

    def _abandon(self) -> None:
        """Let go of everything here, whatever state it is in."""
        self._closed = True
        self._loop.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(MASTER_SILENT_S)
        self._log_listener.close()
        self._display.close()
        self._questions.fail_all(NotConnected, SHUT_DOWN)
        self._channels.end_all(lambda may: NotConnected(SHUT_DOWN))
        self._report_unretrieved()
        self._link.close()
        self._context.destroy(linger=0)
        self._loop.close()
        arena.trim()


def client_of(
    address: str,
    key: str | Path | None = None,
    ship: str | Path | Iterable[str | Path] = (),
    patience_s: float = PLACE_S,
    show_output: bool = True,
) -> Client:
    """Return a client of the cluster at `address`, beside the one that this process may use."""
    host, port = parse_address(address)
    shipment = Shipment(ship)
    file = key or os.environ.get("REMOTELY_KEY") or folders.key_folder() / "client.key"
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except (socket.gaierror, UnicodeError) as error:
        raise MasterLost(unknown_host(host, error)) from None
    except OSError as error:
        raise MasterLost(nobody(f"tcp://{host}:{port}", str(error))) from None
    member = key_files.load_member(Path(file), "client")
    return Client(f"tcp://{host}:{port}", member, shipment, patience_s, show_output)


def _last_handle_gone(may_have_run: bool) -> NotConnected:
    return NotConnected("the last handle is gone")
