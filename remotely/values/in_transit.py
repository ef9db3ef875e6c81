"""Shared arrays in transit: pickled as addresses, so they must live until the pickle is read.

`codec.encode` collects them.  A call that has them among its arguments holds them until its outcome
(`CallFuture.travelling`), and a ref holds them as long as it lives.  An actor is not told when its
result has arrived.  So it keeps the arrays of a result until the reader acknowledges that it has
opened them, and for at most KEEP_S, since the caller may have ended, or may ignore the result.  The
arrays of a result in the store are also kept with it (machine_store.py), since the caller may fetch
it at any time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

KEEP_S = 60.0  # how long a result waits for a caller that is suspended


class InTransit(Protocol):
    """One object in one pickle."""

    def has_arrived(self) -> bool: ...


is_used = False  # set with the first shared array of this process; until then nothing is collected
_collecting: ContextVar[list[InTransit] | None] = ContextVar("remotely_in_transit", default=None)
_kept: deque[tuple[float, InTransit]] = deque()  # for results, with their deadlines


@contextmanager
def collected() -> Iterator[list[InTransit]]:
    """Yield a list of the objects passed to `note` within the block."""
    found: list[InTransit] = []
    token = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(token)


def note(needed: Sequence[InTransit]) -> None:
    """Record objects that the current pickle needs until it has been read."""
    if (found := _collecting.get()) is not None:
        found.extend(needed)


def keep_result(needed: Sequence[InTransit], now: float) -> None:
    """Keep the objects that a result needs until they have arrived, for at most KEEP_S."""
    _kept.extend((now + KEEP_S, each) for each in needed)


def tidy(now: float) -> None:
    """Release what has arrived or expired; called every few seconds."""
    for _ in range(len(_kept)):  # one by one: another thread may add to them
        until, each = _kept.popleft()
        if now < until and not each.has_arrived():
            _kept.append((until, each))


def forget() -> None:
    """In a forked child: drop everything, since the parent keeps it."""
    _kept.clear()
