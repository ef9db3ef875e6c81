"""The making of actors on a cluster, in each of their lives.

    1  the master places an actor: `Place`.  Those of a group are all placed, or none
    2  its process receives the script's settings, modules and files: PREPARE, FILE
    3  then the class and its arguments: INIT, and runs the constructor

The master decides whether an actor that died is restarted.  Its owner makes the next life, because
it keeps the class and the arguments.  For a detached actor its worker does, from a file
(values/restart_file.py), or, if the machine is lost, the client that made the actor.

Files are sent to each worker once.  An actor reports which of them its worker lacks.  If several
actors start on a worker at the same time, all report so before the first has stored anything.  So a
client waits for a file that is already being sent to the worker, and sends it again only if the
actor that was to store it failed.
"""

import gc
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec

from remotely.calling.spare import is_spare
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.channel import Channel
from remotely.client.channels import ActorState, Channels
from remotely.client.master_session import MasterSession, Question, heavy_modules
from remotely.engine import Options
from remotely.errors import RemotelyError, WorkerLost
from remotely.futures.future import CallFuture
from remotely.machine import this_machine
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.control import Location, MakerState
from remotely.protocol.resources import Resources, parse_others
from remotely.protocol.wire import Kind
from remotely.values import codec, shipping
from remotely.values.payload import SEND_FROM_BYTES, OutgoingValue
from remotely.values.shipping import Shipment
from remotely.values.sources import library

MAX_UPLOAD_BYTES = 64 << 20  # of files in memory that are not stored yet, for one actor


def requests(
    session: MasterSession, cls: type, names: Sequence[str], options: Options
) -> list[control.Request]:
    """Return what to ask of the master for a group of new actors."""
    assert isinstance(options.memory, int)
    count = len(names)
    common = control.Request(
        actor="",
        name="",
        named=bool(options.name),
        gang=secrets.token_hex(16) if count > 1 else "",  # all of them are placed, or none
        together=count,
        machine=options.machine or "",
        near=options.near or "",
        packs=options.pack,
        class_name=cls.__name__,
        owner="" if options.detached else session.id,
        job=session.job,
        resources=Resources(
            options.cores,
            options.gpus,
            options.memory,
            parse_others(options.resources),
            options.labels,
        ),
        names_cpus=options.cpus is not None,
        max_restarts=options.max_restarts,
        maker=session.id,
        python=this_machine.PYTHON,
        env=options.env,
        interpreter=options.python or "",
        packages=list(options.packages),
        post_mortem=options.post_mortem,
        modules=heavy_modules(),
        is_spare=is_spare(cls),
    )
    return [
        msgspec.structs.replace(common, actor=secrets.token_hex(16), name=name) for name in names
    ]


class ActorInMaking(NamedTuple):
    """An actor that is being made: its value, its channel, and the futures of what it was sent."""

    actor: ActorState
    encoded: codec.Encoded
    channel: Channel
    sent: deque[CallFuture[Any]]

    def finish(self) -> bool:
        """Wait until the actor is made; return false if it `got_nothing`."""
        try:
            while self.sent:
                self.sent.popleft().result()
        except WorkerLost as error:
            if not got_nothing(self.channel, error):
                raise
            return False
        return True


def got_nothing(channel: Channel, error: WorkerLost) -> bool:
    """Tell whether an actor got nothing because its process was too busy for a handshake.

    On a crowded machine that is no reason to take it for lost: it is sent everything again.
    """
    return not error.may_have_run and channel.is_slow


class Placing:
    """Makes processes and objects for actors of this client."""

    def __init__(
        self, session: MasterSession, channels: Channels, stores: Stores, shipment: Shipment
    ) -> None:
        self._session = session
        self._channels = channels
        self._stores = stores
        self._uploads = FileUploads(shipment)

    def make(
        self,
        actors: Sequence[ActorState],
        encoded: Sequence[codec.Encoded],
        options: Options,
        state: MakerState,
        patience_s: float | None,
    ) -> None:
        """Place all actors and run their constructors.  Makes all of them or raises an error."""
        # No frame here holds a future whose error it raises: see future.py.
        places: deque[Question] = deque()
        made: deque[ActorInMaking] = deque()
        collected = False
        values = ConstructorValues(self._stores)
        try:
            for actor in actors:
                places.append(self._ask_for_place(actor, patience_s))
            for actor, its in zip(actors, encoded, strict=True):
                if not collected and not places[0].has_room():
                    gc.collect()  # handles in garbage cycles may fill the cluster
                    collected = True
                channel = self._open(actor, places.popleft())
                made.append(self._prepared(actor, its, channel, options, state))
                values.send(made[-1])
            values.send_large()
            while made:
                making = made.popleft()
                if not making.finish():
                    actor, its, *_ = making
                    channel = self._channels.connected(actor)
                    made.append(self._prepared(actor, its, channel, options, state))
                    again = ConstructorValues(self._stores)
                    again.send(made[-1])
                    again.send_large()
        finally:
            for place in places:  # otherwise they would be repeated to a new master
                place.cancel()

    def _prepared(
        self,
        actor: ActorState,
        encoded: codec.Encoded,
        channel: Channel,
        options: Options,
        state: MakerState,
    ) -> ActorInMaking:
        """Send the actor's process what it needs before its value."""
        try:
            stored = self._prepare(actor, channel, options, state)
        except WorkerLost as error:
            if not got_nothing(channel, error):
                raise
            channel = self._channels.connected(actor)
            stored = self._prepare(actor, channel, options, state)
        return ActorInMaking(actor, encoded, channel, deque(stored))

    def _ask_for_place(self, actor: ActorState, patience_s: float | None) -> Question:
        if patience_s is None:
            patience_s = self._session.patience_s
        patience_s = min(patience_s, control.LONGEST_S)
        return self._session.ask(control.Place, request=actor.request, patience_s=patience_s)

    def _open(self, actor: ActorState, place: Question) -> Channel:
        """Wait for the place; return a channel to the process there."""
        try:
            location: Location = place.result()
        finally:
            if not place.answered:  # interrupted
                place.cancel()
            del place  # see future.py
        return self._channels.open(actor, location)

    def _prepare(
        self, actor: ActorState, channel: Channel, options: Options, state: MakerState
    ) -> list[CallFuture[None]]:
        """Send the actor's process its settings, files and code.

        Return the futures of the files that may not be stored yet.
        """
        location = channel.location
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
            return []
        try:
            digests = missing.result()
        finally:
            del missing  # see future.py
        worker, _, _ = location.ipc.rpartition("/")  # its folder
        return self._uploads.deliver(worker, digests, channel.send_file)


class ConstructorValues:
    """Sends actors their classes and arguments; a large value of several actors is sent once."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        # By the identity of the value: several actors may have the same one.
        self._large: dict[int, tuple[codec.Encoded, list[ActorInMaking]]] = {}

    def send(self, making: ActorInMaking) -> None:
        """Send an actor its value; a large one goes with those of the others, by `send_large`."""
        encoded = making.encoded
        if encoded.nbytes < SEND_FROM_BYTES:
            self._init(making)
        else:
            _, readers = self._large.setdefault(id(encoded), (encoded, []))
            readers.append(making)

    def send_large(self) -> None:
        """Send the large values, when all actors are prepared."""
        for encoded, readers in self._large.values():
            transfer = self._stores.transfer(encoded, [each.actor.store for each in readers])
            if transfer is not None:
                transfer.run()
            for making in readers:
                making.channel.wait_until_introduced()
            transfers = (transfer,) if transfer else ()
            large = OutgoingValue(encoded, len(readers) > 1, transfers)
            try:
                for making in readers:
                    self._init(making, large, transfer)
            finally:
                large.close()

    def _init(
        self,
        making: ActorInMaking,
        large: OutgoingValue | None = None,
        transfer: BulkTransfer | None = None,
    ) -> None:
        actor = making.actor
        future: CallFuture[Any] = CallFuture(f"the constructor of {actor.name}", actor=actor)
        future.keeps_alive = transfer
        making.channel.send(Kind.INIT, "", making.encoded, future, background=True, large=large)
        making.sent.append(future)


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
