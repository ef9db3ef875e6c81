"""A rate limit: so much a second, and no more than that at once.  Pure."""


class TokenBucket:
    """Holds a second's worth of tokens, and refills at that rate."""

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
