"""The limit of restarts: `max_restarts` within RESTARTS_WITHIN_S, for an actor or a whole pool."""

from collections import deque

from remotely.protocol.lease import RESTARTS_WITHIN_S


class RestartLimit:
    """Counts restarts, and forgets each after RESTARTS_WITHIN_S."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: deque[float] = deque()  # times of the restarts

    def allow(self, most: int, now: float) -> bool:
        """Count a restart; return False, and do not count it, if there were `most` already."""
        while self._begun and self._begun[0] <= now - RESTARTS_WITHIN_S:
            self._begun.popleft()
        if len(self._begun) >= most:
            return False
        self._begun.append(now)
        return True
