"""Objects in transit: pickled as addresses, so they must live until the pickle is read.

They are shared arrays, and the actors that an actor has made and whose handles it returns.
`codec.encode` collects them.  A call that has them among its arguments holds them until its outcome
(`CallFuture.travelling`), and a ref holds them as long as it lives.  An actor is not told when its
result has arrived.  So it keeps what a result needs until the reader has it (a shared array is
acknowledged in its memory, a handle by the master), and for at most KEEP_S, since the caller may
have ended, or may ignore the result.  What a result in the store needs is also kept with it
(machine_store.py), since the caller may fetch it at any time.
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


# Set with the first shared array of this process, and the first actor that an actor makes; until
# then nothing is collected.
is_used = False
_collecting: ContextVar[list[InTransit] | None] = ContextVar("remotely_in_transit", default=None)
_returning: ContextVar[bool] = ContextVar("remotely_returning", default=False)
_kept: deque[tuple[float, InTransit]] = deque()  # for results, with their deadlines


@contextmanager
def collected() -> Iterator[list[InTransit]]:
    """Yield a list of the objects passed to `note` within the block."""
    found: list[InTransit] = []
    outer = _collecting.get()
    try:
        _collecting.set(found)  # within `try`: Ctrl-C may strike as soon as it is set
        yield found
    finally:
        _collecting.set(outer)


@contextmanager
def returning() -> Iterator[None]:
    """Within the block, what is pickled is a result: its receiver holds the actors in it."""
    token = _returning.set(True)
    try:
        yield
    finally:
        _returning.reset(token)


def is_returning() -> bool:
    """Return whether a result is being pickled."""
    return _returning.get()


def note(needed: Sequence[InTransit]) -> None:
    """Record objects that the current pickle needs until it has been read."""
    if (found := _collecting.get()) is not None:
        found.extend(needed)


def keep_result(needed: Sequence[InTransit], now: float) -> None:
    """Keep the objects that a result needs until they have arrived, for at most KEEP_S."""
    _kept.extend((now + KEEP_S, each) for each in needed)


def tidy(now: float) -> None:
    """Release what has arrived or expired; called every few seconds, and when a handle arrives."""
    for _ in range(len(_kept)):  # one by one: another thread may add to them, or take them
        try:
            until, each = _kept.popleft()
        except IndexError:
            return
        if now < until and not each.has_arrived():
            _kept.append((until, each))


def forget() -> None:
    """In a forked child: drop everything, since the parent keeps it."""
    _kept.clear()
