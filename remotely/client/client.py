"""The engine of a cluster: places actors through the master, and calls them directly.

A call is sent by the thread that makes it, and received by the thread that waits for it (inbox.py).
One daemon thread runs the loop.  It talks with the master, hears of deaths, prints what actors
print, and takes in the replies of submitted calls.  It runs none of the user's code but the
done-callbacks of futures, and never waits for anything.

Client has the verbs of the seam, and wires these parts together; each knows those above it:

    master_session.py   who this client is; questions to the master and their answers
    bulk_transfer.py    large values in the stores of other machines
    channels.py         the channel of each actor
    actor_directory.py  the actors that this process knows
    termination.py      how actors are ended
    actor_factory.py    how actors are made
    restarts.py         what happens when one dies
    calls.py            how calls leave
    display.py, error_reporter.py, log_listener.py   what is printed

The class is over 250 lines: it has each verb of the seam, most of them a few lines.
"""

import functools
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from remotely.calling import arguments
from remotely.client.actor_directory import ActorDirectory
from remotely.client.actor_factory import ActorFactory
from remotely.client.actor_state import ActorState
from remotely.client.arrival import ArrivalQuestion
from remotely.client.bulk_transfer import Stores
from remotely.client.calls import Calls
from remotely.client.channels import Channels
from remotely.client.deadlock import WaitReporter
from remotely.client.display import Display
from remotely.client.error_reporter import ErrorReporter
from remotely.client.log_listener import LogListener
from remotely.client.master_session import MASTER_SILENT_S, SHUT_DOWN, MasterSession
from remotely.client.ref import Ref
from remotely.client.restarts import Restarts
from remotely.client.termination import Terminations
from remotely.engine import Options, Prepared, Promises, RemoteActor
from remotely.errors import (
    ActorDied,
    CallTimeout,
    NameTaken,
    NotConnected,
    VersionMismatch,
    WorkerLost,
)
from remotely.futures.future import CallFuture
from remotely.machine import daemons, folders, this_machine
from remotely.protocol import control
from remotely.protocol.address import OWN_CLUSTER, parse_address
from remotely.protocol.lease import PLACE_S
from remotely.protocol.wire import Kind
from remotely.reporting.cluster_status import ClusterStatus, as_objects, status_facts
from remotely.transport import key_files, sockets
from remotely.transport.keys import MemberKey
from remotely.transport.listening import reach
from remotely.transport.loop import Loop
from remotely.values import arena, borrowing, codec, sources
from remotely.values.owned import NOTHING, own
from remotely.values.shipping import Shipment
from remotely.values.unpicklable import PartNames

TEND_EVERY_S = 1.0  # to all channels
MAX_DESCRIPTORS = 65_536  # a handle that is called takes five; many systems allow 1,024


class Client:
    """Implements `engine.Engine` on a cluster.

    `on_shutdown` takes down a cluster that belongs to this client alone; `on_forget`, in a forked
    child, lets go of what keeps that cluster alive.
    """

    promises = Promises()

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
        if not inside:
            arena.size_wanted()  # refuse a bad one here, and not at the first large value
        self.address = address
        self.cluster = f"{address} {key.master_public.decode()}"
        self._on_shutdown = on_shutdown
        self._on_forget = on_forget
        self._display = Display(show_output)
        self._log_listener = LogListener(self._display.show)
        daemons.raise_descriptor_limit(at_most=MAX_DESCRIPTORS)
        self._loop = Loop()
        self._context = sockets.new_context()
        self._session = session = MasterSession(
            self._loop,
            self._context,
            address,
            key,
            job,
            inside,
            patience_s,
            self._hear,
            self._display.complain,
            self._repeat_requests,
        )
        self.session_id = session.id
        self._stores = Stores(self._context, self._loop, key.pair, this_machine.machine_name())
        self._channels = Channels(
            self._context,
            self._loop,
            key.pair,
            session,
            WaitReporter(inside, session.tell) if inside else None,
            self._stores,
        )
        self._actors = ActorDirectory(self, session)
        self._terminations = Terminations(self._loop, session, self._channels)
        self._factory = ActorFactory(
            session, shipment, self._channels, self._terminations, self._stores
        )
        self._restarts = Restarts(self._actors, self._factory, self._terminations)
        self._error_reporter = ErrorReporter(session, self._display, self._loop)
        self._calls = Calls(session, self._channels, self._stores, self._error_reporter.note)
        self._loop.every(arena.TIDY_EVERY_S, arena.tidy)
        self._loop.every(arena.TIDY_EVERY_S, borrowing.tidy)
        self._loop.every(TEND_EVERY_S, self._channels.tend)
        self._thread = threading.Thread(target=self._loop.run, name="remotely-client", daemon=True)
        self._thread.start()
        try:
            session.wait_for_welcome()
        except BaseException:
            self._close()
            raise

    def check_python(self) -> None:
        """Raise VersionMismatch if no worker runs the Python of this process."""
        pythons = self._session.pythons
        if pythons and this_machine.PYTHON not in pythons:
            self.shutdown()
            raise VersionMismatch(
                f"this is Python {this_machine.PYTHON}; the workers at {self.address} run "
                f"{' and '.join(pythons)}, and code does not travel between versions"
            )

    # --- the verbs of the seam --------------------------------------------------------------------

    def place(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        count: int,
    ) -> list[RemoteActor]:
        if options.get_if_exists:
            return [self._get_or_make(cls, args, kwargs, options)]
        return self._make(cls, args, kwargs, options, count)

    def _get_or_make(
        self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> RemoteActor:
        """Find the actor of a name, or make it.  The master gives a name once, so one makes it."""
        while True:
            try:
                return self.find(options.name)
            except NameError:
                pass
            try:
                return self._make(cls, args, kwargs, options, 1)[0]
            except NameTaken as error:  # another was faster, and its actor may end before we look
                if error.__cause__ is not None:  # it is the constructor's own
                    raise

    def _make(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        count: int,
    ) -> list[RemoteActor]:
        self._session.check()
        sources.refuse_while_importing("makes an actor")
        sources.library.gather()
        what = cls.__name__
        encoded = codec.encode((cls, args, kwargs), (what, f"{what}: args", f"{what}: kwargs"))
        gang = secrets.token_hex(16) if count > 1 else ""  # placed whole, or not at all
        actors = [self._actors.new(cls, options, count, gang) for _ in range(count)]
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
        encoded, named = arguments.encode(remotes, method, args, kwargs)
        return self._calls.send(remotes, Kind.CALL, method, encoded, background, retries, named)

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        encoded, named = arguments.encode((), method, args, kwargs, names)
        kept = own(encoded)
        send = self._calls.send
        return lambda remote: send((remote,), Kind.CALL, method, kept, True, 0, named)[0]

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        return self._calls.send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        encoded = codec.encode(value, name)
        return self._calls.send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def put(self, value: object) -> Ref:
        return Ref(own(codec.encode(value)))

    def value_of(self, ref: object) -> Any:
        if not isinstance(ref, Ref):
            raise TypeError(
                f"get() takes what ref() or put() returned, or the future of a call; {ref!r} is "
                "none of these"
            )
        return ref.get()

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        self._session.check()
        deadline = time.monotonic() + grace_s
        actors = [r for r in remotes if isinstance(r, ActorState) and r.ended is None]
        if not grace_s:
            self._terminations.kill(actors)
            return
        asked = self._calls.send(actors, Kind.END, "", NOTHING, background=True)[::-1]
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
                self._terminations.wait_for_end(actor, deadline)
        finally:
            for actor in actors:
                self._terminations.mark_closed(actor)
        if failures:
            raise failures[0]

    def release(self, remote: RemoteActor) -> None:
        if self._session.is_closed or self._session.is_forked:
            return
        assert isinstance(remote, ActorState)
        remote.is_released = True
        if remote.owned and remote.ended is None:
            self._terminations.request([remote.actor], PLACE_S)
        if (channel := remote.channel) is not None:  # no call is in flight: it would hold a handle
            self._loop.call(functools.partial(channel.end, _last_handle_gone))

    def find(self, name: str) -> RemoteActor:
        located = self._session.ask(lambda t: control.Locate(ticket=t, name=name)).result()
        if located.location is None:
            raise NameError(f"there is no actor named {name!r} on this cluster")
        return self.borrow(located.location.actor, name)

    def await_arrival(self, class_name: str) -> ArrivalQuestion:
        return ArrivalQuestion(self._session, self._actors, class_name)

    def borrow(self, actor: str, name: str) -> RemoteActor:
        return self._actors.borrow(actor, name)

    def report(self, fresh: bool = True) -> ClusterStatus:
        return as_objects(status_facts(self.status(fresh), self.address.removeprefix("tcp://")))

    def forget(self) -> None:
        """In a forked child: leave everything to the parent, above all the life of the cluster."""
        self._on_forget()

    def shutdown(self) -> None:
        if self._session.is_closed or self._session.is_forked:
            return
        try:
            self._session.leave()
        finally:
            try:
                self._close()
            finally:
                self._on_shutdown()

    def is_any_elsewhere(self, remotes: Sequence[RemoteActor]) -> bool:
        """Tell whether large values cross to another machine for any of these."""
        return self._calls.is_any_elsewhere(remotes)

    # --- for the command line ---------------------------------------------------------------------

    def status(self, fresh: bool = True) -> control.Status:
        """Return who is on the cluster; with `fresh`, also what they do and use at this moment."""
        found: control.Status = self._session.ask(
            lambda t: control.AskStatus(ticket=t, fresh=fresh)
        ).result()
        return found

    def read_log(self, actor: str, offset: int) -> Future[control.LogPiece]:
        """Return the future of the next piece of an actor's output."""
        return self._session.ask(lambda t: control.ReadLog(ticket=t, actor=actor, offset=offset))

    # --- on the loop's thread ---------------------------------------------------------------------

    def _hear(self, message: object) -> None:
        match message:
            case control.Died(obituary=obituary):
                self._session.arrivals.discard(obituary.actor)
                self._restarts.hear_of_death(obituary)
            case control.Printed():
                self._display.show(message)
            case control.Logged():
                self._log_listener.hear(message)
            case control.AskFigures():
                unanswered = control.Unanswered(calls=self._channels.unanswered())
                self._session.link.send(unanswered)
            case control.Notice(text=text):
                self._display.complain(text, f"remotely: {text}")

    def _repeat_requests(self) -> None:
        self._terminations.repeat()

    def _close(self) -> None:
        """Let go of everything in this process, whatever state it is in."""
        self._session.is_closed = True
        self._loop.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(MASTER_SILENT_S)
        self._log_listener.close()
        self._display.close()
        self._session.questions.fail_all(NotConnected, SHUT_DOWN)
        self._channels.end_all(lambda may: NotConnected(SHUT_DOWN))
        self._calls.close()
        self._stores.close()
        self._error_reporter.report()
        self._session.link.close()
        self._context.destroy(linger=0)
        self._loop.close()
        arena.trim()


def client_of(
    address: str,
    key: str | Path | None = None,
    ship: str | Path | Iterable[str | Path] = (),
    patience_s: float | None = None,
    show_output: bool = True,
) -> Client:
    """Return a client of the cluster at `address`, beside the one that this process may use.

    A cluster that is not there yet is waited for if `patience_s` is given.
    """
    host, port = parse_address(address)
    shipment = Shipment(ship)
    file = key or os.environ.get("REMOTELY_KEY") or folders.key_folder() / "client.key"
    where = reach(host, port, OWN_CLUSTER, patience_s or 0.0)
    member = key_files.load_member(Path(file), "client")
    patience_s = PLACE_S if patience_s is None else patience_s
    return Client(f"tcp://{where}", member, shipment, patience_s, show_output)


def _last_handle_gone(may_have_run: bool) -> NotConnected:
    return NotConnected("the last handle is gone")
