"""What clients ask that cannot be answered yet.

    about                                          is answered when
    an actor that is being made, or made again     it has a place, or will have none
    an actor of which a new master has not heard   its worker is back, or none comes any more
    a name that a new master has not heard of      the same: it may be taken
    the end of such an actor                       the same

So after a master was started again nobody is told that an actor is gone, and no name is given to a
second one, before those who know better could say so.
"""

from typing import NamedTuple

from remotely.protocol import control


class Unheard(NamedTuple):
    """An actor of which a new master has not heard, by its id or, if that is not known, its name.

    Of an actor that is being made there is news at each of its lives; of these only once.
    """

    actor: str
    name: str = ""


About = str | Unheard  # an actor's id, of one that is being made
Ask = control.Locate | control.Place | control.End
Question = tuple[str, Ask]


class Sought:
    """Who asked, by that on whose news the answer depends."""

    def __init__(self) -> None:
        self._questions: dict[About, list[Question]] = {}
        self._placed: dict[str, Unheard] = {}  # by actor, what a request to place it waits for

    def hold(self, about: About, session: str, ask: Ask) -> None:
        self._questions.setdefault(about, []).append((session, ask))
        if isinstance(ask, control.Place) and isinstance(about, Unheard):
            self._placed[ask.request.actor] = about

    def release(self, about: About) -> list[Question]:
        """Return the questions that waited for this news, to be looked at again."""
        released = self._questions.pop(about, [])
        for _, ask in released:
            if isinstance(ask, control.Place):
                self._placed.pop(ask.request.actor, None)
        return released

    def release_unheard(self) -> list[Question]:
        """Return what waits for workers that may come back: there are no more of them."""
        unheard = [about for about in self._questions if isinstance(about, Unheard)]
        return [question for about in unheard for question in self.release(about)]

    def withdraw(self, actor: str) -> list[tuple[str, control.Place]]:
        """An actor is not wanted any more that was to be made; return who asked for it."""
        if (about := self._placed.get(actor)) is None:
            return []
        withdrawn = []
        for who, ask in self.release(about):
            if isinstance(ask, control.Place) and ask.request.actor == actor:
                withdrawn.append((who, ask))
            else:
                self.hold(about, who, ask)
        return withdrawn
