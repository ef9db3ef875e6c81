"""Objects whose processes have dialled in, and the clients that take them: `remotely.arrivals`.

Each is given to one client, which asked for its class or a base of that; to the first that asks,
in the order of their coming.  When that client has ended, it is given away again.  So a learner
that is started again finds the simulators that are there.

A new master does not know what was given to whom.  Clients say so when they return, and until they
could, nothing is given away.

These are few: they are searched one by one.
"""

from collections.abc import Iterable
from typing import NamedTuple

from remotely.protocol import control


class Wish(NamedTuple):
    """A client's question for an actor of a class."""

    session: str
    ticket: int


Gift = tuple[str, Wish]  # an actor, and the question that it answers


class Arrivals:
    """Actors to give away, and who has asked.  What returns gifts leaves it to you to tell."""

    def __init__(self, is_open: bool) -> None:
        self._is_open = is_open  # else nothing is given away yet
        self._classes: dict[str, list[str]] = {}  # of each actor that has dialled in
        self._given: dict[str, Wish] = {}  # by actor; a returned client may come before its actors
        self._waiting: dict[Wish, str] = {}  # the name of a class, by the question for it

    def add(self, request: control.Request) -> list[Gift]:
        """An actor is there; if its process has dialled in, somebody may want it."""
        if not request.classes:
            return []
        self._classes[request.actor] = request.classes
        return self._give_away()

    def remove(self, actor: str) -> None:
        """An actor has ended."""
        self._classes.pop(actor, None)
        self._given.pop(actor, None)

    def ask(self, session: str, ask: control.AskArrival) -> list[Gift]:
        """Give a client an actor of a class, now or when there is one."""
        wish = Wish(session, ask.ticket)
        if given := [actor for actor, to in self._given.items() if to == wish]:
            return [(given[0], wish)]  # asked again: the answer was lost
        self._waiting.setdefault(wish, ask.class_name)
        return self._give_away()

    def withdraw(self, session: str, ticket: int) -> list[Gift]:
        """A client does not want what it asked for; it may have been given already."""
        wish = Wish(session, ticket)
        self._waiting.pop(wish, None)
        self._given = {actor: to for actor, to in self._given.items() if to != wish}
        return self._give_away()

    def claim(self, session: str, actors: Iterable[str]) -> None:
        """A client that has returned says what it was given."""
        for actor in actors:
            self._given.setdefault(actor, Wish(session, 0))

    def end_session(self, session: str) -> list[Gift]:
        """A client has ended: others may have what it had."""
        self._waiting = {wish: name for wish, name in self._waiting.items() if wish[0] != session}
        self._given = {actor: to for actor, to in self._given.items() if to.session != session}
        return self._give_away()

    def open(self) -> list[Gift]:
        """All that were to return to a new master have returned."""
        self._is_open = True
        return self._give_away()

    def _give_away(self) -> list[Gift]:
        """Give each question the first actor of its class that nobody has."""
        gifts: list[Gift] = []
        if not self._is_open or not self._waiting:
            return gifts
        free = {a: classes for a, classes in self._classes.items() if a not in self._given}
        for wish, name in list(self._waiting.items()):
            actor = next((actor for actor, classes in free.items() if name in classes), None)
            if actor is not None:
                del free[actor], self._waiting[wish]
                self._given[actor] = wish
                gifts.append((actor, wish))
        return gifts
