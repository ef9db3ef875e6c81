"""Objects whose processes have dialled in, and the clients that take them: `remotely.arrivals`.

Each is given to one client, which asked for its class or a base of that; to the first that asks,
in the order of their coming.  When that client has ended, it is given away again.  So a learner
that is started again finds the simulators that are there.

A new master does not know what was given to whom.  Clients say so when they return, and until they
could, nothing is given away.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from remotely.master.actor_table import ActorTable
from remotely.master.state import State
from remotely.protocol import control


class Wish(NamedTuple):
    """A client's question for an actor of a class."""

    session: str
    ticket: int


class Arrivals:
    def __init__(self, state: State, tell: Callable[[str, msgspec.Struct], bool]) -> None:
        self._state = state
        self._table: ActorTable = state.actors
        self._tell = tell
        self._free: dict[str, None] = {}  # actors that nobody has, the first to come first
        self._wishes: dict[str, deque[Wish]] = {}  # by the name of a class
        self._given: dict[str, Wish] = {}  # by actor

    def hear_of_actor(self, request: control.Request) -> None:
        """An actor is there; if its process has dialled in, somebody may want it."""
        if request.classes and request.actor not in self._given:
            self._free[request.actor] = None
            self._give_away()

    def hear_of_end(self, actor: str) -> None:
        self._free.pop(actor, None)
        self._given.pop(actor, None)

    def ask(self, session: str, ask: control.AskArrival) -> None:
        """Give a client an actor of a class, now or when there is one."""
        wish = Wish(session, ask.ticket)
        wishes = self._wishes.setdefault(ask.class_name, deque())
        if wish not in wishes and wish not in self._given.values():  # else asked again
            wishes.append(wish)
        for actor, given in self._given.items():
            if given == wish:  # the answer was lost
                self._answer(actor, wish)
        self._give_away()

    def withdraw(self, session: str, ticket: int) -> None:
        """A client does not want what it asked for; it may have been given already."""
        wish = Wish(session, ticket)
        self._drop_wishes(lambda other: other == wish)
        self._take_back(lambda other: other == wish)

    def claim(self, session: str, actors: Iterable[str]) -> None:
        """A client that has returned says what it was given."""
        for actor in actors:
            if actor not in self._given:
                self._given[actor] = Wish(session, 0)
                self._free.pop(actor, None)

    def end_session(self, session: str) -> None:
        """A client has ended: others may have what it had."""
        self._drop_wishes(lambda wish: wish.session == session)
        self._take_back(lambda wish: wish.session == session)

    def hear_of_no_more(self) -> None:
        """Who was to return to a new master has returned."""
        self._give_away()

    def _give_away(self) -> None:
        if self._state.is_learning:
            return
        for actor in list(self._free):
            record = self._table.records[actor]
            for name in record.request.classes:
                if wishes := self._wishes.get(name):
                    wish = wishes.popleft()
                    if not wishes:
                        del self._wishes[name]
                    del self._free[actor]
                    self._given[actor] = wish
                    self._answer(actor, wish)
                    break

    def _answer(self, actor: str, wish: Wish) -> None:
        record = self._table.records[actor]
        self._table.watch(wish.session, record)
        self._tell(wish.session, control.Located(ticket=wish.ticket, location=record.location))

    def _take_back(self, is_meant: Callable[[Wish], bool]) -> None:
        for actor, wish in list(self._given.items()):
            if is_meant(wish):
                del self._given[actor]
                if actor in self._table.records:
                    self._free[actor] = None
        self._give_away()

    def _drop_wishes(self, is_meant: Callable[[Wish], bool]) -> None:
        for name, wishes in list(self._wishes.items()):
            kept = deque(wish for wish in wishes if not is_meant(wish))
            if kept:
                self._wishes[name] = kept
            else:
                del self._wishes[name]
