"""Objects whose processes have dialled in, and the clients that take them: `remotely.arrivals`.

Each is given to one client, which asked for its class or a base of that; to the first that asks,
in the order of their coming.  When that client has ended, it is given away again.  So a learner
that is started again finds the simulators that are there.

A new master does not know what was given to whom.  Clients say so when they return, and until they
could, nothing is given away.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from remotely.master.actor_table import ActorTable
from remotely.master.state import State
from remotely.protocol import control
from remotely.protocol.index import Index


class Wish(NamedTuple):
    """A client's question for an actor of a class."""

    session: str
    ticket: int


class Arrivals:
    def __init__(self, state: State, tell: Callable[[str, msgspec.Struct], bool]) -> None:
        self._state = state
        self._table: ActorTable = state.actors
        self._tell = tell
        # By the name of a class: actors that nobody has, by each of theirs, and wishes that wait.
        self._free: Index[str, str] = Index()
        self._waiting: Index[str, Wish] = Index()
        self._asked: dict[Wish, str] = {}  # for which class each of those is
        self._given: dict[str, Wish] = {}  # by actor
        self._actors: Index[Wish, str] = Index()  # the reverse; several were claimed by one
        self._wishes: Index[str, Wish] = Index()  # by session: all of these

    def hear_of_actor(self, request: control.Request) -> None:
        """An actor is there; if its process has dialled in, somebody may want it."""
        if request.actor in self._given:
            return
        for name in request.classes:
            self._free.add(name, request.actor)
        for name in request.classes:
            self._give_away(name)

    def hear_of_end(self, request: control.Request) -> None:
        self._take(request)
        if wish := self._given.pop(request.actor, None):
            self._actors.discard(wish, request.actor)
            if wish not in self._actors:
                self._wishes.discard(wish.session, wish)

    def ask(self, session: str, ask: control.AskArrival) -> None:
        """Give a client an actor of a class, now or when there is one."""
        wish = Wish(session, ask.ticket)
        if given := self._actors.first(wish):  # asked again: the answer was lost
            self._answer(given, wish)
        elif wish not in self._asked:
            self._wishes.add(session, wish)
            self._asked[wish] = ask.class_name
            self._waiting.add(ask.class_name, wish)
            self._give_away(ask.class_name)

    def withdraw(self, session: str, ticket: int) -> None:
        """A client does not want what it asked for; it may have been given already."""
        wish = Wish(session, ticket)
        self._wishes.discard(session, wish)
        self._drop([wish])

    def claim(self, session: str, actors: Iterable[str]) -> None:
        """A client that has returned says what it was given."""
        wish = Wish(session, 0)
        for actor in actors:
            if actor not in self._given:
                if record := self._table.records.get(actor):
                    self._take(record.request)
                self._grant(actor, wish)

    def end_session(self, session: str) -> None:
        """A client has ended: others may have what it had."""
        self._drop(self._wishes.pop(session))

    def hear_of_no_more(self) -> None:
        """Who was to return to a new master has returned."""
        for name in list(self._waiting):
            self._give_away(name)

    def _give_away(self, name: str) -> None:
        """Give the actors of a class to who has asked for one, as long as there are both."""
        while not self._state.is_learning:
            actor, wish = self._free.first(name), self._waiting.first(name)
            if actor is None or wish is None:
                return
            self._take(self._table.records[actor].request)
            self._waiting.discard(self._asked.pop(wish), wish)
            self._grant(actor, wish)
            self._answer(actor, wish)

    def _grant(self, actor: str, wish: Wish) -> None:
        self._given[actor] = wish
        self._actors.add(wish, actor)
        self._wishes.add(wish.session, wish)

    def _answer(self, actor: str, wish: Wish) -> None:
        record = self._table.records[actor]
        self._table.watch(wish.session, record)
        self._tell(wish.session, control.Located(ticket=wish.ticket, location=record.location))

    def _take(self, request: control.Request) -> None:
        """An actor is free no more."""
        for name in request.classes:
            self._free.discard(name, request.actor)

    def _drop(self, wishes: Iterable[Wish]) -> None:
        """Forget these, and then let others have what they were given."""
        for wish in wishes:
            if (name := self._asked.pop(wish, None)) is not None:
                self._waiting.discard(name, wish)
        for actor in [actor for wish in wishes for actor in self._actors.pop(wish)]:
            del self._given[actor]
            if record := self._table.records.get(actor):
                self.hear_of_actor(record.request)
