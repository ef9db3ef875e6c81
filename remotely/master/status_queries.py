"""Who asks for the status, and which peers have yet to say what theirs is.

Nobody reports what nobody asks for.  A question has all workers and clients say what they have now,
and is answered when the last of them has, or at the master's first tick after PATIENCE_S: one that
is stopped, or busy in C, must not keep the others from being seen.  A question that comes meanwhile
is answered with the first, so who asks often asks no more of the cluster.  Pure.
"""

from collections.abc import Callable, Iterable

import msgspec

from remotely.protocol import control

PATIENCE_S = 1.0


class StatusQueries:
    """`answer(session, ticket)` is called when the figures are there."""

    def __init__(
        self, tell: Callable[[str, msgspec.Struct], bool], answer: Callable[[str, int], None]
    ) -> None:
        self._tell = tell
        self._answer = answer
        self._asks: list[tuple[str, int]] = []
        self._unheard: set[str] = set()
        self._until = 0.0

    def ask(self, session: str, ticket: int, peers: Iterable[str], now: float) -> None:
        is_first = not self._asks
        self._asks.append((session, ticket))
        if is_first:
            self._until = now + PATIENCE_S
            question = control.AskFigures()
            self._unheard = {peer for peer in peers if self._tell(peer, question)}
            self._answer_if_heard()

    def hear(self, peer: str) -> None:
        """A peer has answered, or has gone."""
        if peer in self._unheard:
            self._unheard.discard(peer)
            self._answer_if_heard()

    def expire(self, now: float) -> None:
        """Answer without those that are silent."""
        if self._asks and now >= self._until:
            self._unheard.clear()
            self._answer_if_heard()

    def _answer_if_heard(self) -> None:
        if not self._unheard:
            asks, self._asks = self._asks, []
            for session, ticket in asks:
                self._answer(session, ticket)
