"""The wait-for graph: actors that wait for each other in a cycle may wait for ever.

An actor that has waited for another for a while says so to the master, again and again for as long
as it waits (client/deadlock.py).  Here the master looks for cycles, and each is told once.

A message may be late: an actor that has said that it waits may have its answer by now.  So a cycle
counts when each of its members has said the same again since the last of them was first heard.
Then there was a moment at which all of them waited.

Even then it is a diagnosis and no proof: a reply may be on a slow line, or another thread may end
the wait.  So it fails no call, and when a wait of the cycle ends after all, that is told too.
"""

from dataclasses import dataclass, field


@dataclass
class Wait:
    """One wait of an actor, whose calls wait meanwhile.  `number` tells it from its others."""

    number: int
    target: str
    sentence: str  # who waits for what
    session: str  # of the client in the actor
    begun: float
    heard: float
    cycle: list["Wait"] = field(default_factory=list)  # that was told, and of which it is part


class WaitGraph:
    """The waits of actors, by their ids."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}

    def hear(self, actor: str, wait: Wait) -> list[Wait]:
        """An actor waits for another.  Returns the cycle that it closes, if that is news."""
        known = self._waits.get(actor)
        if known is None or known.number != wait.number:
            self.end(actor)
            self._waits[actor] = wait
            return []
        known.heard = wait.heard
        cycle, met = [known], {actor}
        while (target := cycle[-1].target) != actor:
            after = self._waits.get(target)
            if after is None or target in met:  # it is not blocked, or is in a cycle of others
                return []
            cycle.append(after)
            met.add(target)
        if known.cycle or min(w.heard for w in cycle) <= max(w.begun for w in cycle):
            return []
        for member in cycle:
            member.cycle = cycle
        return cycle

    def end(self, actor: str, unless: int = 0) -> Wait | None:
        """It waits no more, `unless` its wait is of this number.

        Returns the wait that has ended if that opens a cycle that was told.
        """
        wait = self._waits.get(actor)
        if wait is None or wait.number == unless:
            return None
        del self._waits[actor]
        if not wait.cycle:
            return None
        for member in wait.cycle:
            member.cycle = []
        return wait


def why_deadlocked(cycle: list[Wait]) -> str:
    """Return what to tell whoever waits for these actors."""
    return (
        f"{' and '.join(wait.sentence for wait in cycle)}: a deadlock, unless one of these calls "
        "has a way to end. Have one of the actors not wait (submit), or serve others while it "
        "waits (concurrency=2, or async methods)"
    )
