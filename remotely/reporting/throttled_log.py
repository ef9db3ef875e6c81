"""Rate limits on output: a repeated warning is logged once a minute, with the number of repeats.

Peers that reach a port or have a key must not be able to fill a disk with log lines.  Nor must an
operation that fails every second for lack of resources.  Pure: the caller passes `now`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

SAME_AGAIN_S = 60.0
MAX_SOURCES = 10_000  # addresses can be made up; the oldest are forgotten


@dataclass
class _Told:
    at: float
    since: int = 0  # warnings that were only counted


class ThrottledLog:
    """Passes to `tell` the first warning of each source in a minute."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def add(self, source: str, sentence: str, now: float) -> None:
        """Log a warning, or count it.  `now` is in seconds, from a monotonic clock."""
        last = self._told.get(source)
        if last is not None and now - last.at < SAME_AGAIN_S:
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
    """A rate limit of `a_second` tokens a second, with a burst of at most one second's tokens."""

    def __init__(self, a_second: float, now: float) -> None:
        self._a_second = a_second
        self._left = a_second
        self._filled_at = now

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` tokens if there are as many; return whether there were."""
        filled = self._left + (now - self._filled_at) * self._a_second
        self._left = min(self._a_second, filled)
        self._filled_at = now
        if amount > self._left:
            return False
        self._left -= amount
        return True
