"""Who waits for room, and whose turn it is.

Requests that ask for the same stand in one line.  When there is new room, the first of each line is
tried, in the order of asking; one that has to wait on speaks for all behind it.  So a thousand that
wait in vain for the same cost what one does, and who asks for little still overtakes who asks for
more than there is.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.resources import Resources


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request for which there is no room yet."""

    number: int  # in the order of asking
    session: str
    place: control.Place
    deadline: float

    @property
    def request(self) -> control.Request:
        return self.place.request


class WaitingList:
    """Those who wait, one request an actor."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiters: dict[str, Waiter] = {}  # by actor, in the order of asking
        # By what they ask for.  A plain dict that loses its first again and again finds it slowly.
        self._queues: dict[tuple[Resources, str], OrderedDict[str, Waiter]] = {}
        self._by_session: Index[str, str] = Index()
        self._by_name: Index[str, str] = Index()

    def __len__(self) -> int:
        return len(self._waiters)

    def get(self, actor: str) -> Waiter | None:
        """Return the request of an actor that waits."""
        return self._waiters.get(actor)

    def add(self, session: str, place: control.Place, deadline: float) -> None:
        """Have a request wait behind all others; the same actor's earlier one is to be removed."""
        request, waiter = place.request, Waiter(next(self._numbers), session, place, deadline)
        self._waiters[request.actor] = waiter
        self._queues.setdefault(_kind(request), OrderedDict())[request.actor] = waiter
        self._by_session.add(session, request.actor)
        if request.named:
            self._by_name.add(request.name, request.actor)

    def remove(self, actor: str) -> Waiter | None:
        """Have an actor wait no longer; return its request, if it did."""
        if (waiter := self._waiters.pop(actor, None)) is None:
            return None
        kind = _kind(waiter.request)
        del self._queues[kind][actor]
        if not self._queues[kind]:
            del self._queues[kind]
        self._by_session.discard(waiter.session, actor)
        self._by_name.discard(waiter.request.name, actor)
        return waiter

    def remove_session(self, session: str) -> None:
        for actor in self._by_session.of(session):
            self.remove(actor)

    def for_name(self, name: str) -> list[Waiter]:
        """Return who waits for an actor of this name, as its user named it."""
        return [self._waiters[actor] for actor in self._by_name.of(name)]

    def overdue(self, now: float) -> list[Waiter]:
        """Return who has waited long enough.  This looks at all, as once a second it may."""
        return [waiter for waiter in self._waiters.values() if waiter.deadline <= now]

    def serve(
        self, may_fit: Callable[[Resources, str], bool], is_served: Callable[[Waiter], bool]
    ) -> None:
        """Try those for whom there may be room, in the order of asking; remove who is served.

        `is_served` may remove others.
        """
        turns = [(self._first(kind).number, kind) for kind in self._queues if may_fit(*kind)]
        heapq.heapify(turns)
        while turns:
            number, kind = heapq.heappop(turns)
            if kind not in self._queues:
                continue
            first = self._first(kind)
            if first.number == number:
                if not is_served(first):
                    continue
                self.remove(first.request.actor)
            if kind in self._queues:
                heapq.heappush(turns, (self._first(kind).number, kind))

    def _first(self, kind: tuple[Resources, str]) -> Waiter:
        return next(iter(self._queues[kind].values()))


def _kind(request: control.Request) -> tuple[Resources, str]:
    return request.resources, request.python
