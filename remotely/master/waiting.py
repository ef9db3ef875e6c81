"""The queue of placement requests, and the order in which they are retried.

Requests for the same resources form a line.  When room is freed, the first of each line is tried,
oldest first; if it has to keep waiting, so do all behind it.  So a thousand equal requests cost as
much as one.  A request for few resources may overtake one for more than is free, but not forever
(reservation.py).  A gang is a line of its own: its requests are placed together, or wait together.

A request for a name that an actor still holds, which was asked to end, is in no line: it is set
aside until the name is freed, and then takes the place in its line that it would have had.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from remotely.protocol import control
from remotely.protocol.index import Index
from remotely.protocol.resources import Resources


class RequestKind(NamedTuple):
    """What the requests of one line have in common."""

    resources: Resources
    python: str
    machine: str
    near: str
    gang: str


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request for which there is no room yet."""

    number: int  # in order of arrival
    session: str
    place: control.Place
    since: float
    deadline: float
    kind: RequestKind
    inside: str = ""  # the actor that makes the request

    @property
    def request(self) -> control.Request:
        return self.place.request


class WaitingList:
    """The waiting requests, one per actor."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiters: dict[str, Waiter] = {}  # by actor, in order of arrival
        # Ordered, because a dict that often lost its first item is slow to find the next.
        self._queues: dict[RequestKind, OrderedDict[str, Waiter]] = {}
        self._set_aside: Index[str, str] = Index()  # by name, those that wait for it
        self._by_session: Index[str, str] = Index()
        self._by_name: Index[str, str] = Index()
        self._by_gang: Index[str, str] = Index()
        self._by_near: Index[str, str] = Index()  # by the actor that they must be near
        self._by_inside: Index[str, str] = Index()  # by the actor that makes them
        self.changed: dict[str, None] = {}  # actors whose own requests have changed

    def __len__(self) -> int:
        return len(self._waiters)

    def get(self, actor: str) -> Waiter | None:
        """Return the waiting request of an actor."""
        return self._waiters.get(actor)

    def __contains__(self, actor: object) -> bool:
        return actor in self._waiters

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters.values())

    def add(
        self,
        session: str,
        place: control.Place,
        since: float,
        deadline: float,
        inside: str = "",
    ) -> Waiter:
        """Append a request.  An earlier one for the same actor must have been removed.

        `inside`: the actor that makes it, if it is not a script.
        """
        request = place.request
        kind = kind_of(request)
        waiter = Waiter(next(self._numbers), session, place, since, deadline, kind, inside)
        self._waiters[request.actor] = waiter
        self._queues.setdefault(kind, OrderedDict())[request.actor] = waiter
        self._by_session.add(session, request.actor)
        if request.named:
            self._by_name.add(request.name, request.actor)
        if kind.gang:
            self._by_gang.add(kind.gang, request.actor)
        if request.near:
            self._by_near.add(request.near, request.actor)
        if inside:
            self._by_inside.add(inside, request.actor)
            self.changed[inside] = None
        return waiter

    def remove(self, actor: str) -> Waiter | None:
        """Remove and return the request of an actor; None if there is none."""
        if (waiter := self._waiters.pop(actor, None)) is None:
            return None
        kind, name = waiter.kind, waiter.request.name
        self._leave_line(waiter)
        self._by_session.discard(waiter.session, actor)
        if waiter.request.named:
            self._by_name.discard(name, actor)
            self._set_aside.discard(name, actor)
        self._by_gang.discard(kind.gang, actor)
        self._by_near.discard(kind.near, actor)
        if waiter.inside:
            self._by_inside.discard(waiter.inside, actor)
            self.changed[waiter.inside] = None
        return waiter

    def _leave_line(self, waiter: Waiter) -> None:
        """Remove a request from its line, if it is in one."""
        if (line := self._queues.get(waiter.kind)) is not None:
            line.pop(waiter.request.actor, None)
            if not line:
                del self._queues[waiter.kind]

    def set_aside(self, waiter: Waiter) -> None:
        """Have a request wait for its name, out of its line."""
        self._leave_line(waiter)
        self._set_aside.add(waiter.request.name, waiter.request.actor)

    def is_set_aside(self, actor: str) -> bool:
        """Return whether the request of an actor waits for its name."""
        return actor not in self._queues.get(self._waiters[actor].kind, ())

    def take_back(self, name: str) -> bool:
        """Put the requests that were set aside for a name into their lines; return whether there
        were any."""
        taken = [self._waiters[actor] for actor in self._set_aside.pop(name)]
        for kind in {waiter.kind for waiter in taken}:
            line = [*self._queues.get(kind, OrderedDict()).values()]
            line += (waiter for waiter in taken if waiter.kind == kind)
            line.sort(key=lambda waiter: waiter.number)
            self._queues[kind] = OrderedDict((waiter.request.actor, waiter) for waiter in line)
        return bool(taken)

    def remove_session(self, session: str) -> None:
        for actor in self._by_session.of(session):
            self.remove(actor)

    def for_name(self, name: str) -> list[Waiter]:
        """Return the requests for this name, if a user gave it."""
        return [self._waiters[actor] for actor in self._by_name.of(name)]

    def gang_size(self, gang: str) -> int:
        """Return how many requests of a gang wait."""
        return self._by_gang.count(gang)

    def gang(self, gang: str) -> list[Waiter]:
        """Return the waiting requests of a gang."""
        return [self._waiters[actor] for actor in self._by_gang.of(gang)]

    def any_near(self, actor: str) -> bool:
        """Return whether any request must be near an actor."""
        return actor in self._by_near

    def any_inside(self, actor: str) -> bool:
        """Return whether an actor has made any request that waits."""
        return actor in self._by_inside

    def makers(self) -> list[str]:
        """Return the actors that have made any of the requests."""
        return list(self._by_inside)

    def of_inside(self, actor: str) -> list[Waiter]:
        """Return the requests that an actor has made."""
        return [self._waiters[each] for each in self._by_inside.of(actor)]

    def overdue(self, now: float) -> list[Waiter]:
        """Return the requests past their deadline, by a linear search: this runs once per tick."""
        return [waiter for waiter in self._waiters.values() if waiter.deadline <= now]

    def firsts(self) -> list[Waiter]:
        """Return the first of each line, oldest first."""
        return sorted(map(self._first, self._queues), key=lambda waiter: waiter.number)

    def turns(self, may_fit: Callable[[Resources, str], bool]) -> Iterator[Waiter]:
        """Yield the requests for which there may be room, oldest first.

        If the caller leaves a request in the queue, no more of its line are yielded.
        """
        turns = [
            (self._first(kind).number, kind) for kind in self._queues if may_fit(kind[0], kind[1])
        ]
        heapq.heapify(turns)
        while turns:
            number, kind = heapq.heappop(turns)
            if kind not in self._queues:
                continue
            first = self._first(kind)
            if first.number == number:
                yield first
                if kind in self._queues and self._queues[kind].get(first.request.actor) is first:
                    continue
            if kind in self._queues:
                heapq.heappush(turns, (self._first(kind).number, kind))

    def _first(self, kind: RequestKind) -> Waiter:
        return next(iter(self._queues[kind].values()))


def gang_of(request: control.Request) -> str:
    """Return the gang with which a request is placed.  A later life is placed alone."""
    return request.gang if request.together > 1 and not request.life else ""


def kind_of(request: control.Request) -> RequestKind:
    """Return the line to which a request belongs."""
    return RequestKind(
        request.resources,
        request.python,
        request.machine,
        request.near,
        gang_of(request),
    )
