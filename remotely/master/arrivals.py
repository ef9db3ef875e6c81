"""Objects whose processes have dialled in, and the clients that take them: `remotely.arrivals`.

Each is given to one client, which asked for its class or a base of that; to the first that asks,
in the order of their coming.  When that client has ended, it is given away again.  So a learner
that is started again finds the simulators that are there.

A new master does not know what was given to whom.  Clients say so when they return, and until they
could, nothing is given away.
"""

from collections.abc import Iterable
from typing import NamedTuple

from remotely.protocol import control
from remotely.protocol.index import Index


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
        # By the name of a class: actors that nobody has, by each of theirs, and wishes that wait.
        self._free: Index[str, str] = Index()
        self._waiting: Index[str, Wish] = Index()
        self._asked: dict[Wish, str] = {}  # for which class each of those is
        self._given: dict[str, Wish] = {}  # by actor
        self._actors: Index[Wish, str] = Index()  # the reverse; several were claimed by one
        self._wishes: Index[str, Wish] = Index()  # by session: all of these

    def add(self, request: control.Request) -> list[Gift]:
        """An actor is there; if its process has dialled in, somebody may want it."""
        if not request.classes:
            return []
        self._classes[request.actor] = request.classes
        return self._offer(request.actor)

    def remove(self, actor: str) -> None:
        """An actor has ended."""
        self._take(actor)
        self._classes.pop(actor, None)
        if wish := self._given.pop(actor, None):
            self._actors.discard(wish, actor)
            if wish not in self._actors:
                self._wishes.discard(wish.session, wish)

    def ask(self, session: str, ask: control.AskArrival) -> list[Gift]:
        """Give a client an actor of a class, now or when there is one."""
        wish = Wish(session, ask.ticket)
        if given := self._actors.first(wish):  # asked again: the answer was lost
            return [(given, wish)]
        if wish in self._asked:
            return []
        self._wishes.add(session, wish)
        self._asked[wish] = ask.class_name
        self._waiting.add(ask.class_name, wish)
        return self._give_away(ask.class_name)

    def withdraw(self, session: str, ticket: int) -> list[Gift]:
        """A client does not want what it asked for; it may have been given already."""
        wish = Wish(session, ticket)
        self._wishes.discard(session, wish)
        return self._drop([wish])

    def claim(self, session: str, actors: Iterable[str]) -> None:
        """A client that has returned says what it was given."""
        for actor in actors:
            if actor not in self._given:
                self._take(actor)
                self._grant(actor, Wish(session, 0))

    def end_session(self, session: str) -> list[Gift]:
        """A client has ended: others may have what it had."""
        return self._drop(self._wishes.pop(session))

    def open(self) -> list[Gift]:
        """All that were to return to a new master have returned."""
        self._is_open = True
        return [gift for name in list(self._waiting) for gift in self._give_away(name)]

    def _offer(self, actor: str) -> list[Gift]:
        if actor in self._given:
            return []
        classes = self._classes.get(actor, [])
        for name in classes:
            self._free.add(name, actor)
        return [gift for name in classes for gift in self._give_away(name)]

    def _give_away(self, name: str) -> list[Gift]:
        """Give the actors of a class to those who have asked for one, as long as there are both."""
        gifts: list[Gift] = []
        while self._is_open:
            actor, wish = self._free.first(name), self._waiting.first(name)
            if actor is None or wish is None:
                break
            self._take(actor)
            self._waiting.discard(self._asked.pop(wish), wish)
            self._grant(actor, wish)
            gifts.append((actor, wish))
        return gifts

    def _grant(self, actor: str, wish: Wish) -> None:
        self._given[actor] = wish
        self._actors.add(wish, actor)
        self._wishes.add(wish.session, wish)

    def _take(self, actor: str) -> None:
        """An actor is free no more."""
        for name in self._classes.get(actor, ()):
            self._free.discard(name, actor)

    def _drop(self, wishes: Iterable[Wish]) -> list[Gift]:
        """Forget these, and then let others have what they were given."""
        for wish in wishes:
            if (name := self._asked.pop(wish, None)) is not None:
                self._waiting.discard(name, wish)
        freed = [actor for wish in wishes for actor in self._actors.pop(wish)]
        for actor in freed:
            del self._given[actor]
        return [gift for actor in freed for gift in self._offer(actor)]
