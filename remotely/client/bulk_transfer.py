"""Bulk transfer: large values between this client and the machines of its actors, through stores.

    arguments   of SEND_FROM_BYTES or more, for an actor on another machine: a BulkTransfer sends
                the value to each machine once, over TLS, by the plan of relay_plan.py
    results     stay in the store of their actor's machine, and are fetched from there

Each machine has a path (relay_plan.Path), for arguments and results alike.  With SOCKETS, large
values go through the sockets of the actors, as small ones do.

    the path becomes   when
    CHAIN              at first; AGAIN_S after any other choice; its store has ended, because its
                       next store may be reachable
    DIRECT             another machine cannot relay values to it
    SOCKETS            its store is unreachable from here, or does not answer

The first change to DIRECT and to SOCKETS is logged, once for each store: the cause may be a
firewall, with which everything works, but slower.
"""

import logging
import math
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import zmq

from remotely.calling.threads import Threads
from remotely.client.ref import Ref
from remotely.client.relay_plan import Path, RelayPlan
from remotely.errors import SHUT_DOWN, NotConnected
from remotely.futures.awaitable import AwaitableFuture
from remotely.machine.gate import Gate
from remotely.protocol import control
from remotely.protocol.address import describe
from remotely.protocol.control import BulkAddress, StoreAddress
from remotely.protocol.lease import CONNECT_S, STALL_S
from remotely.protocol.resources import format_bytes
from remotely.transport import bulk, sockets
from remotely.transport.bulk import Connection
from remotely.transport.connection_monitor import ConnectionMonitor
from remotely.transport.connection_pool import ConnectionPool
from remotely.transport.keys import KeyPair
from remotely.transport.listening import nearest
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect
from remotely.values import borrowing
from remotely.values.codec import Encoded
from remotely.values.payload import (
    SEND_FROM_BYTES,
    Parcel,
    Unpacked,
    parcel_of,
    segments,
    stripe_of,
)

log = logging.getLogger("remotely")

AGAIN_S = 30.0  # after which CHAIN is tried again
ANSWER_S = CONNECT_S + 1.0  # for a store to start and to make room
JOIN_S = 1.0  # for one that runs, once another machine waits for the same value
SILENT_S = 4 * STALL_S
REACH_AGAIN_S = 5.0
CONNECTION_IDLE_S = 20.0  # after which a TLS connection is closed; earlier than its store does
MAX_THREADS = 8  # more do not make a link faster
_write_onward = msgspec.msgpack.Encoder().encode

# Values move on threads of their own for each machine, or set of machines, in each direction.
Lane = tuple[str, frozenset[StoreAddress]]

Listener = Callable[[StoreAddress, msgspec.Struct | None], None]  # None: the link broke
Pool = ConnectionPool[BulkAddress, Connection]


_PORTS = (
    f"Each worker listens on two ports for values of {format_bytes(SEND_FROM_BYTES)} or more; open "
    "these ports between all machines"
)
_SILENT = "Its process is there, and is stopped or busy: its machine may be overloaded"


class Trouble(NamedTuple):
    """Why a path was chosen.

    is_silent  the store has accepted a connection, so its ports are open
    origin     the store that cannot reach it; None for this machine
    """

    why: str = ""
    is_silent: bool = False
    origin: BulkAddress | None = None


_NONE = Trouble()


class RemoteValue:
    """A result that this client has claimed: its store keeps it until this object is deleted.

    store   None for one that is in no store that this client knows
    """

    def __init__(self, stores: "Stores", parcel: Parcel, store: StoreAddress | None) -> None:
        self._stores = stores
        self.parcel = parcel
        self.store = store

    def __del__(self) -> None:
        self._stores.release(self.parcel, self.store)


class Stores:
    """A client's values in the stores of other machines.  Thread-safe.

    `on_choice` is called on the loop's thread when actors should begin, or cease, to leave their
    results in a store.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", loop: Loop, pair: KeyPair, machine: str
    ) -> None:
        self._lanes: dict[Lane, Threads] = {}
        self.on_choice: Callable[[StoreAddress, bool], None] = lambda store, usable: None
        self._context = context
        self._loop = loop
        self._pair = pair
        self._machine = machine
        self._links: dict[StoreAddress, StoreLink] = {}
        self._gate = Gate(lambda: NotConnected(SHUT_DOWN))  # no link opens after the end
        self._pool: Pool = ConnectionPool(bulk.connect, CONNECTION_IDLE_S)
        self._logged: set[tuple[StoreAddress, Path]] = set()
        self._claimed: dict[bytes, StoreAddress] = {}  # results, by name: each new link claims them
        self._unreleased: dict[bytes, StoreAddress] = {}  # to release once the store is reachable
        loop.every(REACH_AGAIN_S, self._pool.tidy)
        loop.every(REACH_AGAIN_S, self._reach_again)

    def is_usable(self, store: StoreAddress) -> bool:
        """Tell whether large values go through this store."""
        link = self._links.get(store)
        return link is None or link.path is not Path.SOCKETS

    def transfer(
        self, encoded: Encoded, stores: Iterable[StoreAddress | None]
    ) -> "BulkTransfer | None":
        """Return a transfer of a value to these machines; None if it needs none."""
        if encoded.nbytes < SEND_FROM_BYTES:
            return None
        links = [self._link(s) for s in dict.fromkeys(stores) if s and self.is_usable(s)]
        links = [link for link in links if not link.is_late]
        return BulkTransfer(encoded, links, self._pool) if links else None

    def run(self, transfer: "BulkTransfer") -> None:
        """Run a transfer in the background."""
        self._lane("to", transfer.stores).run(transfer.run)

    def bring(self, ref: Ref, stores: Iterable[StoreAddress | None]) -> None:
        """Transfer a ref to those of these machines for which no transfer has begun."""
        missing = [s for s in stores if s and not any(t.covers(s) for t in ref.transfers)]
        if (transfer := self.transfer(ref.value, missing)) is not None:
            ref.transfers.append(transfer)
            self.run(transfer)

    def claim(self, result: Parcel, store: StoreAddress | None) -> RemoteValue:
        """Have a store keep a result as long as what this returns, even if its actor ends."""
        if store is not None:
            self._claimed[result.value] = store
            link = self._links.get(store)
            if link is not None and not link.is_broken:
                link.send(control.Claim(value=result.value))
            elif self.is_usable(store):
                self._link(store)  # which claims it
        return RemoteValue(self, result, store)

    def fetch_in_background(
        self, wanted: RemoteValue, fetch: Callable[[], object], instead: Callable[[], object]
    ) -> None:
        """Run a function that fetches a result; `instead`, if this client has left."""
        stores = frozenset((wanted.store,) if wanted.store else ())
        self._lane("from", stores).run(fetch, instead)

    def fetch(self, wanted: RemoteValue) -> Unpacked:
        """Fetch a result.  Raises OSError or ValueGone."""
        link = None if wanted.store is None else self._links.get(wanted.store)
        if link is None or link.path is Path.SOCKETS:
            raise ConnectionRefusedError("its store is unreachable")
        parcel = wanted.parcel
        assert parcel.store is not None
        address, name = parcel.store, parcel.value
        memory = borrowing.new_memory(parcel.nbytes)

        def pull(start: int, nbytes: int) -> None:
            stripe = memory[start : start + nbytes]
            self._pool.use(address, lambda connection: connection.pull(name, start, stripe))

        try:
            bulk.in_stripes(parcel.nbytes, pull)
        except OSError as error:
            if link.bulk == address:  # else the address is that of a store that has ended
                link.choose(Path.SOCKETS, error)
            raise
        return parcel.cut(memory)

    def release(self, unwanted: Parcel, store: StoreAddress | None) -> None:
        """Release a result in a store.  Never blocks, and takes no lock."""
        self._claimed.pop(unwanted.value, None)
        if store is not None:
            self._unreleased[unwanted.value] = store
            self._loop.call(self._release)

    def close(self) -> None:
        """After the end of the loop."""
        with self._gate:
            self._gate.close()
            links, self._links = self._links, {}  # so that closing them changes no path
        for threads in self._lanes.values():  # no more are added
            threads.close()
        for link in links.values():
            link.close()
        self._pool.close()

    def _lane(self, direction: str, stores: frozenset[StoreAddress]) -> Threads:
        """Return threads that wait for no other machine: one that is stopped delays no other."""
        with self._gate:
            threads = self._lanes.get((direction, stores))
            if threads is None:
                threads = self._lanes[direction, stores] = Threads("bulk", MAX_THREADS)
                if not self._gate.is_open:
                    threads.close()
            return threads

    def _link(self, address: StoreAddress) -> "StoreLink":
        """Return the link to a store.

        A new link claims the results that this client has there, and releases others.
        """
        with self._gate:
            self._gate.check()
            link = self._links.get(address)
            if link is None or link.is_broken:
                link = StoreLink(self._context, self._loop, self._pair, address, self._chosen)
                self._links[address] = link
                for value, store in self._claimed.copy().items():
                    if store == address:
                        link.send(control.Claim(value=value))
                if self._unreleased:
                    self._loop.call(self._release)
            return link

    def _reach_again(self) -> None:
        """On the loop's thread: reopen broken links to stores that hold results of this client."""
        for store in set(self._claimed.copy().values()):
            if self.is_usable(store):
                self._link(store)
        self._release()

    def _release(self) -> None:
        """On the loop's thread: release unneeded results, unless the link to their store broke.

        Then the next one does it.  Meanwhile their actors keep them.
        """
        for value, store in self._unreleased.copy().items():
            link = self._links.get(store) or self._link(store)
            if not link.is_broken and self._unreleased.pop(value, None) is not None:
                link.send(control.Release(values=[value]))

    def _chosen(self, link: "StoreLink", trouble: Trouble) -> None:
        """On the loop's thread: handle a new path to a machine."""
        if self._links.get(link.address) is not link:
            return
        self.on_choice(link.address, link.path is not Path.SOCKETS)
        if link.path is Path.CHAIN or (link.address, link.path) in self._logged:
            return
        origin = trouble.origin
        self._logged.add((link.address, link.path))
        log.warning(
            "large values cannot be sent from %s to the store at %s (%s): they %s, which is "
            "slower. %s",
            f"the store at {describe(nearest(origin.tcp))}" if origin else self._machine,
            describe(nearest(link.address.tcp)),
            trouble.why,
            "are sent from here" if origin else "go through the sockets of the actors there",
            _SILENT if trouble.is_silent else _PORTS,
        )


class StoreLink:
    """One connection over CURVE to the store of a machine, and the path to that machine.

    The store keeps the client's announced values and claimed results as long as the link lasts.  A
    link never reconnects: a new link has no values.  Thread-safe.

    It connects with its first message.  If the store has not answered an announcement for ANSWER_S,
    or until the link broke because it is silent, the path becomes SOCKETS.

    path   the way of large values there; `on_choice` is called with changes, on the loop's thread
    bulk   the address at which the store receives values; None until it has answered
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: Loop,
        pair: KeyPair,
        address: StoreAddress,
        on_choice: Callable[["StoreLink", Trouble], None],
    ) -> None:
        self.address = address
        self.path = Path.CHAIN
        self.bulk: BulkAddress | None = None
        self.is_broken = False
        self._is_open = False
        self._loop = loop
        self._on_choice = on_choice
        self._listeners: dict[bytes, Listener] = {}  # by value
        self._unanswered: dict[bytes, float] = {}  # announced values, and when, in that order
        self._decode = control.Decoder("store > client").decode
        self._socket = sockets.client(context, pair, address.public_key, Reconnect.NEVER)
        self._monitor = ConnectionMonitor(self._socket, loop, self.close)

    def expect(self, value: bytes, nbytes: int, listener: Listener) -> None:
        """Announce a value; `listener` receives the store's messages about it, on the loop."""
        self._listeners[value] = listener
        self._unanswered[value] = time.monotonic()
        self.send(control.Expect(value=value, nbytes=nbytes))

    def ignore(self, value: bytes) -> None:
        """Remove the listener of a value."""
        self._listeners.pop(value, None)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message.  Never blocks, and takes no lock."""
        self._loop.call(lambda: self._send_on_loop(message))

    def choose(self, path: Path, why: Trouble | OSError) -> None:
        """Use a path for AGAIN_S, because another one does not work."""
        if isinstance(why, OSError):
            why = Trouble(str(why) or type(why).__name__, isinstance(why, TimeoutError))
        self._loop.call(partial(self._choose, path, why))

    @property
    def is_late(self) -> bool:
        """Whether the store has answered before, and now not for JOIN_S."""
        oldest = next(iter(self._unanswered.copy().values()), math.inf)
        return self.bulk is not None and oldest < time.monotonic() - JOIN_S

    @property
    def _no_answer(self) -> Trouble:
        return Trouble("it does not answer", is_silent=self._monitor.accepted)

    def close(self) -> None:
        """On the loop's thread, or after its end."""
        if self.is_broken:
            return
        self.is_broken = True
        self._monitor.close()
        self._loop.unwatch_socket(self._socket)
        self._socket.close(linger=0)
        if self.bulk is None or self.is_late:
            self._set_path(Path.SOCKETS, self._no_answer)
        elif self.path is not Path.CHAIN:
            self._set_path(Path.CHAIN)
        self._unanswered.clear()
        for listener in list(self._listeners.values()):
            listener(self.address, None)
        self._listeners.clear()

    def _open(self) -> None:
        self._is_open = True
        sockets.connect(self._socket, nearest(self.address.tcp))
        self._loop.watch_socket(self._socket, self._hear)
        self._send_on_loop(control.Reach())

    def _choose(self, path: Path, why: Trouble) -> None:
        if not self.is_broken and self.path is not path:  # not for a store that has ended
            self._set_path(path, why)

    def _set_path(self, path: Path, why: Trouble = _NONE) -> None:
        self.path = path
        if path is not Path.CHAIN:
            self._loop.after(AGAIN_S, lambda: self._set_path(Path.CHAIN))
        self._on_choice(self, why)

    def _send_on_loop(self, message: msgspec.Struct) -> None:
        if not self.is_broken:
            if not self._is_open:
                self._open()
            sockets.send(self._socket, [control.encode(message)])
            if isinstance(message, control.Expect):
                self._loop.after(ANSWER_S, partial(self._judge, message.value))
        elif isinstance(message, control.Expect) and (
            listener := self._listeners.pop(message.value, None)
        ):
            listener(self.address, None)

    def _judge(self, value: bytes) -> None:
        if value in self._unanswered:
            self._choose(Path.SOCKETS, self._no_answer)

    def _hear(self, frames: list[zmq.Frame]) -> None:
        match message := self._decode(frames[0].buffer):
            case control.Reached(bulk=address):
                self.bulk = address
            case control.AreYouThere():
                pass
            case _:
                assert isinstance(message, msgspec.Struct)
                self._unanswered.pop(message.value, None)  # type: ignore[attr-defined]
                if listener := self._listeners.get(message.value):  # type: ignore[attr-defined]
                    listener(self.address, message)


class BulkTransfer:
    """The transfer of one large value to the stores of several machines, once to each.

    The stores keep the value until this object is deleted: when the last call with it has its
    outcome.  Thread-safe, but only one thread may `run` it, which reads the value.

    done      completes when the calls with the value may be sent
    stores    those to which it goes
    """

    def __init__(self, encoded: Encoded, links: Sequence[StoreLink], pool: Pool) -> None:
        self._encoded = encoded
        self.parcel = parcel_of(encoded)
        self.done: AwaitableFuture[None] = AwaitableFuture()
        self._here: set[StoreAddress] = set()
        self._links = {link.address: link for link in links}
        self.stores = frozenset(self._links)
        self._pool = pool
        self._events: queue.SimpleQueue[tuple[StoreAddress, msgspec.Struct | None]]
        self._events = queue.SimpleQueue()

    def __del__(self) -> None:
        for link in self._links.values():
            link.send(control.Release(values=[self.parcel.value]))

    def parcel_at(self, store: StoreAddress | None) -> Parcel | None:
        """Return the parcel to send to an actor there; None means to send the value itself."""
        if store not in self._here or self._links[store].is_broken:
            return None
        return self.parcel

    def covers(self, store: StoreAddress) -> bool:
        """Tell whether the value is in a store or in transit to it."""
        if self.done.done():
            return store in self._here and not self._links[store].is_broken
        return store in self._links

    def run(self) -> None:
        """Transfer the value to all reachable machines.

        If that fails, its calls are sent all the same, with the value itself if necessary.
        """
        try:
            self._run()
        except Exception:
            log.exception("the transfer of a large value failed; it goes through actors' sockets")
        finally:
            for link in self._links.values():
                link.ignore(self.parcel.value)
            self.done.set_result(None)

    def _run(self) -> None:
        # 1. Each store makes room and reports so.  A store that does not answer is left out.
        for link in self._links.values():
            link.expect(self.parcel.value, self.parcel.nbytes, self._hear)
        links = self._wait_until_ready()
        # 2. Push to the first machine of each chain, on this thread; meanwhile stores report what
        #    they have received and what they could not relay.
        plan = RelayPlan({address: link.path for address, link in links.items()})
        while not plan.is_over:
            if chain := plan.next():
                first, *onward = chain
                try:
                    self._push(first, onward)
                    plan.arrived(first)
                except OSError as error:
                    plan.unreachable(first, onward)
                    links[first].choose(Path.SOCKETS, error)
                continue
            # 3. Nothing is left to push: wait for the chains.
            try:
                store, message = self._events.get(timeout=SILENT_S)
            except queue.Empty:  # a store reports within this time that nothing came
                break
            machine = self._links[store].bulk
            match message:
                case _ if machine not in links:
                    pass
                case control.Stored():
                    plan.arrived(machine)
                case control.Broken():
                    plan.not_relayed(machine)
                case control.Unrelayed(bulk=to, why=why) if to in links:
                    links[to].choose(Path.DIRECT, Trouble(why, origin=machine))
                    plan.not_relayed(to)
                case None:
                    plan.unreachable(machine)
        self._here = {links[machine].address for machine in plan.here}

    def _hear(self, store: StoreAddress, message: msgspec.Struct | None) -> None:
        self._events.put((store, message))

    def _wait_until_ready(self) -> dict[BulkAddress, StoreLink]:
        """Return the links of the stores that have made room, by their bulk addresses.

        A store has ANSWER_S, in which it may have to start.  One that runs has JOIN_S once another
        one is ready: no machine waits for one that is stopped.
        """
        ready: dict[BulkAddress, StoreLink] = {}
        pending = dict(self._links)
        deadline = time.monotonic() + ANSWER_S
        while pending:
            if ready and all(link.bulk for link in pending.values()):
                deadline = min(deadline, time.monotonic() + JOIN_S)
            try:
                store, message = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            found = pending.pop(store, None)  # None: it has answered already
            if found and found.bulk and isinstance(message, control.Ready):
                ready[found.bulk] = found
        return ready

    def _push(self, first: BulkAddress, onward: list[BulkAddress]) -> None:
        route = _write_onward(onward) if onward else b""
        value, pieces = self.parcel.value, list(segments(self._encoded))

        def push(start: int, nbytes: int) -> None:
            parts = stripe_of(pieces, start, nbytes)
            self._pool.use(first, lambda c: c.push(value, start, nbytes, parts, route))

        bulk.in_stripes(self.parcel.nbytes, push)
