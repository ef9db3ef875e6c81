"""The actors of a client, from birth to end.

    known      a handle arrived, or a name was looked up; the entry lasts as long as the last handle
    made       the master places the actor; its process receives the script's files and modules,
               then the class and its arguments
    restarted  the master decides whether an actor that died is restarted.  Its owner makes the next
               life, because it keeps the class and the arguments.  For a detached actor its worker
               does, from a file (values/restart_file.py), or, if the machine is lost, the client
               that made the actor
    ended      the client asks the master to end it, and repeats that until the master confirms

Files are sent to each worker once.  An actor reports which of them its worker lacks.  If several
actors start on a worker at the same time, all report so before the first has stored anything.  So a
client waits for a file that is already being sent to the worker, and sends it again only if the
actor that was to store it failed.
"""

import gc
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from remotely.calling.actor import MadeFrom, Names, restart
from remotely.calling.spare import is_spare
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.calls import Calls
from remotely.client.channel import Channel, Shared
from remotely.client.channels import ActorState, Channels
from remotely.client.end_errors import end_error
from remotely.client.master_session import MasterSession, Question, heavy_modules
from remotely.engine import Arguments, Engine, Options, RemoteActor
from remotely.errors import (
    ActorDied,
    CallTimeout,
    NameTaken,
    NotConnected,
    RemotelyError,
    WorkerLost,
)
from remotely.futures.future import CallFuture
from remotely.machine import this_machine, threads
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.control import Location, Obituary
from remotely.protocol.lease import PLACE_S, TERM_S
from remotely.protocol.resources import Resources, parse_others
from remotely.protocol.wire import Kind
from remotely.values import codec, in_transit, maker_state, shipping
from remotely.values.owned import NOTHING, own_each
from remotely.values.payload import SEND_FROM_BYTES, OutgoingValue
from remotely.values.shipping import Shipment
from remotely.values.sources import library

KILLED_WAIT_S = 5.0  # for the report that a killed actor has ended; a core dump may take long
GONE_WAIT_S = 1.0  # after the worker has killed an actor, for the report to arrive
MAX_UPLOAD_BYTES = 64 << 20  # of files in memory that are not stored yet, for one actor


class Actors:
    """The actors that this process made, and those of which it received handles."""

    def __init__(
        self,
        engine: Engine,
        shared: Shared,
        channels: Channels,
        calls: Calls,
        shipment: Shipment,
    ) -> None:
        self._engine = engine
        self._session = session = shared.session
        self._loop = session.loop
        self._stores = shared.stores
        self._channels = channels
        self._calls = calls
        self._uploads = FileUploads(shipment)
        self._known: weakref.WeakValueDictionary[str, ActorState] = weakref.WeakValueDictionary()
        self._names = Names(f"{session.id[:4]}." if session.inside else "")
        # Requested, and not confirmed yet.
        self._ends: dict[str, control.End | control.LetGo] = {}

    # --- known ------------------------------------------------------------------------------------

    def borrow(self, actor: str, name: str) -> ActorState:
        """Return the actor of a handle that arrived here, or of a name that was looked up."""
        found = self._known.get(actor)
        if found is None or found.is_released:  # a weak reference finds it in its `__del__`
            request = control.Request(
                actor=actor, name=name, class_name="", owner="", job="", python=this_machine.PYTHON
            )
            found = self._known[actor] = self._state(request, owned=False)
        return found

    def hold(self, actor: str, name: str, giver: str) -> ActorState:
        """Return the actor of a handle that a client returned; it lives as long as this.

        The giver is told each time, since it keeps the actor until then.
        """
        held = self.borrow(actor, name)
        held.holds |= not held.owned
        self._loop.call(partial(self._send_hold, actor, giver))
        return held

    def _state(self, request: control.Request, owned: bool) -> ActorState:
        giver = self._session.id if self._session.inside else ""
        in_transit.is_used |= bool(giver)  # this actor may return a handle
        return ActorState(self._engine, request, owned, giver)

    def on_held(self, actor: str) -> None:
        """On the loop's thread: another client holds an actor, so this one need not keep it."""
        if (known := self._known.get(actor)) is not None:
            known.note_arrival()
            del known
            in_transit.tidy(time.monotonic())

    def on_let_go(self, actor: str) -> None:
        """On the loop's thread: the master knows that this process has let go of an actor."""
        if isinstance(self._ends.get(actor), control.LetGo):
            del self._ends[actor]

    def _send_hold(self, actor: str, giver: str = "") -> None:
        self.on_let_go(actor)  # if this process had it before
        self._session.link.send(control.Hold(actor=actor, giver=giver))

    def find(self, name: str) -> RemoteActor:
        located = self._session.ask(control.Locate, name=name).result()
        if located.location is None:
            raise NameError(f"there is no actor named {name!r} on this cluster")
        found = self.borrow(located.location.actor, name)
        found.class_name = located.location.class_name
        return found

    # --- made -------------------------------------------------------------------------------------

    def place(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        """Make the actors; with `get_if_exists`, return the actor of that name if it exists."""
        while options.get_if_exists:
            try:
                return [self.find(options.name)]
            except NameError:
                pass
            try:
                return self._make(cls, arguments, options)
            except NameTaken as error:  # another client was faster; its actor may end before `find`
                if error.__cause__ is not None:  # raised by the constructor
                    raise
        return self._make(cls, arguments, options)

    def _make(
        self, cls: type, arguments: Sequence[Arguments], options: Options
    ) -> list[RemoteActor]:
        library.gather()
        state = maker_state.take()
        encoded = codec.encode_constructors(cls, arguments)
        count = len(encoded)
        gang = secrets.token_hex(16) if count > 1 else ""  # all of them are placed, or none
        actors = [self.new(cls, options, count, gang) for _ in range(count)]
        self._place_all(actors, encoded, options, state)
        return list(actors)

    def new(self, cls: type, options: Options, together: int, gang: str) -> ActorState:
        """Return an actor that has a name and is not placed yet, one of `together` in a group."""
        session = self._session
        assert isinstance(options.memory, int)
        request = control.Request(
            actor=secrets.token_hex(16),
            name=self._names.of(cls, options),
            named=bool(options.name),
            gang=gang,
            together=together,
            machine=options.machine,
            near=options.near or "",
            class_name=cls.__name__,
            owner="" if options.detached else session.id,
            job=session.job,
            resources=Resources(
                options.cores, options.gpus, options.memory, parse_others(options.resources)
            ),
            names_cpus=options.cpus is not None,
            max_restarts=options.max_restarts,
            maker=session.id,
            python=this_machine.PYTHON,
            env=options.env,
            modules=heavy_modules(),
            is_spare=is_spare(cls),
        )
        actor = self._state(request, owned=not options.detached)
        self._known[request.actor] = actor
        return actor

    def _place_all(
        self,
        actors: Sequence[ActorState],
        encoded: Sequence[codec.Encoded],
        options: Options,
        state: control.MakerState,
    ) -> None:
        """Place all actors and run their constructors.  Makes all of them or raises an error."""
        # No frame here holds a future whose error it raises: see future.py.
        places: deque[Question] = deque()
        made: deque[CallFuture[Any]] = deque()
        collected = False
        values = ConstructorValues(self._stores)
        try:
            for actor in actors:
                places.append(self._ask_for_place(actor, options.patience_s))
            if options.max_restarts:
                encoded = owned = own_each(encoded)
                for actor, kept in zip(actors, owned, strict=True):
                    actor.made_from = MadeFrom(kept, options, state)
            for actor, its in zip(actors, encoded, strict=True):
                if not collected and not places[0].has_room():
                    gc.collect()  # handles in garbage cycles may fill the cluster
                    collected = True
                channel, stored = self._prepare(actor, places.popleft(), options, state)
                made.extend(stored)
                made.extend(values.send(actor, channel, its))
            made.extend(values.send_large())
            while made:
                made.popleft().result()
        except BaseException:
            for place in places:  # otherwise they would be repeated to a new master
                place.cancel()
            self._request_end([actor.actor for actor in actors], 0.0, kill=True)
            raise

    def _ask_for_place(self, actor: ActorState, patience_s: float | None = None) -> Question:
        if patience_s is None:
            patience_s = self._session.patience_s
        patience_s = min(patience_s, control.LONGEST_S)
        return self._session.ask(control.Place, request=actor.request, patience_s=patience_s)

    def _prepare(
        self, actor: ActorState, place: Question, options: Options, state: control.MakerState
    ) -> tuple[Channel, list[CallFuture[None]]]:
        """Wait for the place, and send the actor's process its settings, files and code.

        Return the channel to it, and the futures of the files that may not be stored yet.
        """
        try:
            location: Location = place.result()
        finally:
            if not place.answered:  # interrupted
                place.cancel()
            del place  # see future.py
        channel = self._channels.open(actor, location)
        content, channel.sources_sent = library.whole_for(actor, location.life)
        prepare = shipping.prepare(
            self._session.job,
            self._session.host,
            self._uploads.files,
            options.concurrency,
            state,
            content,
        )
        body = codec.Encoded((control.encode(prepare),), ())
        missing: CallFuture[list[str]] = CallFuture("the actor")
        channel.send(Kind.PREPARE, "", body, missing, background=True)
        if not self._uploads.files:
            return channel, []
        try:
            digests = missing.result()
        finally:
            del missing  # see future.py
        worker, _, _ = location.ipc.rpartition("/")  # its folder
        return channel, self._uploads.deliver(worker, digests, channel.send_file)

    # --- restarted --------------------------------------------------------------------------------

    def on_death(self, obituary: Obituary) -> None:
        """On the loop's thread: handle the end of a life of an actor, reported by the master."""
        if not obituary.restarting:
            self._ends.pop(obituary.actor, None)  # confirmed
        actor = self._known.get(obituary.actor)
        if actor is None or (obituary.restarting and obituary.life < actor.request.life):
            return
        error = end_error(actor.name, actor.location, obituary)
        if not obituary.restarting:
            actor.gone = True
            actor.end_with(error)
        elif actor.made_from is not None and (actor.owned or obituary.lost):
            with actor.lock:
                # If it was given up, the master was asked to end it.
                is_given_up = actor.ended is not None or actor.is_released
                if not is_given_up:
                    actor.restarting = True
                    actor.expect_life(obituary.life + 1)
            if not is_given_up:
                threads.start("restart", self.restart, actor)
        else:  # the next call locates it; the master replies once it is restarted
            actor.expect_life(obituary.life + 1)
        actor.wake()
        channel = actor.channel
        is_over = not obituary.restarting or (channel and channel.location.life <= obituary.life)
        if channel is None or not is_over:
            return
        if obituary.exited:
            actor.channel = None  # for later calls
            channel.end_after_replies(error, obituary)
        else:
            channel.end(error, obituary)

    def restart(self, actor: ActorState) -> None:
        """Make the next life of an actor that died; its handles stay valid."""

        def make() -> None:
            assert actor.made_from is not None
            encoded, options, state = actor.made_from
            values = ConstructorValues(self._stores)
            channel, stored = self._prepare(actor, self._ask_for_place(actor), options, state)
            made = deque([*stored, *values.send(actor, channel, encoded), *values.send_large()])
            while made:
                made.popleft().result()

        # The actor may not be placed yet: then the master has ended only its last life.
        restart(actor, actor.life, make, partial(self._request_end, [actor.actor], 0.0))

    # --- ended ------------------------------------------------------------------------------------

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        self._session.check()
        deadline = time.monotonic() + grace_s
        actors = [r for r in remotes if isinstance(r, ActorState) and r.ended is None]
        if not grace_s:
            self._kill(actors)
            return
        pending = self._calls.send(actors, Kind.END, "", NOTHING, background=True)[::-1]
        failures: list[BaseException] = []  # raised by the classes' own `close`
        try:
            while pending:
                try:
                    pending.pop().result(max(0.0, deadline - time.monotonic()))
                except (ActorDied, WorkerLost, CallTimeout):
                    pass
                except Exception as error:
                    failures.append(error)
            for actor in actors:
                self._wait_for_end(actor, deadline)
        finally:
            for actor in actors:
                self._mark_closed(actor)
        if failures:
            raise failures[0]

    def release(self, remote: RemoteActor) -> None:
        if self._session.is_closed or self._session.is_forked:
            return
        assert isinstance(remote, ActorState)
        remote.is_released = True
        if (remote.holds or (remote.owned and remote.given)) and remote.ended is None:
            self._request({remote.actor: control.LetGo(actor=remote.actor)})
        elif remote.owned and remote.ended is None:
            self._request_end([remote.actor], PLACE_S)
        if (channel := remote.channel) is not None:  # no call is pending: it would hold a handle
            gone = NotConnected("the last handle is gone")
            self._loop.call(partial(channel.end, lambda may_have_run: gone))

    def repeat_requests(self) -> None:
        """On the loop's thread: send a new master the requests that are not confirmed."""
        # By reference: iterating over the values would fail if another thread adds one.
        for reference in self._known.valuerefs():
            if (actor := reference()) is not None and actor.holds:
                self._send_hold(actor.actor)
        for request in self._ends.values():
            self._session.link.send(request)

    def _request_end(self, actors: Sequence[str], grace_s: float, kill: bool = False) -> None:
        """Ask the master to end actors, also those given up before they had a place.

        Such an actor may have been placed meanwhile.
        """
        ends = {actor: control.End(actor=actor, grace_s=grace_s, kill=kill) for actor in actors}
        self._request(ends)

    def _request(self, ends: Mapping[str, control.End | control.LetGo]) -> None:
        """Send these requests, by actor, and repeat them to a new master until the actors end."""

        def send() -> None:
            self._ends.update(ends)
            for end in ends.values():
                self._session.link.send(end)

        self._loop.call(send)

    def _kill(self, actors: Sequence[ActorState]) -> None:
        for actor in actors:
            if not actor.owned:  # the master reports an end to the clients that located the actor
                self._channels.locate(actor)
            self._request_end([actor.actor], 0.0, kill=True)
        for actor in actors:
            actor.is_gone(KILLED_WAIT_S)
            self._mark_closed(actor)

    def _wait_for_end(self, actor: ActorState, deadline: float) -> None:
        """Wait until an actor's process has ended; have it killed at the deadline."""
        if self._loop.is_own_thread():  # a value that is unpickled: this thread receives the report
            return
        if not actor.wait_for_end(deadline):
            self._request_end([actor.actor], 0.0)
            actor.wait_for_end(time.monotonic() + TERM_S + GONE_WAIT_S)

    def _mark_closed(self, actor: ActorState) -> None:
        """Fail the pending and later calls of an actor that was closed."""
        if actor.ended is None:
            gone = Obituary(actor=actor.actor, life=actor.request.life, asked=True)
            ended = end_error(actor.name, actor.location, gone)
            actor.end_with(ended)
            actor.wake()
            if actor.channel is not None:
                actor.channel.end(ended, gone)


class ConstructorValues:
    """Sends actors their classes and arguments; a large value of several actors is sent once.

    Each method returns futures, of which the first that fails has the cause.
    """

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        # By the identity of the value: several actors may have the same one.
        self._large: dict[int, tuple[codec.Encoded, list[tuple[ActorState, Channel]]]] = {}

    def send(
        self, actor: ActorState, channel: Channel, encoded: codec.Encoded
    ) -> list[CallFuture[Any]]:
        """Send an actor its value; a large one goes with those of the others, by `send_large`."""
        if encoded.nbytes < SEND_FROM_BYTES:
            return [self._init(actor, channel, encoded)]
        _, readers = self._large.setdefault(id(encoded), (encoded, []))
        readers.append((actor, channel))
        return []

    def send_large(self) -> list[CallFuture[Any]]:
        """Send the large values, when all actors are prepared."""
        futures = []
        for encoded, readers in self._large.values():
            transfer = self._stores.transfer(encoded, [actor.store for actor, _ in readers])
            if transfer is not None:
                transfer.run()
            for _, channel in readers:
                channel.wait_until_introduced()
            transfers = (transfer,) if transfer else ()
            large = OutgoingValue(encoded, len(readers) > 1, transfers)
            try:
                futures += [self._init(*reader, encoded, large, transfer) for reader in readers]
            finally:
                large.close()
        return futures

    def _init(
        self,
        actor: ActorState,
        channel: Channel,
        encoded: codec.Encoded,
        large: OutgoingValue | None = None,
        transfer: BulkTransfer | None = None,
    ) -> CallFuture[Any]:
        future: CallFuture[Any] = CallFuture(f"the constructor of {actor.name}", actor=actor)
        future.keeps_alive = transfer
        channel.send(Kind.INIT, "", encoded, future, background=True, large=large)
        return future


class ArrivalQuestion:
    """A question to the master for an actor that dials in.  Implements `engine.Arrival`."""

    def __init__(self, session: MasterSession, actors: Actors, class_name: str) -> None:
        session.check()
        if session.address.startswith("ipc:"):
            raise NotConnected(
                "no process can dial in to a cluster that this one has started for itself: start "
                "one with 'remotely start', and connect to that"
            )
        self._session = session
        self._actors = actors
        self._class_name = class_name
        self._question = session.ask(control.AskArrival, class_name=class_name)

    def result(self, timeout: float | None = None) -> ActorState:
        try:
            located: control.Located = self._question.result(timeout)
        except CallTimeout:
            what = f"no {self._class_name} has dialled in within {timeout:g} s"
            raise CallTimeout(what, still_running=False) from None
        assert located.location is not None
        actor = self._actors.borrow(located.location.actor, located.location.name)
        if actor.location is None:
            actor.set_location(located.location, self._session.host)
        self._session.arrivals.add(actor.actor)
        return actor

    def give_back(self) -> None:
        self._question.cancel()
        if not self._session.is_closed:
            self._session.send(control.NoArrival(ticket=self._question.message.ticket))


class _Upload:
    """One file that is being sent to one worker."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.failed = False

    def end(self, future: Future[None]) -> None:
        self.failed = future.exception() is not None
        self.is_over.set()


class FileUploads:
    """The files that this client has sent or is sending to each worker.  Thread-safe."""

    def __init__(self, shipment: Shipment) -> None:
        self.files = shipment.files
        self._shipment = shipment
        self._sent: dict[tuple[str, str], _Upload] = {}  # by worker and hash
        self._lock = RLock()

    def deliver(
        self,
        worker: str,
        missing: Iterable[str],
        send: Callable[[str, bytes, CallFuture[None]], object],
    ) -> list[CallFuture[None]]:
        """Send a worker's missing files through one of its actors.

        Waits for those that other actors are storing there.  Returns the futures of the files that
        may not be stored yet.  Raises RemotelyError for a file that has changed.
        """
        pending: deque[tuple[CallFuture[None], int]] = deque()
        left = list(missing)
        while left:
            others = []
            for digest in left:
                future: CallFuture[None] = CallFuture("the actor")
                try:
                    if other := self._claim((worker, digest), future):
                        others.append((digest, other))
                        continue
                    content = self._shipment.read(digest)
                    send(digest, content, future)
                    pending.append((future, len(content)))
                except BaseException:  # also interrupts: other threads may wait for this upload
                    future.lose(RemotelyError("it was not sent"))
                    future.run_callbacks()
                    raise
                del future  # see future.py
                while sum(size for _, size in pending) > MAX_UPLOAD_BYTES:
                    pending.popleft()[0].result()
            for _, other in others:
                other.is_over.wait()
            left = [digest for digest, other in others if other.failed]
        return [future for future, _ in pending]

    def _claim(self, key: tuple[str, str], future: CallFuture[None]) -> _Upload | None:
        """Return another actor's upload of the file; None if the caller must send it."""
        ours = _Upload()
        future.then(ours.end)  # before others can find it
        with self._lock:
            other = self._sent.get(key)
            if other is not None and not other.failed:
                return other
            self._sent[key] = ours
        return None
