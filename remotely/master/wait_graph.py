"""The wait-for graph: actors that wait for each other in a cycle wait for ever.

An actor that has waited for another for a while says so to the master, again and again for as long
as it waits (client/deadlock.py).  Here the master looks for cycles.

A message may be late: an actor that has said that it waits may have its answer by now.  So a cycle
counts when each of its members has said the same again since the last of them was first heard.
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


class WaitGraph:
    """The waits of actors, by their ids."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}

    def hear(self, actor: str, number: int, target: str, sentence: str, now: float) -> list[str]:
        """An actor waits for another.  Returns the sentences of a cycle that it closes, if any.

        `sentence` says who waits for what.
        """
        known = self._waits.get(actor)
        if known is None or known.number != number:
            self._waits[actor] = Wait(number, target, sentence, now, now)
            return []
        known.heard = now
        cycle, met = [known], {actor}
        while (target := cycle[-1].target) != actor:
            after = self._waits.get(target)
            if after is None or target in met:  # it is not blocked, or is in a cycle of others
                return []
            cycle.append(after)
            met.add(target)
        if min(wait.heard for wait in cycle) <= max(wait.begun for wait in cycle):
            return []
        return [wait.sentence for wait in cycle]

    def end(self, actor: str) -> None:
        """It waits no more."""
        self._waits.pop(actor, None)


def why_deadlocked(cycle: list[str]) -> str:
    """Return what to tell an actor that waits in this cycle."""
    return (
        f"{' and '.join(cycle)}: none of them can go on. Have one of them not wait "
        "(submit), or serve others while it waits (concurrency=2, or async methods)"
    )
