"""The wait-for graph: detects actors that wait for each other in a cycle.

An actor that has waited for another for some time reports that to the master, repeatedly until the
wait ends (client/deadlock.py).  The master looks for cycles, and reports each cycle once.

Reports may be stale: the reply may have arrived since.  So a cycle counts only if each of its
members has repeated its report since the last of them was first received.  Then there was a moment
at which all of them waited.

Even then it is a diagnosis, not a proof: a reply may be on a slow line, or another thread may end
the wait.  So no call fails, and the end of a reported cycle is reported too.  A wait with a timeout
ends without help, and closes no cycle.

A waiting actor lends its CPUs (lending.py); `changed` has the actors that began or ended a wait.
"""

from dataclasses import dataclass, field


@dataclass
class Wait:
    """One wait of an actor, which runs no other call meanwhile; `number` identifies it."""

    number: int
    target: str
    sentence: str  # for people
    session: str  # of the client in the actor
    begun: float
    heard: float
    has_timeout: bool = False
    cycle: list["Wait"] = field(default_factory=list)  # the reported cycle of which it is part


class WaitGraph:
    """The waits of actors, by actor id."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}
        self.changed: dict[str, None] = {}

    def __contains__(self, actor: object) -> bool:
        return actor in self._waits

    def record(self, actor: str, wait: Wait) -> list[Wait]:
        """Record a report of a wait.  Return the cycle that it closes, if that is new."""
        current = self._waits.get(actor)
        if current is None or current.number != wait.number:
            self.end(actor)
            self._waits[actor] = wait
            self.changed[actor] = None
            return []
        current.heard = wait.heard
        if current.has_timeout:
            return []
        cycle, met = [current], {actor}
        while (target := cycle[-1].target) != actor:
            after = self._waits.get(target)
            # It is not blocked, not for ever, or in a cycle without `actor`.
            if after is None or after.has_timeout or target in met:
                return []
            cycle.append(after)
            met.add(target)
        if current.cycle or min(w.heard for w in cycle) <= max(w.begun for w in cycle):
            return []
        for member in cycle:
            member.cycle = cycle
        return cycle

    def end(self, actor: str, unless: int = 0) -> Wait | None:
        """End the wait of an actor, `unless` it has this number.

        Return the wait if it was part of a reported cycle.
        """
        wait = self._waits.get(actor)
        if wait is None or wait.number == unless:
            return None
        del self._waits[actor]
        self.changed[actor] = None
        if not wait.cycle:
            return None
        for member in wait.cycle:
            member.cycle = []
        return wait

    def is_of(self, session: str, actor: str) -> bool:
        """Return whether this client has reported the wait of the actor."""
        wait = self._waits.get(actor)
        return wait is not None and wait.session == session

    def not_heard_since(self, moment: float) -> list[str]:
        """Return the actors that have not repeated their reports; their ends may be lost."""
        return [actor for actor, wait in self._waits.items() if wait.heard < moment]


def why_deadlocked(cycle: list[Wait]) -> str:
    """Return the notice for the scripts of these actors."""
    return (
        f"{' and '.join(wait.sentence for wait in cycle)}: a deadlock, unless one of these calls "
        "has a way to end. Have one of the actors not wait (submit), or serve others while it "
        "waits (concurrency=2, or async methods)"
    )
