"""Arrivals: the actors of guests, and the clients to which they are assigned (`remotely.arrivals`).

Each actor is assigned to one client: the first that asked for its class or a base class, in order
of arrival.  When that client ends, the actor is assigned again.  So a restarted learner finds the
simulators that are still connected.

A restarted master does not know the assignments.  Clients report them when they reconnect; until
recovery ends, nothing is assigned.

Arrivals are few, so they are searched linearly.
"""

from collections.abc import Iterable
from typing import NamedTuple

from remotely.protocol import control


class ArrivalRequest(NamedTuple):
    """A client's request for an actor of a class."""

    session: str
    ticket: int


Assignment = tuple[str, ArrivalRequest]  # an actor, and the request that it satisfies


class Arrivals:
    """The actors of guests, and the requests for them.  The caller sends the assignments."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open  # else nothing is assigned yet
        self._classes: dict[str, list[str]] = {}  # by actor
        # By actor.  A client may reconnect before its actors do.
        self._assigned: dict[str, ArrivalRequest] = {}
        self._waiting: dict[ArrivalRequest, str] = {}  # request -> name of the class

    def add(self, request: control.Request) -> list[Assignment]:
        """Add an actor, if it is a guest's."""
        if not request.classes:
            return []
        self._classes[request.actor] = request.classes
        return self._assign()

    def remove(self, actor: str) -> None:
        """Remove an actor that has ended."""
        self._classes.pop(actor, None)
        self._assigned.pop(actor, None)

    def request(self, session: str, message: control.AskArrival) -> list[Assignment]:
        """Assign an actor of a class to a client, now or when there is one."""
        request = ArrivalRequest(session, message.ticket)
        if assigned := [actor for actor, to in self._assigned.items() if to == request]:
            return [(assigned[0], request)]  # repeated: the reply was lost
        self._waiting.setdefault(request, message.class_name)
        return self._assign()

    def withdraw(self, session: str, ticket: int) -> list[Assignment]:
        """Withdraw a request, which may have been satisfied already."""
        request = ArrivalRequest(session, ticket)
        self._waiting.pop(request, None)
        self._assigned = {actor: to for actor, to in self._assigned.items() if to != request}
        return self._assign()

    def claim(self, session: str, actors: Iterable[str]) -> None:
        """Record the assignments that a reconnected client reports."""
        for actor in actors:
            self._assigned.setdefault(actor, ArrivalRequest(session, 0))

    def end_session(self, session: str) -> list[Assignment]:
        """Remove the requests of a client that has ended, and assign its actors again."""
        self._waiting = {to: name for to, name in self._waiting.items() if to.session != session}
        self._assigned = {a: to for a, to in self._assigned.items() if to.session != session}
        return self._assign()

    def open(self) -> list[Assignment]:
        """Start to assign actors: recovery has ended."""
        self._is_open = True
        return self._assign()

    def _assign(self) -> list[Assignment]:
        """Assign to each request the first free actor of its class."""
        assignments: list[Assignment] = []
        if not self._is_open or not self._waiting:
            return assignments
        free = {a: classes for a, classes in self._classes.items() if a not in self._assigned}
        for request, name in list(self._waiting.items()):
            actor = next((actor for actor, classes in free.items() if name in classes), None)
            if actor is not None:
                del free[actor], self._waiting[request]
                self._assigned[actor] = request
                assignments.append((actor, request))
        return assignments
