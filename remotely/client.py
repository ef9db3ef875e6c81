"""The engine of a cluster: places actors through the master, and calls them directly.

Threads: a call is sent by the thread that makes it, and received by the thread that waits for it
(channel.py).  One daemon thread runs the loop: it talks with the master, hears of deaths, prints
what actors print, and takes in the replies of submitted calls.  It never runs a user's code but
the done-callbacks of futures, and never waits for anything.

Over 500 lines: the ten verbs of the seam, and the one state that all of them share.
"""

import contextlib
import errno
import functools
import gc
import itertools
import os
import secrets
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq

from remotely import arena, codec, control, errors, host, keys, sockets, sources, unseen
from remotely.address import FORKED, nobody, parse_address
from remotely.admission import bound_id
from remotely.channel import Channel
from remotely.codec import NOTHING
from remotely.complaints import Complaints
from remotely.control import Location, Obituary
from remotely.deadlock import Blocked
from remotely.ending import Ended, how_it_broke, how_it_ended
from remotely.engine import Options, Remote
from remotely.errors import (
    ActorDied,
    ActorRaised,
    MasterLost,
    NoResources,
    NotAllowed,
    NotConnected,
    RemotelyError,
    VersionMismatch,
    WorkerLost,
)
from remotely.freight import Freight
from remotely.future import CallFuture
from remotely.idempotent import RetriedFuture
from remotely.in_flight import Budget
from remotely.keys import MemberKey
from remotely.lease import CONNECT_S, DRAIN_S, LEASE_S, PLACE_S, TERM_S, TICK_EVERY_S
from remotely.link import Link
from remotely.loop import Loop
from remotely.partner import Parcel
from remotely.question import Question
from remotely.ref import Ref
from remotely.report import ClusterStatus, as_objects, status_facts
from remotely.shipping import Shipment
from remotely.terminal import Screen
from remotely.wire import Kind

OBITUARY_WAIT_S = 1.5  # after a connection broke: the worker saw why, and its word is on its way
KILLED_WAIT_S = 5.0  # for a killed actor's end to be told; a busy machine takes long over a core
GONE_WAIT_S = 1.0  # after an actor was killed, for us to be told
LOOK_FOR_END_S = 0.2
SAY_WAITING_AFTER_S = 2.5  # a cluster that is just starting needs no word
FAREWELL_S = DRAIN_S + TERM_S + 2.0  # for our actors to end, when we do
MASTER_SILENT_S = 3.0  # then it need not be waited for any more
DESCRIPTORS = 65_536  # a handle that is called takes five; many systems allow 1,024
MASTER_ANSWER_S = 30.0


class ClusterActor(Remote):
    """What a client knows of one actor: where it lives now, or how it ended."""

    def __init__(self, client: "Client", request: control.Request, owned: bool) -> None:
        super().__init__(client, request.actor, request.name, owned)
        self.request = request
        self.lock = threading.RLock()  # a signal handler may call amid a call
        self.location: Location | None = None
        self.channel: Channel | None = None
        self.ended: Ended | None = None
        self.gone = threading.Event()  # its death was told
        self.remade_from: tuple[codec.Encoded, Options] | None = None
        self.settled = threading.Event()  # not while it is made anew
        self.settled.set()
        self.life_lock = threading.Lock()
        self.is_released = False  # its last handle is gone

    def expect_life(self, life: int) -> None:
        """From now on, news of an earlier life is old."""
        if life > self.request.life:
            self.request = msgspec.structs.replace(self.request, life=life)


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
        self._inside = inside
        self._blocked = Blocked(inside, self._tell) if inside else None
        self._key = key
        self._freight = Freight(shipment)
        self._patience_s = min(max(0.0, patience_s), control.LONGEST_S)
        self._on_shutdown = on_shutdown
        self._on_forget = on_forget
        self._host = host.identity()
        self._pid = os.getpid()
        self._closed = False
        self._tickets: dict[int, Question] = {}
        self._ends: dict[str, control.End] = {}  # asked for, and not told yet
        self._waits: dict[int, str] = {}  # of those, which wait for room, and why
        self._ids = itertools.count(1)
        self._counts: dict[str, itertools.count[int]] = {}
        self._actors: weakref.WeakValueDictionary[str, ClusterActor] = weakref.WeakValueDictionary()
        self._channels: set[Channel] = set()
        self._welcome: Future[control.Welcome] = Future()
        self._refusal: RemotelyError | None = None
        self._farewell = threading.Event()
        self._budget = Budget()
        self._leaving = False
        self._shows_output = show_output
        self._screens = {
            is_error: Screen(clears=_is_terminal(stream))
            for is_error, stream in ((False, sys.stdout), (True, sys.stderr))
        }
        self._unseen: deque[tuple[str, BaseException]] = deque()
        self._on_unseen = self._note_unseen  # bound once, not with each call
        self._complaints = Complaints(lambda text: print(text, file=sys.stderr, flush=True))

        host.raise_descriptor_limit(at_most=DESCRIPTORS)
        self._loop = Loop()
        self._context = sockets.new_context()
        self._link = Link(
            self._loop,
            self._context,
            address,
            key,
            self._hello,
            self._hear,
            self._refused,
        )
        self._loop.every(TICK_EVERY_S, self._check_master)
        self._loop.every(arena.TIDY_EVERY_S, arena.tidy)
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
        if pythons and host.PYTHON not in pythons:
            self.shutdown()
            raise VersionMismatch(
                f"this is Python {host.PYTHON}; the workers at {self.address} run "
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
    ) -> list[Remote]:
        self._check()
        sources.refuse_while_importing("makes an actor")
        sources.library.gather()
        what = cls.__name__
        encoded = codec.encode((cls, args, kwargs), (what, f"{what}: args", f"{what}: kwargs"))
        actors = [self._new_actor(cls, options, count) for _ in range(count)]
        # No frame here holds a future whose error it raises; see future.py.
        places = deque([self._ask_for_place(actor) for actor in actors])
        made: deque[CallFuture[Any]] = deque()
        collected = False
        try:
            if options.max_restarts:
                for actor in actors:
                    actor.remade_from = encoded, options
            for actor in actors:
                if not collected and not places[0].has_room():
                    gc.collect()  # handles in circles of garbage may be what fills the cluster
                    collected = True
                made.extend(self._init(actor, places.popleft(), encoded, options))
            while made:
                made.popleft().result()
        except BaseException:
            self._have_ended([actor.actor for actor in actors], 0.0, kill=True)
            raise
        return list(actors)

    def call(
        self,
        remotes: Sequence[Remote],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        encoded = codec.encode_arguments(args, kwargs, method)
        return self._send(remotes, Kind.CALL, method, encoded, background, retries)

    def get(self, remotes: Sequence[Remote], name: str) -> list[CallFuture[Any]]:
        return self._send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(self, remotes: Sequence[Remote], name: str, value: object) -> list[CallFuture[Any]]:
        encoded = codec.encode(value, name)
        return self._send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def put(self, value: object) -> Ref:
        return Ref(codec.encode(value))

    def end(self, remotes: Sequence[Remote], grace_s: float) -> None:
        self._check()
        deadline = time.monotonic() + grace_s
        actors = [r for r in remotes if isinstance(r, ClusterActor) and r.ended is None]
        if not grace_s:
            self._kill(actors)
            return
        asked = self._send(actors, Kind.END, "", NOTHING, background=True)[::-1]
        failures: list[BaseException] = []  # of the classes' own `close`
        try:
            while asked:
                try:
                    asked.pop().result(max(0.0, deadline - time.monotonic()))
                except (ActorDied, WorkerLost, errors.CallTimeout):
                    pass
                except Exception as error:
                    failures.append(error)
            for actor in actors:
                self._see_off(actor, deadline)
        finally:
            for actor in actors:
                self._mark_closed(actor)
        if failures:
            raise failures[0]

    def _see_off(self, actor: ClusterActor, deadline: float) -> None:
        """Return when its process has ended, and have it made to after the deadline."""
        if self._loop.is_own_thread():  # a done-callback: this is the thread that would be told
            return
        if not _wait_for_end(actor, deadline):
            self._have_ended([actor.actor], 0.0)
            _wait_for_end(actor, time.monotonic() + TERM_S + GONE_WAIT_S)

    def _kill(self, actors: Sequence[ClusterActor]) -> None:
        for actor in actors:
            if not actor.owned:  # who asks where it is, is told of its end
                self._locate(actor)
            self._have_ended([actor.actor], 0.0, kill=True)
        for actor in actors:
            actor.gone.wait(KILLED_WAIT_S)
            self._mark_closed(actor)

    def release(self, remote: Remote) -> None:
        if self._closed or self._pid != os.getpid():
            return
        assert isinstance(remote, ClusterActor)
        remote.is_released = True
        if remote.owned and remote.ended is None:
            self._have_ended([remote.actor], PLACE_S)
        if (channel := remote.channel) is not None:  # no call is in flight: it would hold a handle
            self._loop.call(lambda: self._drop(channel))

    def find(self, name: str) -> Remote:
        located = self._ask(lambda t: control.Locate(ticket=t, name=name)).result()
        if located.location is None:
            raise NameError(f"there is no actor named {name!r} on this cluster")
        return self.borrow(located.location.actor, name)

    def borrow(self, actor: str, name: str) -> Remote:
        found = self._actors.get(actor)
        if found is None:
            request = control.Request(
                actor=actor, name=name, class_name="", owner="", job="", python=host.PYTHON
            )
            found = self._actors[actor] = ClusterActor(self, request, owned=False)
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

    def status(self) -> control.Status:
        """Return who is on the cluster."""
        found: control.Status = self._ask(lambda t: control.AskStatus(ticket=t)).result()
        return found

    def read_log(self, actor: str, offset: int) -> Future[control.LogPiece]:
        """Return the future of the next piece of an actor's output."""
        return self._ask(lambda t: control.ReadLog(ticket=t, actor=actor, offset=offset))

    def _ask(self, message: Callable[[int], msgspec.Struct]) -> Question:
        self._check()
        if self._refusal is not None:
            raise self._refusal
        ticket = next(self._ids)
        question = self._tickets[ticket] = Question(message(ticket))
        self._tell(question.message)
        return question

    def _have_ended(self, actors: list[str], grace_s: float, kill: bool = False) -> None:
        """Have the master end actors; a new one is told again until it says that they have ended.

        Of actors that were asked for and are given up as well: they may have a place by now.
        """
        ends = {actor: control.End(actor=actor, grace_s=grace_s, kill=kill) for actor in actors}

        def tell() -> None:
            self._ends.update(ends)
            for end in ends.values():
                self._link.send(end)

        self._loop.call(tell)

    def _tell(self, message: msgspec.Struct) -> None:
        self._loop.call(lambda: self._link.send(message))

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise NotConnected(FORKED)
        if self._closed:
            raise NotConnected("remotely was shut down here; call remotely.connect() to go on")

    # --- making an actor --------------------------------------------------------------------------

    def _new_actor(self, cls: type, options: Options, together: int) -> ClusterActor:
        number = self._counts.setdefault(cls.__name__, itertools.count(1))
        prefix = f"{self.session[:4]}." if self._inside else ""
        assert isinstance(options.memory, int)
        request = control.Request(
            actor=secrets.token_hex(16),
            name=options.name or f"{prefix}{cls.__name__}-{next(number)}",
            named=bool(options.name),
            together=together,
            class_name=cls.__name__,
            owner="" if options.detached else self.session,
            job=self.job,
            cpus=options.cpus,
            gpus=options.gpus,
            memory=options.memory,
            max_restarts=options.max_restarts,
            maker=self.session,
            python=host.PYTHON,
            env=options.env,
            modules=_heavy_modules(),
        )
        actor = ClusterActor(self, request, owned=not options.detached)
        self._actors[actor.actor] = actor
        return actor

    def _ask_for_place(self, actor: ClusterActor) -> Question:
        return self._ask(
            lambda ticket: control.Place(
                ticket=ticket, request=actor.request, patience_s=self._patience_s
            )
        )

    def _init(
        self,
        actor: ClusterActor,
        place: Question,
        encoded: codec.Encoded,
        options: Options,
    ) -> list[CallFuture[Any]]:
        """Wait for the place, then send the files, the class and the arguments there.

        Returns the futures of the files and of the constructor: what fails first tells why.
        """
        try:
            actor.location = place.result()
        finally:
            del place  # see future.py
        channel = self._open(actor)
        whole, stands_for = sources.library.whole()
        channel.sources_sent = len(stands_for)
        actor.sent = actor.location.life, frozenset((whole.digest, *stands_for))
        prepare = control.Prepare(
            job=self.job,
            host=self._host,
            path=[str(Path(entry).absolute()) for entry in sys.path],
            files=self._freight.files,
            concurrency=options.concurrency,
            argv=[str(word).encode(errors="replace").decode() for word in sys.argv],
            sources=whole.content,
        )
        body = Parcel(codec.Encoded((control.write(prepare),), ()))
        missing: CallFuture[list[str]] = CallFuture("the actor")
        channel.send(Kind.PREPARE, "", body, missing, background=True)
        stored: list[CallFuture[None]] = []
        if self._freight.files:
            try:
                digests = missing.result()
            finally:
                del missing  # see future.py
            worker, _, _ = actor.location.ipc.rpartition("/")  # its folder
            stored = self._freight.deliver(worker, digests, channel.send_file)
        future: CallFuture[Any] = CallFuture(f"the constructor of {actor.name}", keep=actor)
        parcel = Parcel(encoded)
        channel.send(Kind.INIT, "", parcel, future, background=True)
        parcel.close()
        return [*stored, future]

    def _open(self, actor: ClusterActor) -> Channel:
        location = actor.location
        assert location is not None
        same_host = location.host == self._host
        try:
            channel = Channel(
                self._context,
                self._loop,
                location,
                same_host,
                self._key.pair,
                self._budget,
                self._broken,
                self._blocked,
            )
        except (zmq.ZMQError, OSError) as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise NoResources(
                f"this process may have no more open files, and a channel to {actor.name} takes a "
                "few: raise the limit (ulimit -n), or let go of some handles"
            ) from None
        self._channels.add(channel)
        actor.channel = channel
        return channel

    def _remake(self, actor: ClusterActor, encoded: codec.Encoded, options: Options) -> None:
        """Give an actor that died its next life; its handles stay."""
        life = actor.request.life
        try:
            made = deque(self._init(actor, self._ask_for_place(actor), encoded, options))
            while made:
                made.popleft().result()
        except Exception as error:
            why = f"{actor.name} died, and could not be restarted: {error}"
            with actor.life_lock:
                if actor.request.life == life:  # else its next life is on the way
                    actor.ended = lambda may: ActorDied(why, may_have_run=may)
                    self._have_ended([actor.actor], 0.0)  # nobody need wait for it
        finally:
            if (
                actor.is_released
            ):  # maybe before it had a place: the master then ended its last life
                self._have_ended([actor.actor], 0.0)
            with actor.life_lock:
                if actor.request.life == life:
                    actor.settled.set()

    # --- calling ----------------------------------------------------------------------------------

    def _send(
        self,
        remotes: Sequence[Remote],
        kind: Kind,
        name: str,
        encoded: codec.Encoded,
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        self._check()
        sources.library.look()
        parcel = Parcel(encoded, several=len(remotes) > 1)
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
                    future.on_unseen = self._on_unseen
                self._send_to(remote, kind, name, parcel, future, background)
                futures.append(future)
        finally:
            parcel.close()
        return futures

    def _send_again(
        self, kind: Kind, name: str, encoded: codec.Encoded, future: CallFuture[Any]
    ) -> None:
        self._check()
        assert isinstance(future.keep, ClusterActor)
        parcel = Parcel(encoded)
        try:
            self._send_to(future.keep, kind, name, parcel, future, background=True)
        finally:
            parcel.close()

    def _send_to(
        self,
        remote: Remote,
        kind: Kind,
        name: str,
        parcel: Parcel,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        assert isinstance(remote, ClusterActor)
        try:
            channel = self._channel_of(remote)
        except RemotelyError as error:
            future.lose(error.with_traceback(None))  # whose frames hold the future; see future.py
            future.tell()
        else:
            if channel.sources_sent < len(sources.library.batches):
                _send_sources(remote, channel)
            channel.send(kind, name, parcel, future, background)

    def _channel_of(self, actor: ClusterActor) -> Channel:
        channel = actor.channel
        if channel is not None and not channel.ended:
            return channel
        if self._loop.is_own_thread():  # whose answers all of the below would wait for
            raise self._cannot_wait(actor)
        actor.settled.wait()
        with actor.lock:
            if actor.ended is not None:
                raise actor.ended(False)
            channel = actor.channel
            if channel is None or channel.ended:
                self._locate(actor)
                channel = self._open(actor)
            return channel

    def _cannot_wait(self, actor: ClusterActor) -> RemotelyError:
        if actor.ended is not None:
            return cast(RemotelyError, actor.ended(False))
        why = (
            f"{actor.name} cannot be called from the done-callback of a future while it has no "
            "connection: the callback runs where connections are made; the call did not run. Call "
            "from a thread of your own, or mark the method @remotely.idempotent"
        )
        return WorkerLost(why, may_have_run=False)

    def _locate(self, actor: ClusterActor) -> None:
        located = self._ask(lambda t: control.Locate(ticket=t, actor=actor.actor)).result()
        if located.location is None:
            gone = located.obituary or Obituary(actor=actor.actor, life=0, asked=True)
            raise how_it_ended(actor.name, actor.location, gone)(False)
        actor.location = located.location
        actor.expect_life(located.location.life)

    # --- on the loop's thread ---------------------------------------------------------------------

    def _hello(self) -> control.Hello:
        return control.Hello(
            session=self.session,
            python=host.PYTHON,
            pid=os.getpid(),
            host=self._host,
            machine=host.machine_name(),
            actor=self._inside,
            modules=_heavy_modules(),
            nonce=self._nonce,
        )

    def _hear(self, message: object) -> None:
        match message:
            case control.Placed(ticket=ticket, location=location):
                self._answer(ticket, location)
            case control.NotPlaced(ticket=ticket, error=error, why=why):
                if future := self._tickets.pop(ticket, None):
                    kind = getattr(errors, error, RemotelyError)
                    future.set_exception(kind(why))
            case control.Waiting(ticket=ticket, why=""):
                self._waits.pop(ticket, None)
            case control.Waiting(ticket=ticket, why=why):
                self._waits[ticket] = why
                if question := self._tickets.get(ticket):
                    question.wait_for_room()
                self._loop.after(SAY_WAITING_AFTER_S, lambda: self._say_waiting(ticket))
            case control.Located(ticket=ticket) | control.Status(ticket=ticket):
                self._answer(ticket, message)
            case control.LogPiece(ticket=ticket):
                self._answer(ticket, message)
            case control.Died(obituary=obituary):
                self._hear_of_death(obituary)
            case control.Output():
                self._print(message)
            case control.Welcome():
                if not self._welcome.done():
                    self._welcome.set_result(message)
                else:
                    for end in self._ends.values():
                        self._link.send(end)
                    for question in list(self._tickets.values()):
                        self._link.send(question.message)
            case control.Deadlocked() if self._blocked is not None:
                self._blocked.hear(message)
            case control.Farewell():
                self._farewell.set()

    def _print(self, output: control.Output) -> None:
        if self._shows_output:
            screen = self._screens[output.error]
            _write(output.error, screen.add(output.name, output.text))

    def _answer(self, ticket: int, value: object) -> None:
        if future := self._tickets.pop(ticket, None):
            future.set_result(value)

    def _say_waiting(self, ticket: int) -> None:
        why = self._waits.pop(ticket, "")
        if why and ticket in self._tickets:
            text = f"remotely: waiting for room: {why} (giving up after {self._patience_s:g} s)"
            asked, _, _ = why.partition(". ")  # a group of 100 waits as one
            self._complaints.add(asked, text, time.monotonic())

    def _note_unseen(self, what: str, error: BaseException) -> None:
        """On any thread, amid anything: a future with this error was dropped."""
        is_own = isinstance(error, RemotelyError) and not isinstance(error, ActorRaised)
        leaves = self._leaving and is_own
        if leaves or isinstance(error, NotConnected) or self._pid != os.getpid():
            return
        self._unseen.append((what, error))
        if not self._closed:
            self._loop.call(self._tell_unseen)

    def _tell_unseen(self) -> None:
        while self._unseen:
            what, error = self._unseen.popleft()
            text = unseen.sentence(what, error)
            self._complaints.add(unseen.source(what, error), text, time.monotonic())

    def _refused(self, error: RemotelyError) -> None:
        if not self._welcome.done():
            self._welcome.set_exception(error)
        elif isinstance(error, NotAllowed):  # our key was revoked
            self._refusal = error
            for ticket in list(self._tickets):
                self._tickets.pop(ticket).set_exception(error)

    def _check_master(self) -> None:
        if self._link.silent_s() > LEASE_S and self._tickets:
            why = nobody(self.address, f"silent for {self._link.silent_s():.0f} s")
            for ticket in list(self._tickets):
                self._tickets.pop(ticket).set_exception(MasterLost(why))

    def _broken(self, channel: Channel) -> None:
        """A connection ended without a word; the master or its worker may know why."""
        self._loop.after(OBITUARY_WAIT_S, lambda: self._give_up(channel))

    def _give_up(self, channel: Channel) -> None:
        if not channel.ended:
            same_host = channel.location.host == self._host
            channel.end(how_it_broke(channel.location, same_host, channel.connected))
        self._channels.discard(channel)

    def _hear_of_death(self, obituary: Obituary) -> None:
        if not obituary.restarting:
            self._ends.pop(obituary.actor, None)
        actor = self._actors.get(obituary.actor)
        if actor is None or obituary.life < actor.request.life:
            return
        how = how_it_ended(actor.name, actor.location, obituary)
        channel = actor.channel
        if not obituary.restarting:
            actor.ended = how
            actor.gone.set()
        elif actor.remade_from is not None and (actor.owned or obituary.lost):
            with actor.life_lock:
                # Then the master was told to end it.
                is_given_up = actor.ended is not None or actor.is_released
                if not is_given_up:
                    actor.settled.clear()
                    actor.expect_life(obituary.life + 1)
            if not is_given_up:
                remake = functools.partial(self._remake, actor, *actor.remade_from)
                threading.Thread(target=remake, name="remotely-restart", daemon=True).start()
        else:  # the next call asks where it is, and is answered when it is there again
            actor.expect_life(obituary.life + 1)
        if channel is not None and channel.location.life <= obituary.life:
            channel.end(how, obituary.asked)
            self._channels.discard(channel)

    def _drop(self, channel: Channel) -> None:
        channel.end(lambda may: NotConnected("the last handle is gone"))
        self._channels.discard(channel)

    def _mark_closed(self, actor: ClusterActor) -> None:
        if actor.ended is None:
            gone = Obituary(actor=actor.actor, life=actor.request.life, asked=True)
            actor.ended = how_it_ended(actor.name, actor.location, gone)
            if actor.channel is not None:
                actor.channel.end(actor.ended, asked=True)
                self._channels.discard(actor.channel)

    def _abandon(self) -> None:
        """Let go of everything here, whatever state it is in."""
        self._closed = True
        self._loop.stop()
        if self._thread is not threading.current_thread():
            self._thread.join(MASTER_SILENT_S)
        for is_error, screen in self._screens.items():
            if end := screen.close():
                _write(is_error, end)
        for channel in list(self._channels):
            channel.end(lambda may: NotConnected("remotely was shut down here"))
        for future in list(self._tickets.values()):
            with contextlib.suppress(Exception):
                future.set_exception(NotConnected("remotely was shut down here"))
        self._tell_unseen()
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
    file = key or os.environ.get("REMOTELY_KEY") or keys.default_folder() / "client.key"
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        raise MasterLost(nobody(f"tcp://{host}:{port}", str(error))) from None
    member = keys.load_member(Path(file), "client")
    return Client(f"tcp://{host}:{port}", member, shipment, patience_s, show_output)


def _send_sources(actor: ClusterActor, channel: Channel) -> None:
    """Send the modules that an actor may not have; twice, if two threads call, is once."""
    life = channel.location.life
    there = actor.sent[1] if actor.sent[0] == life else frozenset()
    batches = list(sources.library.batches)
    for digest, content in batches[channel.sources_sent :]:
        if digest not in there:
            parcel = Parcel(codec.Encoded((), (memoryview(content),)))
            learnt: CallFuture[None] = CallFuture("the actor")
            channel.send(Kind.SOURCES, digest, parcel, learnt, background=True)
            parcel.close()
    actor.sent = life, there.union(digest for digest, _ in batches)
    channel.sources_sent = len(batches)


def _wait_for_end(actor: ClusterActor, deadline: float) -> bool:
    """Return whether an actor was seen to end; the master may be gone, who would tell of it."""
    while not actor.gone.wait(max(0.0, min(LOOK_FOR_END_S, deadline - time.monotonic()))):
        if actor.channel is not None and actor.channel.ended:
            return True
        if time.monotonic() >= deadline:
            return False
    return True


def _write(is_error: bool, text: str) -> None:
    stream = sys.stderr if is_error else sys.stdout
    with contextlib.suppress(Exception):  # a closed terminal is no reason to stop
        stream.write(text)
        stream.flush()


def _is_terminal(stream: object) -> bool:
    with contextlib.suppress(Exception):  # it may be None, closed, or anything of the user's
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False


def _heavy_modules() -> list[str]:
    return [name for name in control.HEAVY if name in sys.modules]
