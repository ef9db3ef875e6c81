"""The values that a store has or expects: their owners, and when their memory is freed.

A value that its owner has announced is expected until all of its stripes (bulk.py) have arrived.
A value that an actor offers is here from the beginning.  A value is dropped when its owner releases
it or is gone.  An offered value outlives its actor if a client, which knows it from a reply, has
claimed it.  A result that is not claimed in time is dropped, since the reply may not have arrived.
So is a fetched value that no actor has asked for in a while.  The memory of a dropped value is
freed when no thread reads or writes it any more: see `using`.

The bookkeeping is pure except for its lock: the caller passes the room of a value, and the time.
Any thread may use it.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from remotely.values import arena
from remotely.values.arena import Arena, Borrower, Loan, StoredValue
from remotely.values.borrowing import Lender

CLAIM_S = 60.0  # how long a result waits for a client that is suspended or disconnected
KEPT_S = 5.0  # how long a fetched value is kept for later requests of the same group
FETCHED = "fetched"  # the owner of values that this store has fetched


class Room(Protocol):
    """The memory of a value."""

    memory: memoryview

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend it to an actor; return None if there is no room for that."""

    def release(self) -> None:
        """Free the memory."""


@dataclass(slots=True, eq=False)
class Value:
    """One value.

    owner      the client's connection, or the actor, that may release it; None if that has ended;
               FETCHED for the store itself
    claimant   the connection of the client that has claimed it
    arrived    the starts and lengths of the stripes that have arrived
    moved_at   the time of the last event: it was announced, bytes arrived, its actor ended, the
               connection of its claimant ended, or, if it was fetched, an actor asked for it
    """

    name: bytes
    room: Room
    owner: Hashable
    is_here: bool
    moved_at: float
    claimant: Hashable = None
    arrived: set[tuple[int, int]] = field(default_factory=set)
    users: int = 0
    is_dropped: bool = False


class Shelf:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, Value] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._values

    def add(
        self, name: bytes, room: Room, owner: Hashable, is_here: bool, now: float = 0.0
    ) -> bool:
        """Add a value; if there is one of that name, release its room and return false."""
        value = Value(name, room, owner, is_here, now)
        with self._lock:
            if name not in self._values:
                self._values[name] = value
                return True
        room.release()
        return False

    @contextmanager
    def using(self, name: bytes, is_here: bool | None = True) -> Iterator[Value | None]:
        """Keep a value's memory within the block.

        Yields None if there is no such value: one that is here, expected, or (None) either.
        """
        with self._lock:
            value = self._values.get(name)
            if value is not None and is_here not in (None, value.is_here):
                value = None
            if value is not None:
                value.users += 1
        try:
            yield value
        finally:
            if value is not None:
                with self._lock:
                    value.users -= 1
                    self._free(value)

    def arrive(self, value: Value, start: int, nbytes: int) -> bool:
        """Record a stripe that has arrived; return true if it completes the value."""
        with self._lock:
            value.arrived.add((start, nbytes))
            if value.is_here or sum(n for _, n in value.arrived) < value.room.memory.nbytes:
                return False
            value.is_here = True
            return True

    def drop(self, name: bytes) -> None:
        """Forget a value, and free its memory when it is not in use."""
        with self._lock:
            if (value := self._values.pop(name, None)) is not None:
                value.is_dropped = True
                self._free(value)

    def drop_of(self, client: Hashable, now: float) -> None:
        """Drop what a disconnected client owned; after reconnecting, it may claim results again."""
        for value in self._all():
            if value.owner == client:
                self.drop(value.name)
            elif value.claimant == client:
                value.claimant, value.moved_at = None, now

    def claim(self, name: bytes, client: Hashable) -> None:
        """Record that a client knows of a result, and will release it."""
        if (value := self._values.get(name)) is not None:
            value.claimant = client

    def leave(self, actor: Hashable, now: float) -> None:
        """Record the end of an actor: what it offered stays if a client has claimed it."""
        for value in self._all():
            if value.owner == actor:
                value.owner, value.moved_at = None, now

    def tidy(self, now: float) -> None:
        """Drop unclaimed results of ended actors, and fetched values that are no longer needed."""
        for value in self._all():
            is_unowned = value.owner is None and value.claimant is None
            if (is_unowned and value.moved_at < now - CLAIM_S) or (
                value.owner is FETCHED and value.moved_at < now - KEPT_S
            ):
                self.drop(value.name)

    def clients(self) -> set[Hashable]:
        """Return the owners and the claimants of values."""
        return {peer for value in self._all() for peer in (value.owner, value.claimant)} - {None}

    def stalled(self, before: float) -> list[Value]:
        """Return the expected values of which nothing has arrived since `before`."""
        return [value for value in self._all() if not value.is_here and value.moved_at < before]

    def _all(self) -> list[Value]:
        return list(self._values.values())

    def _free(self, value: Value) -> None:
        if value.is_dropped and not value.users:
            value.users = -1  # once
            value.room.release()


# --- rooms ----------------------------------------------------------------------------------------


class ArenaRoom:
    """Room in the arena of this process."""

    def __init__(self, memory: Arena, placed: StoredValue) -> None:
        self._arena = memory
        self._placed = placed
        self.memory = memory.memory_of(placed)

    def lend(self, borrower: Borrower) -> Loan | None:
        return self._arena.lend(self._placed, borrower, private=True)

    def release(self) -> None:
        self._arena.release(self._placed)


class OfferedRoom:
    """Memory that an actor has lent to this process; it outlives the actor."""

    def __init__(self, lender: Lender, loan: Loan) -> None:
        _, (self.memory,) = lender.open(loan)

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend a copy: only the actor itself could lend the original again."""
        if (room := reserve(self.memory.nbytes)) is None:
            return None
        room.memory[:] = self.memory
        loan = room.lend(borrower)
        room.release()
        return loan

    def release(self) -> None:
        self.memory = memoryview(b"")  # the loan ends with the last view


def reserve(nbytes: int) -> ArenaRoom | None:
    """Return room in the arena of this process; None if there is none."""
    ours = arena.ours()
    placed = ours.reserve(nbytes) if ours else None
    return ArenaRoom(ours, placed) if ours and placed else None
