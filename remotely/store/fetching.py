"""What a store fetches from other machines for its actors: once, however many ask."""

import threading
import time
from concurrent.futures import Future

from remotely.protocol.address import place
from remotely.protocol.control import BulkAddress, Gone
from remotely.store import rooms
from remotely.store.bulk_server import GONE
from remotely.store.shelf import Shelf
from remotely.transport import bulk
from remotely.transport.bulk import ValueGone
from remotely.transport.listening import nearest

KEPT_S = 5.0  # after it was last asked for: the other members of a group are about to ask


class Fetching:
    """Any thread may use it.  `own` is the address of this store."""

    def __init__(self, shelf: Shelf, own: BulkAddress) -> None:
        self._shelf = shelf
        self.own = own
        self._lock = threading.Lock()
        self._running: dict[bytes, Future[Gone | None]] = {}  # by name: why not
        self._asked_at: dict[bytes, float] = {}

    def fetch(self, name: bytes, nbytes: int, address: BulkAddress) -> Gone | None:
        """Have a value here; return why that cannot be."""
        with self._lock:
            with self._shelf.using(name) as value:
                if value is not None:
                    if value.owner is self:
                        self._asked_at[name] = time.monotonic()
                    return None
            running = self._running.get(name)
            if is_first := running is None:
                running = self._running[name] = Future()
        if is_first:
            why: Gone | None = Gone(why="it cannot be fetched")
            try:
                why = self._fetch(name, nbytes, address)
            finally:
                with self._lock:
                    del self._running[name]
                running.set_result(why)
        return running.result()

    def tidy(self) -> None:
        """Now and then: let go what nobody has asked for in a while."""
        with self._lock:
            due = time.monotonic() - KEPT_S
            for name in [n for n, at in self._asked_at.items() if at < due]:
                if name not in self._running:
                    del self._asked_at[name]
                    self._shelf.drop(name)

    def _fetch(self, name: bytes, nbytes: int, address: BulkAddress) -> Gone | None:
        if address == self.own:
            return Gone(why=GONE)
        if (room := rooms.reserve(nbytes)) is None:
            return Gone(why="this machine has no memory left for large values")
        try:
            bulk.fetch(address, name, room.memory)
        except ValueGone as gone:
            room.release()
            return Gone(why=str(gone))
        except OSError as error:
            room.release()
            why = f"{place(nearest(address.tcp))} cannot be reached from here: {error}"
            return Gone(why=why)
        with self._lock:
            self._asked_at[name] = time.monotonic()
            self._shelf.add(name, room, self, is_here=True)
        return None
