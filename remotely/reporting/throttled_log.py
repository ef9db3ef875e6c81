"""What goes wrong again and again is told once a minute, with how often it was.

Who reaches a port, or has a key, must not fill a disk with our log; nor must a machine that has no
room for something that is tried each second.  Pure: `now` is handed in.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 60.0
MAX_SOURCES = 10_000  # addresses can be made up; those that were told of longest ago are forgotten


@dataclass
class _Told:
    at: float
    since: int = 0  # complaints that were counted only


class Complaints:
    """Passes on to `tell` the first complaint about each source in a minute."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def add(self, source: str, sentence: str, now: float) -> None:
        """Tell it, or count it.  `now` is in seconds, of a clock that never goes back."""
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
