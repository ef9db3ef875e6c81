"""Questions of clients that several peers have to answer: for an actor's output, for the status.

The file of an actor that has ended lies where it lived, and nobody keeps a list of that: then all
workers are asked, and the answer is no when the last of them has said so, or has gone.  One that is
away is asked again when it is back: it may not have heard, or its answer was lost.

Nobody reports what nobody asks for.  A question for the status has all workers and clients say what
they have now.  It is answered when the last of them has, or at the master's first tick after
PATIENCE_S: one that is stopped, or busy in C, must not keep the others from being seen.  A question
that comes meanwhile is answered with the first, so asking often asks no more of the cluster.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from remotely.protocol import control
from remotely.protocol.index import Index

PATIENCE_S = 1.0
_UNKNOWN = control.LogPiece(ticket=0, text="", offset=0, known=False, ended=True)


@dataclass(slots=True)
class LogQuery:
    session: str
    ticket: int
    question: control.ReadLog  # as workers are asked
    unheard: set[str]  # workers


class LogQueries:
    """Passes each question to workers, and one answer back."""

    def __init__(self, tell: Callable[[str, msgspec.Struct], None]) -> None:
        self._tell = tell
        self.asks: dict[int, LogQuery] = {}
        self._numbers = itertools.count(1)
        self._unanswered: Index[str, int] = Index()  # by worker

    def ask(self, session: str, question: control.ReadLog, workers: set[str]) -> None:
        number = next(self._numbers)
        passed_on = msgspec.structs.replace(question, ticket=number)
        self.asks[number] = LogQuery(session, question.ticket, passed_on, workers)
        for worker in workers:
            self._unanswered.add(worker, number)
            self._tell(worker, passed_on)
        if not workers:
            self._answer(number, _UNKNOWN)

    def ask_again(self, worker: str) -> None:
        """A worker is back, or its connection is a new one."""
        for number in self._unanswered.of(worker):
            self._tell(worker, self.asks[number].question)

    def hear(self, worker: str, piece: control.LogPiece) -> None:
        """Take the answer of a worker that was asked."""
        if piece.ticket in self.asks and worker in self.asks[piece.ticket].unheard:
            if piece.known:
                self._answer(piece.ticket, piece)
            else:
                self._rule_out(worker, piece.ticket)

    def remove_worker(self, worker: str) -> None:
        for number in self._unanswered.of(worker):
            self._rule_out(worker, number)

    def _rule_out(self, worker: str, number: int) -> None:
        """This worker does not have it; if it was the last that could, nobody does."""
        ask = self.asks[number]
        ask.unheard.discard(worker)
        self._unanswered.discard(worker, number)
        if not ask.unheard:
            self._answer(number, _UNKNOWN)

    def _answer(self, number: int, piece: control.LogPiece) -> None:
        ask = self.asks.pop(number)
        for worker in ask.unheard:
            self._unanswered.discard(worker, number)
        self._tell(ask.session, msgspec.structs.replace(piece, ticket=ask.ticket))


class StatusQueries:
    """Asks the peers for their figures.  `due` says which questions can be answered with them."""

    def __init__(self, tell: Callable[[str, msgspec.Struct], None]) -> None:
        self._tell = tell
        self._asks: list[tuple[str, int]] = []  # sessions, and their tickets
        self._unheard: set[str] = set()
        self._until = 0.0

    def ask(self, session: str, ticket: int, peers: Iterable[str], now: float) -> None:
        self._asks.append((session, ticket))
        if len(self._asks) == 1:
            self._until = now + PATIENCE_S
            self._unheard = set(peers)
            for peer in self._unheard:
                self._tell(peer, control.AskFigures())

    def hear(self, peer: str) -> None:
        """A peer has answered, has gone, or cannot be reached."""
        self._unheard.discard(peer)

    def due(self, now: float) -> list[tuple[str, int]]:
        """Take the questions for which all have answered that will."""
        if self._unheard and now < self._until:
            return []
        self._unheard.clear()
        asks, self._asks = self._asks, []
        return asks
