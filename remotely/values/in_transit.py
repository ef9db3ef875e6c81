"""Shared arrays in transit: they travel as addresses, and must live until the pickle has been read.

`codec.encode` collects them.  Then the call that has them among its arguments holds them until its
outcome (`CallFuture.travelling`), and so does a ref.  An actor does not learn when its result has
arrived.  So it keeps what the result needs until its reader says that it has opened it, and for
KEEP_S at most: the caller may have ended, or want no result.  What a result in the store needs is
kept with it too (machine_store.py), since its caller may fetch it at any time.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

KEEP_S = 60.0  # how long a result waits for a caller that is stopped


class InTransit(Protocol):
    """One thing in one pickle."""

    def has_arrived(self) -> bool: ...


class Used:
    """`ever`: whether this process has had any such thing; others pay nothing for it."""

    ever = False


_collecting: ContextVar[list[InTransit] | None] = ContextVar("remotely_in_transit", default=None)
_kept: deque[tuple[float, InTransit]] = deque()  # by results; until when


@contextmanager
def collected() -> Iterator[list[InTransit]]:
    """Yield a list of what is noted within."""
    found: list[InTransit] = []
    token = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(token)


def note(needed: Sequence[InTransit]) -> None:
    """The pickle that is being made needs these, until it has been read."""
    if (found := _collecting.get()) is not None:
        found.extend(needed)


def keep_result(needed: Sequence[InTransit], now: float) -> None:
    """Keep what a result needs until it has arrived, or KEEP_S are over."""
    _kept.extend((now + KEEP_S, each) for each in needed)


def tidy(now: float) -> None:
    """Let go of what has arrived; called every few seconds."""
    for _ in range(len(_kept)):  # one by one: another thread may add to them
        until, each = _kept.popleft()
        if now < until and not each.has_arrived():
            _kept.append((until, each))


def forget() -> None:
    """In a forked child: the parent keeps them."""
    _kept.clear()
