"""One large value on its way to the machines where it is needed: to each of them once.

    announce    each machine's store makes room
    bring       as spread.py says, over TLS
    fall back   where a store cannot be reached or has no room, the actors get the value whole,
                through their own sockets

The value stays in the stores until the last call that carries it has its outcome: when this object
is gone.
"""

import logging
import queue
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from remotely.client.avoidance import Avoidance, Way
from remotely.client.spread import Spread
from remotely.client.store_link import BulkPool, StoreLink
from remotely.protocol import control
from remotely.protocol.control import BulkAddress, StoreAddress
from remotely.protocol.lease import CONNECT_S
from remotely.transport import bulk
from remotely.transport.bulk import STALL_S
from remotely.values import parcel
from remotely.values.codec import Encoded
from remotely.values.parcel import Parcel

log = logging.getLogger("remotely")

ANSWER_S = CONNECT_S + 1.0  # for a store to start and to make room
SILENT_S = 4 * STALL_S
_write_onward = msgspec.msgpack.Encoder().encode


class Crossing:
    """Any thread may use it; `run` is for one, and reads the value.

    done      when the calls that carry it may leave
    """

    def __init__(
        self,
        encoded: Encoded,
        links: Sequence[StoreLink],
        pool: BulkPool,
        avoidance: Avoidance,
    ) -> None:
        self._encoded = encoded
        self.parcel = parcel.parcel_of(encoded)
        self.done: Future[None] = Future()
        self._here: set[StoreAddress] = set()
        self._links = {link.address: link for link in links}
        self._pool = pool
        self._avoidance = avoidance
        self._events: queue.SimpleQueue[tuple[StoreAddress, msgspec.Struct | None]]
        self._events = queue.SimpleQueue()

    def __del__(self) -> None:
        for link in self._links.values():
            link.release(self.parcel.value)

    def parcel_at(self, store: StoreAddress | None) -> Parcel | None:
        """Return what to send to an actor there in the place of the value; None: the value."""
        if store not in self._here or self._links[store].is_broken:
            return None
        return self.parcel

    def covers(self, store: StoreAddress) -> bool:
        """Tell whether the value is there, or on its way."""
        if self.done.done():
            return store in self._here and not self._links[store].is_broken
        return store in self._links

    def run(self) -> None:
        """Bring it to all machines that can be reached.  Returns when it is there.

        Whatever goes wrong, the calls that carry it leave, with the value itself if need be.
        """
        try:
            self._run()
        except Exception:
            log.exception("a large value could not cross; it goes through the sockets of actors")
        finally:
            for link in self._links.values():
                link.ignore(self.parcel.value)
            self.done.set_result(None)

    def _run(self) -> None:
        for link in self._links.values():
            link.expect(self.parcel.value, self.parcel.nbytes, self._hear)
        addresses = self._wait_until_ready()
        stores = {bulk: store for store, bulk in addresses.items()}
        spread = Spread(list(stores), self._avoidance.pairs())
        while not spread.is_over:
            if chain := spread.next():
                first, *onward = chain
                try:
                    self._push(first, onward)
                    spread.arrived(first)
                except OSError as error:
                    spread.lose(first, onward)
                    self._avoidance.begin(Way(stores[first]), str(error) or type(error).__name__)
                continue
            try:
                self._take(spread, addresses, *self._events.get(timeout=SILENT_S))
            except queue.Empty:  # each store should have said by now that nothing came
                break
        self._here = {stores[bulk] for bulk in spread.here}
        for store in self._here:
            self._avoidance.end(Way(store))

    def _hear(self, store: StoreAddress, message: msgspec.Struct | None) -> None:
        self._events.put((store, message))

    def _wait_until_ready(self) -> dict[StoreAddress, BulkAddress]:
        """Return the stores that have room, and where they take bytes."""
        ready: dict[StoreAddress, BulkAddress] = {}
        asked = set(self._links)
        while asked:
            try:
                store, message = self._events.get(timeout=ANSWER_S)
            except queue.Empty:
                for store in asked:
                    self._avoidance.begin(Way(store), "it does not answer")
                break
            asked.discard(store)
            if isinstance(message, control.Ready):
                ready[store] = self._links[store].bulk.result(0)  # it was told before
            elif message is None:
                self._avoidance.begin(Way(store), "it does not answer")
        return ready

    def _push(self, first: BulkAddress, onward: list[BulkAddress]) -> None:
        header = _write_onward(onward) if onward else b""
        value, segments = self.parcel.value, list(parcel.segments(self._encoded))

        def push(start: int, nbytes: int) -> None:
            parts = parcel.stripe_of(segments, start, nbytes)
            self._pool.use(first, lambda c: c.push(value, start, nbytes, parts, header))

        bulk.in_parallel([partial(push, *s) for s in bulk.stripes(self.parcel.nbytes)])

    def _take(
        self,
        spread: "Spread[BulkAddress]",
        addresses: dict[StoreAddress, BulkAddress],
        store: StoreAddress,
        message: msgspec.Struct | None,
    ) -> None:
        """Take in what a store says of the value."""
        if (machine := addresses.get(store)) is None:
            return
        match message:
            case control.Stored():
                spread.arrived(machine)
            case control.Broken():
                spread.broke(machine)
            case control.Unrelayed(bulk=to, why=why):
                if to in addresses.values():
                    self._avoidance.begin(Way(to, machine), why)
                    spread.broke(to)
            case None:
                spread.lose(machine)
