"""What clients ask that cannot be answered yet.

    about                                          is answered when
    an actor that is being made, or made again     it has a place, or will have none
    an actor of which a new master has not heard   its worker may have come back
    a name that a new master has not heard of      the same: it may be taken
    the end of such an actor                       the same

So after a master was started again nobody is told that an actor is gone, and no name is given to a
second one, before those who know better could say so.
"""

from remotely import control

UNHEARD_OF = ""  # in the place of an actor's id

Ask = control.Locate | control.Place | control.End
Question = tuple[str, Ask]


class Sought:
    """Who asked, by the actor on whose news the answer depends."""

    def __init__(self) -> None:
        self._questions: dict[str, list[Question]] = {}

    def hold(self, actor: str, session: str, ask: Ask) -> None:
        self._questions.setdefault(actor, []).append((session, ask))

    def release(self, actor: str) -> list[Question]:
        """Return the questions that waited for news of an actor, to be looked at again."""
        return self._questions.pop(actor, [])

    def withdraw(self, actor: str) -> None:
        """An actor is not wanted any more that was to be made."""
        kept = [
            (who, ask)
            for who, ask in self.release(UNHEARD_OF)
            if not (isinstance(ask, control.Place) and ask.request.actor == actor)
        ]
        if kept:
            self._questions[UNHEARD_OF] = kept
