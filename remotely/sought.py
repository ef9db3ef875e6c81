"""Questions after actors that cannot be answered yet: where is it, is it there at all?

an actor that is being made, or made again    is answered for when it has a place, or has none
one of which a new master has not heard       when its worker may have come back
"""

from remotely import control

UNHEARD_OF = ""  # in the place of an actor's id

Question = tuple[str, control.Locate]


class Sought:
    """Who asked, by the actor on whose news the answer depends."""

    def __init__(self) -> None:
        self._questions: dict[str, list[Question]] = {}

    def hold(self, actor: str, session: str, ask: control.Locate) -> None:
        self._questions.setdefault(actor, []).append((session, ask))

    def release(self, actor: str) -> list[Question]:
        """Return the questions that waited for news of an actor, to be looked at again."""
        return self._questions.pop(actor, [])
