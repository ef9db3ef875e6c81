"""Limits on output: a warning that repeats is logged once a minute, with how often it came.

Whoever reaches a port, or has a key, must not fill a disk with our log.  Nor must a machine that
lacks room for something we try each second.  Pure: `now` is handed in.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 60.0
MAX_SOURCES = 10_000  # addresses can be made up; the oldest are forgotten


@dataclass
class _Told:
    at: float
    since: int = 0  # warnings that were only counted


class ThrottledLog:
    """Passes to `tell` the first warning about each source in a minute."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def add(self, source: str, sentence: str, now: float) -> None:
        """Log it, or count it.  `now` is in seconds, of a clock that never goes back."""
        last = self._told.get(source)
        if last is not None and now - last.at < EVERY_S:
            last.since += 1
            return
        if last is not None and last.since:
            sentence += f" (and {last.since:,} times in the {now - last.at:.0f} s before)"
        self._told[source] = _Told(now)
        self._told.move_to_end(source)
        if len(self._told) > MAX_SOURCES:
            self._told.popitem(last=False)
        self._tell(sentence)


class TokenBucket:
    """A rate limit: so much a second, and no more than that at once.

    Holds a second's worth of tokens, and refills at that rate.
    """

    def __init__(self, a_second: float, now: float) -> None:
        self._a_second = a_second
        self._left = a_second
        self._filled_at = now

    def take(self, amount: float, now: float) -> bool:
        """Return whether so much may pass now, and count it if it may."""
        filled = self._left + (now - self._filled_at) * self._a_second
        self._left = min(self._a_second, filled)
        self._filled_at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True
