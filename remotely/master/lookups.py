"""What clients ask that cannot be answered yet.

    about                                          is answered when
    an actor that is being made, or made again     it has a place, or will have none
    an actor whose machine the asker cannot reach  the machine is back, or is lost
    an actor unknown to a new master               its worker is back, or none comes any more
    a name unknown to a new master                 the same: it may be taken
    the end of such an actor                       the same

So after a restart of the master nobody is told that an actor is gone, and no name is given to a
second actor, before those who know better could say so.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from remotely.master.state import State
from remotely.protocol import control


class UnknownActor(NamedTuple):
    """An actor unknown to a new master, by its id or, if that is not known, its name.

    An actor that is being made has news at each of its lives; this one has news only once.
    """

    actor: str
    name: str = ""


Topic = str | UnknownActor  # an actor's id, of one that is being made or is away
Ask = control.Locate | control.Place | control.End
Question = tuple[str, Ask]  # a session, and what it asks


class Lookups:
    """Questions, by the topic on which the answer depends.

    `ask_again` is called with each question on whose topic there is news.
    """

    def __init__(
        self,
        state: State,
        tell: Callable[[str, msgspec.Struct], bool],
        ask_again: Callable[[str, Ask], None],
    ) -> None:
        self._state = state
        self._tell = tell
        self._ask_again = ask_again
        self._questions: dict[Topic, list[Question]] = {}
        self._placed: dict[str, UnknownActor] = {}  # by actor, what a request to place it waits for

    def locate(self, session: str, ask: control.Locate) -> None:
        """Answer where an actor is, or hold the question until it can be answered."""
        state, table = self._state, self._state.actors
        if ask.name and table.ending(ask.name):  # whoever finds it would be told of its end
            self._tell(session, control.Located(ticket=ask.ticket))
            return
        actor = ask.actor or table.names.get(ask.name, "")
        record = table.records.get(actor)
        is_away = (
            ask.unreached and record is not None and record.worker in state.workers.ledger.away
        )
        if actor in state.restarts or is_away or (record is not None and record.location is None):
            self.hold(actor, session, ask)
            return
        if state.is_learning and record is None and actor not in table.deaths:
            self.hold(UnknownActor(actor, "" if actor else ask.name), session, ask)
            return
        if record is not None:
            table.watch(session, record)
        self._tell(
            session,
            control.Located(
                ticket=ask.ticket,
                location=record.location if record else None,
                obituary=table.deaths.get(actor),
            ),
        )

    def hold(self, topic: Topic, session: str, ask: Ask) -> None:
        """Keep a question until there is news."""
        self._questions.setdefault(topic, []).append((session, ask))
        if isinstance(ask, control.Place) and isinstance(topic, UnknownActor):
            self._placed[ask.request.actor] = topic

    def withdraw(self, actor: str) -> list[tuple[str, control.Place]]:
        """Drop the requests to place an actor that is not wanted any more; return them."""
        if (topic := self._placed.get(actor)) is None:
            return []
        withdrawn = []
        for session, ask in self._release(topic):
            if isinstance(ask, control.Place) and ask.request.actor == actor:
                withdrawn.append((session, ask))
            else:
                self.hold(topic, session, ask)
        return withdrawn

    # --- news -------------------------------------------------------------------------------------

    def hear_of_news(self, actor: str) -> None:
        """An actor that was being made or away has a place, or will have none."""
        self._repeat(self._release(actor))

    def hear_of_placement(self, request: control.Request) -> None:
        """An actor was placed.  An automatic name is no news of an actor that its user named."""
        if request.named:
            self.hear_of_actor(request)
        else:
            self._repeat(self._release(UnknownActor(request.actor)))

    def hear_of_actor(self, request: control.Request) -> None:
        """An actor exists that was unknown to a new master, and it has its name."""
        self._repeat(self._release(UnknownActor(request.actor)))
        self._repeat(self._release(UnknownActor("", request.name)))

    def hear_of_no_more(self) -> None:
        """No worker comes back any more that is unknown to a new master."""
        unknown = [topic for topic in self._questions if isinstance(topic, UnknownActor)]
        self._repeat([question for topic in unknown for question in self._release(topic)])

    def _release(self, topic: Topic) -> list[Question]:
        released = self._questions.pop(topic, [])
        for _, ask in released:
            if isinstance(ask, control.Place):
                self._placed.pop(ask.request.actor, None)
        return released

    def _repeat(self, questions: list[Question]) -> None:
        for session, ask in questions:
            self._ask_again(session, ask)
