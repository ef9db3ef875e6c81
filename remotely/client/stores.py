"""What a client has in the stores of other machines, and how its large values get there and back.

    arguments   of SEND_FROM_BYTES or more, for an actor on another machine: a Crossing
    results     stay in the store of their actor's machine, and are fetched from there

Where a store cannot be reached, values go through the sockets of the actors, as small ones do.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import zmq

from remotely.calling.threads import Threads
from remotely.client.avoidance import AVOID_S, Avoidance, Way
from remotely.client.crossing import Crossing
from remotely.client.ref import Ref
from remotely.client.store_link import BulkPool, StoreLink
from remotely.machine.shield import RLock
from remotely.protocol.control import StoreAddress
from remotely.transport import bulk
from remotely.transport.keys import KeyPair
from remotely.transport.loop import Loop
from remotely.values import arena, parcel
from remotely.values.codec import Encoded
from remotely.values.memory_peer import Unpacked
from remotely.values.parcel import SEND_FROM_BYTES, Parcel

TIDY_EVERY_S = 5.0
MAX_THREADS = 8  # more do not make a line faster


class Stores:
    """Any thread may use it."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", loop: Loop, pair: KeyPair, machine: str
    ) -> None:
        self.threads = Threads("remotely-bulk", MAX_THREADS)
        self.fetching = Threads("remotely-bulk", MAX_THREADS)  # what leaves keeps no result waiting
        self._context = context
        self._loop = loop
        self._pair = pair
        self._lock = RLock()
        self._links: dict[StoreAddress, StoreLink] = {}
        self._pool = BulkPool()
        self._avoidance = Avoidance(machine)
        self._claimed: dict[bytes, StoreAddress] = {}  # results, by name, until they are released
        self._unreleased: deque[Parcel] = deque()  # until their stores can be reached
        loop.every(TIDY_EVERY_S, self._pool.tidy)
        loop.every(TIDY_EVERY_S, self._claim_again)
        loop.every(AVOID_S, self._release_again)

    def crossing(self, encoded: Encoded, stores: Iterable[StoreAddress | None]) -> Crossing | None:
        """Return the crossing of a value to these machines; None if it goes by itself."""
        if encoded.nbytes < SEND_FROM_BYTES:
            return None
        on = self._avoidance.is_on
        links = [self._link(s) for s in dict.fromkeys(stores) if s and not on(Way(s))]
        if not links:
            return None
        return Crossing(encoded, links, self._pool, self._avoidance)

    def cross(self, ref: Ref, stores: Iterable[StoreAddress | None]) -> None:
        """Bring a ref to these machines, where it is neither there nor on its way."""
        missing = [s for s in stores if s and not any(c.covers(s) for c in ref.crossings)]
        crossing = self.crossing(ref.value, missing)
        if crossing is not None:
            ref.crossings.append(crossing)
            self.threads.run(crossing.run)

    def claim(self, result: Parcel, store: StoreAddress) -> None:
        """Have a store keep a result until it is released, though its actor may end."""
        self._claimed[result.value] = store
        if not self._avoidance.is_on(Way(store)):
            self._link(store).claim(result.value)

    def fetch(self, wanted: Parcel) -> Unpacked:
        """Fetch a value, which its store keeps until it is released.  Raises OSError, ValueGone."""
        assert wanted.store is not None
        if self._avoidance.is_on(Way(wanted.store)):
            raise ConnectionRefusedError("its store could not be reached a moment ago")
        ours = arena.ours()
        placed = ours.reserve(wanted.nbytes) if ours else None
        if ours and placed:
            memory = ours.keep(placed)
        else:
            memory = memoryview(bytearray(wanted.nbytes))

        store, value = wanted.store, wanted.value

        def pull(start: int, nbytes: int) -> None:
            stripe = memory[start : start + nbytes]
            self._pool.use(store, lambda connection: connection.pull(value, start, stripe))

        try:
            bulk.in_parallel([partial(pull, *s) for s in bulk.stripes(wanted.nbytes)])
        except OSError as error:
            self._avoidance.begin(Way(store), str(error) or type(error).__name__)
            raise
        return parcel.cut(wanted, memory)

    def release(self, unwanted: Parcel) -> None:
        """Let go a result that nobody wants any more.  Never blocks."""
        store, value = unwanted.store, unwanted.value
        self._claimed.pop(value, None)
        if store is not None and self._avoidance.is_on(Way(store)):
            self._unreleased.append(unwanted)
        elif store is not None:
            drop = partial(self._pool.use, store, lambda connection: connection.drop(value))
            self._loop.call(lambda: self.threads.run(lambda: _try(drop)))

    def close(self) -> None:
        """After the end of the loop."""
        self.threads.close()
        self.fetching.close()
        for link in list(self._links.values()):
            link.close()
        self._pool.close()

    def _link(self, address: StoreAddress) -> StoreLink:
        with self._lock:
            link = self._links.get(address)
            if link is None or link.is_broken:
                made = StoreLink(self._context, self._loop, self._pair, address, self._lose)
                link = self._links[address] = made
                for value, store in self._claimed.copy().items():
                    if store == address:
                        link.claim(value)
            return link

    def _claim_again(self) -> None:
        """Where a link broke, open another, which claims what we still hold there."""
        for store in set(self._claimed.copy().values()):
            if not self._avoidance.is_on(Way(store)):
                self._link(store)

    def _release_again(self) -> None:
        for _ in range(len(self._unreleased)):
            self.release(self._unreleased.popleft())

    def _lose(self, link: StoreLink) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]


def _try(work: Callable[[], object]) -> None:
    with contextlib.suppress(OSError):  # the store will find out by itself
        work()
