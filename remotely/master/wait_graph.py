"""Who waits for whom: actors that wait for each other in a circle wait for ever.

An actor that has waited for another for a while says so to the master, again and again for as long
as it waits (deadlock.py).  Here the master looks for circles.

A word may be late: one who has said that it waits may have its answer by now.  So a circle is
believed when each of its members has said the same again since the last of them was first heard.
Then there was a moment at which all of them waited.
"""

from dataclasses import dataclass


@dataclass
class Wait:
    """One wait of an actor, whose calls wait meanwhile.  `number` tells it from its others."""

    number: int
    target: str
    sentence: str
    begun: float
    heard: float


class Circles:
    """Actors are known by their ids."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}

    def hear(self, actor: str, number: int, target: str, sentence: str, now: float) -> list[str]:
        """An actor waits for another.  Returns the sentences of a circle that it closes, if any."""
        known = self._waits.get(actor)
        if known is None or known.number != number:
            self._waits[actor] = Wait(number, target, sentence, now, now)
            return []
        known.heard = now
        circle, met = [known], {actor}
        while (target := circle[-1].target) != actor:
            after = self._waits.get(target)
            if after is None or target in met:  # it is not blocked, or is in a circle of others
                return []
            circle.append(after)
            met.add(target)
        if min(wait.heard for wait in circle) <= max(wait.begun for wait in circle):
            return []
        return [wait.sentence for wait in circle]

    def end(self, actor: str) -> None:
        """It waits no more."""
        self._waits.pop(actor, None)
