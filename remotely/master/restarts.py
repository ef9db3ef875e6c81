"""Which actors have another life, and which of them are between two.

The master decides when a life ends, so that everybody hears the same: the obituary says whether
the actor is being restarted.  Its owner and whoever borrowed a handle then ask where the next life
is.  They are answered when it has a place, or when there is none after all.

    Restarter  who makes the next life            from                        where
    MAKER      the client that made the actor     the class and arguments,    wherever there is room
                                                  which it keeps
    WORKER     the worker of a detached actor     what the last life left     there, with the same
               whose process died                 behind (restart_file.py)    resources

So a detached actor survives the end of its maker, and its own.  It does not survive the loss of its
machine when its maker is gone too.  A master that was started again counts from zero.
"""

from collections import deque
from enum import Enum, auto
from typing import NamedTuple

from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.lease import RESTARTS_WITHIN_S


class Restarter(Enum):
    """Who makes the next life of an actor."""

    NOBODY = auto()
    MAKER = auto()
    WORKER = auto()


class Due(NamedTuple):
    """An actor whose next life its maker is about to ask for."""

    request: control.Request  # of the life that ended
    obituary: control.Obituary


class Restarts:
    """Counts lives, and knows those that are due."""

    def __init__(self) -> None:
        self._begun: dict[str, deque[float]] = {}  # when lives began, after the first
        self._due: dict[str, Due] = {}
        self._of_maker: Index[str, str] = Index()  # actors that are due

    def __contains__(self, actor: object) -> bool:
        return actor in self._due

    def restarter_of(
        self,
        request: control.Request,
        obituary: control.Obituary,
        maker_is_there: bool,
        now: float,
    ) -> Restarter:
        """Decide who makes the life after the one that ended, if anybody, and count it."""
        if not request.max_restarts or obituary.asked:
            return Restarter.NOBODY
        if not request.owner and not obituary.lost:
            restarter = Restarter.WORKER
        elif maker_is_there:
            restarter = Restarter.MAKER
        else:
            return Restarter.NOBODY
        return restarter if self._count(request, now) else Restarter.NOBODY

    def _count(self, request: control.Request, now: float) -> bool:
        """Count one more life of an actor; false if it has had as many as it may."""
        begun = self._begun.setdefault(request.actor, deque())
        while begun and begun[0] <= now - RESTARTS_WITHIN_S:
            begun.popleft()
        if len(begun) >= request.max_restarts:
            return False
        begun.append(now)
        return True

    def expect(self, request: control.Request, obituary: control.Obituary) -> None:
        """Its maker is told, and is to ask for its next life."""
        self._due[request.actor] = Due(request, obituary)
        self._of_maker.add(request.maker, request.actor)

    def due(self, actor: str) -> Due | None:
        return self._due.get(actor)

    def due_by(self, maker: str) -> list[Due]:
        """Return what a client is to make again."""
        return [self._due[actor] for actor in self._of_maker.of(maker)]

    def settle(self, actor: str) -> Due | None:
        """Its next life has a place, or there will be none."""
        if (due := self._due.pop(actor, None)) is not None:
            self._of_maker.discard(due.request.maker, actor)
        return due

    def forget(self, actor: str) -> None:
        """It has ended for good."""
        self.settle(actor)
        self._begun.pop(actor, None)
