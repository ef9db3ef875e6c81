"""The values that a store has or expects, their owners, and the end of their memory.

A value that its owner has announced is expected until all of its stripes (bulk.py) have arrived.
What an actor offers is here from the beginning.  A value ends when its owner releases it or is
gone.  But what an actor has offered outlives it for the client that has claimed it: that knows of
it by a reply.  A result that is not claimed in time is dropped, since the reply may never have
arrived, and so is a value that the store has fetched, if no actor has asked for it in a while.  The
memory of a value is free when nobody reads or writes it any more: see `using`.

The bookkeeping is pure but for its lock: the room of a value, and the clock, are the caller's.  Any
thread may use it.
"""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from remotely.values import arena
from remotely.values.arena import Arena, Borrower, Loan, StoredValue
from remotely.values.borrowing import Lender

CLAIM_S = 60.0  # how long a result waits for a client that is stopped, or has lost its connection
KEPT_S = 5.0  # what was fetched, after it was last asked for: others of a group are about to ask
FETCHED = "fetched"  # the owner of what this store has fetched


class Room(Protocol):
    """Where a value lies."""

    memory: memoryview

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend it to an actor; return None if there is no room for that."""

    def release(self) -> None:
        """It is needed no more."""


@dataclass(slots=True, eq=False)
class Value:
    """One value.

    owner      the connection of a client, or an actor, that may release it; None: that has ended;
               FETCHED: the store itself
    claimant   the connection of the client that has claimed it
    arrived    the stripes that have: their starts and lengths
    moved_at   when the last byte of it came, or it was announced; or when its actor ended, or the
               connection of its claimant; or when what was fetched was last asked for
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
        """Add a value; false, and its room is released, if there is one of that name."""
        value = Value(name, room, owner, is_here, now)
        with self._lock:
            if name not in self._values:
                self._values[name] = value
                return True
        room.release()
        return False

    @contextmanager
    def using(self, name: bytes, is_here: bool | None = True) -> Iterator[Value | None]:
        """Keep a value's memory meanwhile; None if there is none: here, or expected, or either."""
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
        """A stripe of a value is there; true if with it all of the value is, for the first time."""
        with self._lock:
            value.arrived.add((start, nbytes))
            if value.is_here or sum(n for _, n in value.arrived) < value.room.memory.nbytes:
                return False
            value.is_here = True
            return True

    def drop(self, name: bytes) -> None:
        """It is needed no more."""
        with self._lock:
            if (value := self._values.pop(name, None)) is not None:
                value.is_dropped = True
                self._free(value)

    def drop_of(self, client: Hashable, now: float) -> None:
        """The connection of a client is gone; on another, it may claim again what it had."""
        for value in self._all():
            if value.owner == client:
                self.drop(value.name)
            elif value.claimant == client:
                value.claimant, value.moved_at = None, now

    def claim(self, name: bytes, client: Hashable) -> None:
        """A client knows of a result, and will release it."""
        if (value := self._values.get(name)) is not None:
            value.claimant = client

    def leave(self, actor: Hashable, now: float) -> None:
        """An actor has ended: what it had offered stays if a client has claimed it."""
        for value in self._all():
            if value.owner == actor:
                value.owner, value.moved_at = None, now

    def tidy(self, now: float) -> None:
        """Drop results left unclaimed by an ended actor, and fetched values that none needs."""
        for value in self._all():
            is_nobodys = value.owner is None and value.claimant is None
            if (is_nobodys and value.moved_at < now - CLAIM_S) or (
                value.owner is FETCHED and value.moved_at < now - KEPT_S
            ):
                self.drop(value.name)

    def clients(self) -> set[Hashable]:
        """Return the owners and the claimants of values."""
        return {peer for value in self._all() for peer in (value.owner, value.claimant)} - {None}

    def stalled(self, before: float) -> list[Value]:
        """Return what is expected, and of which nothing has come since then."""
        return [value for value in self._all() if not value.is_here and value.moved_at < before]

    def _all(self) -> list[Value]:
        return list(self._values.values())

    def _free(self, value: Value) -> None:
        if value.is_dropped and not value.users:
            value.users = -1  # once
            value.room.release()


# --- where values lie -----------------------------------------------------------------------------


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
    """What an actor has lent to this process; it outlives the actor."""

    def __init__(self, lender: Lender, loan: Loan) -> None:
        _, (self.memory,) = lender.open(loan)

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend a copy: only the actor itself could lend the original once more."""
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
