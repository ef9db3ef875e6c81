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

from collections.abc import Set

from remotely.master.state import Kept, State, Vain
from remotely.master.waiting import Waiter, gang_of
from remotely.protocol.lease import KEPT_S, OVERTAKEN_S


def release_if_ready(state: State) -> tuple[bool, Waiter | None]:
    """Release the room that is kept, if it is free by now or nobody waits for it any more.

    Returns whether it did, so that others may have what is left of it; and the request to be served
    first.
    """
    if state.kept is None:
        return False, None
    waiter = state.waiting.get(state.kept.actor)
    if waiter is not None and any(state.workers.ledger.lacks):
        return False, None
    _release(state)
    return True, waiter


def review(state: State) -> bool:
    """Choose again for which request room is kept, and where; true if others may have some."""
    ledger, before = state.workers.ledger, state.kept
    kept, keepers = ledger.kept, ledger.keepers
    _release(state)
    if before is not None and (waiter := state.waiting.get(before.actor)) is not None:
        _keep(state, waiter, before, keepers)
    state.vain = {actor: vain for actor, vain in state.vain.items() if actor in state.waiting}
    for waiter in state.waiting.firsts():
        if state.kept is None and _is_overtaken(state, waiter):
            _keep(state, waiter)
    return bool(kept) and kept != ledger.kept


def _release(state: State) -> None:
    state.workers.ledger.let_go()
    state.kept = None


def _is_overtaken(state: State, waiter: Waiter) -> bool:
    """Tell whether a request waits for room and nothing else, and has for long."""
    request, vain = waiter.request, state.vain.get(waiter.request.actor)
    return (
        state.now >= (vain.until if vain else waiter.since + OVERTAKEN_S)
        and not (request.named and state.actors.ending(request.name))
        and state.has_asked_whole(request)
    )


def _keep(
    state: State, waiter: Waiter, before: Kept | None = None, workers: Set[str] = frozenset()
) -> None:
    """Keep room for a request, if that can be; `before`, it was kept on `workers`."""
    actor, ledger, now = waiter.request.actor, state.workers.ledger, state.now
    vain = state.vain.get(actor, Vain(frozenset(), OVERTAKEN_S, 0.0))
    _take(state, waiter, best=workers, worst=vain.workers)
    gained_at = now
    if before is not None and not any(map(int.__lt__, ledger.lacks, before.lacks)):
        gained_at = before.gained_at
    if now >= gained_at + KEPT_S:
        ledger.let_go()
        gained_at, tried = now, vain.workers | workers
        _take(state, waiter, best=frozenset(), worst=tried)
        if ledger.keepers & tried:  # nowhere else
            ledger.let_go()
            pause_s = 2 * vain.pause_s
            state.vain[actor] = Vain(frozenset(), pause_s, now + pause_s)
        else:
            state.vain[actor] = Vain(tried, vain.pause_s, now)
    if ledger.kept:
        state.kept = Kept(actor, waiter.request.class_name, gained_at, ledger.lacks)


def _take(state: State, waiter: Waiter, best: Set[str], worst: Set[str]) -> None:
    request = waiter.request
    count = state.waiting.gang_size(gang_of(request)) or 1
    needs = request.resources, request.python, count, state.workers_for(request)
    state.workers.ledger.keep(*needs, best, worst)
