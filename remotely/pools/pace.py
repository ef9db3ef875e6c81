"""How many calls a member of a pool is sent before it has answered the first.  Pure.

A member that gets its next call only when it has answered the last one is idle for a round trip in
between, which is longer than a tiny function runs.  So it is sent work for the next `AHEAD_S`,
which it is found to take by its own pace.  That is one call if a call is longer; no call waits
behind a long one while another member is idle.

Near the end nobody takes more than its share of what is left.
"""

AHEAD_S = 0.02
MOST_AHEAD = 64
_WEIGHT = 0.25  # of the newest call in the mean


class Pace:
    """The pace of one member, which serves `at_a_time` calls at a time."""

    def __init__(self, at_a_time: int = 1) -> None:
        self._at_a_time = at_a_time
        self._mean_s = 0.0  # between two answers; 0 until there is one
        self._answered = 0.0

    def note(self, sent: float, answered: float) -> None:
        """Take in that a call sent at one moment was answered at another."""
        took_s = max(1e-6, answered - max(sent, self._answered))
        self._answered = answered
        self._mean_s += (took_s - self._mean_s) * (_WEIGHT if self._mean_s else 1.0)

    def most(self, waiting: int, members: int) -> int:
        """Return how many calls it may have, where so many wait for one of so many members."""
        by_time = int(AHEAD_S / self._mean_s) if self._mean_s else 1
        share = -(-waiting // members)
        return max(self._at_a_time, min(by_time, share, MOST_AHEAD))
