"""Room that is kept for a request that others overtake.

A request for little overtakes one for more than is free (waiting.py).  Where small actors come and
go all the time, a large one would wait for ever.  So room is kept for it.

    who      one request at a time, or one group: of the first of each line that have waited for
             OVERTAKEN_S, the first to ask.  Not one that waits for a name, for the actor that it is
             to be near, or for the rest of its group
    where    on one worker, or on as many as a group needs: of those that are large enough, where
             most is free.  This is chosen anew at each look; the same workers come first
    how      what it asks for is taken off what is free, which may then be less than nothing.  So
             others are placed beside it only, and whatever ends there makes room for it
    until    it has its place, or waits no more; or for KEPT_S nothing has ended that is in its way.
             That may live for ever, or wait for somebody who needs this very room.  Then the room
             is given up, and kept elsewhere.  After all that can be tried were, there is a pause,
             and each one is twice as long as the last

So at most one machine, or what one group needs, is partly idle, and for a request that never gets
its place less and less often.

Pure.  Refused: to serve strictly in the order of asking, because one request then holds up all
others; and to count how often each is overtaken, because many small ones do that in a second.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

from remotely.master.affinity import workers_for
from remotely.master.state import Kept, State
from remotely.master.waiting import Waiter, gang_of
from remotely.protocol.lease import KEPT_S, OVERTAKEN_S


@dataclass
class Vain:
    """Room was kept in vain."""

    workers: Set[str]  # there
    pause_s: float  # the last, after all were tried
    until: float  # it is kept again


class KeptRoom:
    """Keeps room in the ledger.  `serve` places a request that waits, if that fits now."""

    def __init__(self, state: State, serve: Callable[[Waiter], bool]) -> None:
        self._state = state
        self._serve = serve
        self._vain: dict[str, Vain] = {}  # by actor

    def use(self) -> bool:
        """Place the one for whom room is kept, if that room is free by now.

        Returns whether no room is kept any more, and others may have what is left of it.
        """
        state, ledger = self._state, self._state.workers.ledger
        if state.kept is None:
            return False
        waiter = state.waiting.get(state.kept.actor)
        if waiter is not None and any(ledger.lacks):
            return False
        self._let_go()
        if waiter is not None and self._serve(waiter):
            state.waiting.remove_if_same(waiter)
        return True

    def review(self) -> bool:
        """Look again for whom room is kept, and where; true if others may have what was kept."""
        state, ledger, before = self._state, self._state.workers.ledger, self._state.kept
        kept, keepers = ledger.kept, ledger.keepers
        self._let_go()
        if before is not None and (waiter := state.waiting.get(before.actor)) is not None:
            self._keep(waiter, before, keepers)
        self._vain = {actor: v for actor, v in self._vain.items() if state.waiting.get(actor)}
        for waiter in state.waiting.firsts():
            if state.kept is None and self._is_overtaken(waiter):
                self._keep(waiter)
        return bool(kept) and kept != ledger.kept

    def _let_go(self) -> None:
        self._state.workers.ledger.let_go()
        self._state.kept = None

    def _is_overtaken(self, waiter: Waiter) -> bool:
        """Tell whether a request waits for room and nothing else, and has for long."""
        state, request = self._state, waiter.request
        vain = self._vain.get(request.actor)
        return (
            state.now >= (vain.until if vain else waiter.since + OVERTAKEN_S)
            and not (request.named and state.actors.ending(request.name))
            and state.has_asked_whole(request)
        )

    def _keep(
        self, waiter: Waiter, before: Kept | None = None, workers: Set[str] = frozenset()
    ) -> None:
        """Keep room for a request, if that can be; `before`, it was kept on `workers`."""
        state, actor = self._state, waiter.request.actor
        ledger, now = state.workers.ledger, state.now
        vain = self._vain.get(actor, Vain(frozenset(), OVERTAKEN_S, 0.0))
        self._take(waiter, best=workers, worst=vain.workers)
        gained_at = now
        if before is not None and not any(map(int.__lt__, ledger.lacks, before.lacks)):
            gained_at = before.gained_at
        if now >= gained_at + KEPT_S:
            ledger.let_go()
            gained_at, tried = now, vain.workers | workers
            self._take(waiter, best=frozenset(), worst=tried)
            if ledger.keepers & tried:  # nowhere else
                ledger.let_go()
                pause_s = 2 * vain.pause_s
                self._vain[actor] = Vain(frozenset(), pause_s, now + pause_s)
            else:
                self._vain[actor] = Vain(tried, vain.pause_s, now)
        if ledger.kept:
            state.kept = Kept(actor, waiter.request.class_name, gained_at, ledger.lacks)

    def _take(self, waiter: Waiter, best: Set[str], worst: Set[str]) -> None:
        state, request = self._state, waiter.request
        count = state.waiting.gang_size(gang_of(request)) or 1
        needs = request.resources, request.python, count, workers_for(request, state)
        state.workers.ledger.keep(*needs, best, worst)
