"""A shelf: values by name, in memory of this machine, and the parties that hold each.

A value that is elsewhere for its reader is on a shelf here:

    in the store    what clients announce, what actors offer, and what it has fetched itself
    in an actor     the results that it has offered, since it sends them itself if the store cannot

Whoever knows the name of a value may drop it: a secret that only those who need it were told.  A
value that nobody drops stays as long as one of its holders, and `grace_s` longer.  A holder is
anything with an end that is noticed, such as a connection:

    event                              the value
    add      with its first holder     is here, or expected until all of its stripes (bulk.py) are
    hold     by another party          has one more
    drop     it is not needed          is gone
    lost     a holder has ended        has one less; without any, it is gone after `grace_s`

The memory of a value that is gone is free once no thread refers to it any more.

The bookkeeping is pure except for its lock: the caller passes the room of a value, and the time.
Any thread may use it.
"""

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Room(Protocol):
    """The memory of a value, as long as this object exists."""

    @property
    def memory(self) -> memoryview: ...


R = TypeVar("R", bound=Room)


@dataclass(slots=True, eq=False)
class Value(Generic[R]):
    """One value.

    moved_at   the time of the last event: it was added, bytes arrived, it was asked for, or its
               last holder ended
    arrived    the starts and lengths of the stripes that have arrived
    """

    name: bytes
    room: R
    holders: set[Hashable]
    grace_s: float
    is_here: bool
    moved_at: float
    arrived: set[tuple[int, int]] = field(default_factory=set)
    is_dropped: bool = False


class Shelf(Generic[R]):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[bytes, Value[R]] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._values

    def add(
        self,
        name: bytes,
        room: R,
        holder: Hashable | None,
        *,
        grace_s: float = 0.0,
        is_here: bool = True,
        now: float = 0.0,
    ) -> bool:
        """Add a value; return false if there is one of that name."""
        holders = set() if holder is None else {holder}
        value = Value(name, room, holders, grace_s, is_here, now)
        with self._lock:
            return self._values.setdefault(name, value) is value

    def get(self, name: bytes, is_here: bool | None = True) -> Value[R] | None:
        """Return a value that is here, expected, or (None) either; None if there is no such."""
        value = self._values.get(name)
        return value if value is not None and is_here in (None, value.is_here) else None

    def arrive(self, value: Value[R], start: int, nbytes: int) -> bool:
        """Record a stripe that has arrived; return true if it completes the value."""
        with self._lock:
            value.arrived.add((start, nbytes))
            if value.is_here or sum(n for _, n in value.arrived) < value.room.memory.nbytes:
                return False
            value.is_here = True
            return True

    def hold(self, name: bytes, holder: Hashable) -> None:
        """Record that another party keeps a value, if it is here."""
        with self._lock:
            if (value := self._values.get(name)) is not None:
                value.holders.add(holder)

    def drop(self, name: bytes) -> None:
        """Forget a value."""
        with self._lock:
            if (value := self._values.pop(name, None)) is not None:
                value.is_dropped = True

    def lost(self, holder: Hashable, now: float) -> None:
        """Record the end of a party, which holds nothing any more."""
        for value in self.held_by(holder):
            with self._lock:
                value.holders.discard(holder)
                value.moved_at = now
                is_over = not value.holders and not value.grace_s
            if is_over:
                self.drop(value.name)

    def tidy(self, now: float) -> None:
        """Drop the values that have had no holder for longer than their `grace_s`."""
        for value in self.all():
            if not value.holders and value.moved_at < now - value.grace_s:
                self.drop(value.name)

    def all(self) -> list[Value[R]]:
        with self._lock:
            return list(self._values.values())

    def held_by(self, holder: Hashable) -> list[Value[R]]:
        return [value for value in self.all() if holder in value.holders]

    def holders(self) -> set[Hashable]:
        """Return all holders of values."""
        with self._lock:
            return {holder for value in self._values.values() for holder in value.holders}

    def stalled(self, before: float) -> list[Value[R]]:
        """Return the expected values of which nothing has arrived since `before`."""
        return [value for value in self.all() if not value.is_here and value.moved_at < before]
