"""Who wants to read an actor's output, and which workers have yet to say whether they have it.

The file of an actor that has ended lies where it lived, and nobody keeps a list of that: then all
workers are asked, and the answer is no when the last of them has said so, or has gone.  One that is
away is asked again when it is back: it may not have heard, or its answer was lost.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from remotely.protocol import control
from remotely.protocol.index import Index

_UNKNOWN = control.LogPiece(ticket=0, text="", offset=0, known=False, ended=True)


@dataclass(slots=True)
class LogQuery:
    session: str
    ticket: int
    question: control.ReadLog  # as workers are asked
    unheard: set[str]  # workers


class LogQueries:
    """Passes each question to workers, and one answer back."""

    def __init__(self, tell: Callable[[str, msgspec.Struct], object]) -> None:
        self._tell = tell
        self._asks: dict[int, LogQuery] = {}
        self._numbers = itertools.count(1)
        self._unanswered: Index[str, int] = Index()  # by worker

    def ask(self, session: str, question: control.ReadLog, workers: set[str]) -> None:
        number = next(self._numbers)
        passed_on = msgspec.structs.replace(question, ticket=number)
        self._asks[number] = LogQuery(session, question.ticket, passed_on, workers)
        for worker in workers:
            self._unanswered.add(worker, number)
            self._tell(worker, passed_on)
        if not workers:
            self._answer(number, _UNKNOWN)

    def ask_again(self, worker: str) -> None:
        """A worker is back, or its connection is a new one."""
        for number in self._unanswered.of(worker):
            self._tell(worker, self._asks[number].question)

    def hear(self, worker: str, piece: control.LogPiece) -> None:
        """Take the answer of a worker that was asked."""
        if piece.ticket in self._asks and worker in self._asks[piece.ticket].unheard:
            if piece.known:
                self._answer(piece.ticket, piece)
            else:
                self._rule_out(worker, piece.ticket)

    def remove_worker(self, worker: str) -> None:
        for number in self._unanswered.of(worker):
            self._rule_out(worker, number)

    def _rule_out(self, worker: str, number: int) -> None:
        """This worker does not have it; if it was the last that could, nobody does."""
        ask = self._asks[number]
        ask.unheard.discard(worker)
        self._unanswered.discard(worker, number)
        if not ask.unheard:
            self._answer(number, _UNKNOWN)

    def _answer(self, number: int, piece: control.LogPiece) -> None:
        ask = self._asks.pop(number)
        for worker in ask.unheard:
            self._unanswered.discard(worker, number)
        self._tell(ask.session, msgspec.structs.replace(piece, ticket=ask.ticket))
