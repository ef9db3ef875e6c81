"""Reservations: room that is kept for a request that others overtake.

A request for few resources overtakes one for more than is free (waiting.py).  Where small actors
come and go all the time, a large one would wait forever.  So the master reserves room for it.

    which    one request at a time, or one gang.  Of the first request of each line that has waited
             for OVERTAKEN_S, the oldest; but none that waits for a name, for the actor that it is
             to be near, or for the rest of its gang
    where    on one worker, or on as many as a gang needs: of those that are large enough, where
             most is free.  The choice is reviewed at each tick and prefers the same workers
    how      the request's resources are subtracted from the free ones, which may become negative.
             So others are placed beside it only, and every actor that ends there makes room for it
    until    the request is placed or withdrawn, or for RESERVED_S no actor that is in its way has
             ended.  Such an actor may live forever, or wait for the actor that needs this room.
             Then the room is reserved elsewhere.  Once all workers were tried there is a pause,
             which doubles each time

So at most one machine, or what one gang needs, is partly idle, and less and less often for a
request that never gets its place.

Pure.  Refused: to serve strictly in order of arrival, because one request then blocks all others;
and to count how often each request is overtaken, because small ones do that many times a second.
"""

from collections.abc import Set

from remotely.master.state import Backoff, Reservation, State
from remotely.master.waiting import Waiter, gang_of
from remotely.protocol.lease import OVERTAKEN_S, RESERVED_S


def release_if_ready(state: State) -> tuple[bool, Waiter | None]:
    """Release the reservation if its room is free, or if its request no longer waits.

    Return whether it was released, so that others may use the room, and the request to place first.
    """
    if state.reservation is None:
        return False, None
    waiter = state.waiting.get(state.reservation.actor)
    if waiter is not None and any(state.workers.ledger.shortfall):
        return False, None
    _release(state)
    return True, waiter


def review(state: State) -> bool:
    """Choose again for which request to reserve room, and where; return whether room was freed."""
    ledger, before = state.workers.ledger, state.reservation
    reserved, workers = ledger.reserved, ledger.reserved_on
    _release(state)
    if before is not None and (waiter := state.waiting.get(before.actor)) is not None:
        _reserve(state, waiter, before, workers)
    state.backoffs = {actor: b for actor, b in state.backoffs.items() if actor in state.waiting}
    for waiter in state.waiting.firsts():
        if state.reservation is None and _is_overtaken(state, waiter):
            _reserve(state, waiter)
    return bool(reserved) and reserved != ledger.reserved


def _release(state: State) -> None:
    state.workers.ledger.release_reservation()
    state.reservation = None


def _is_overtaken(state: State, waiter: Waiter) -> bool:
    """Return whether a request has waited long enough, and for nothing but room."""
    request, backoff = waiter.request, state.backoffs.get(waiter.request.actor)
    return (
        state.now >= (backoff.until if backoff else waiter.since + OVERTAKEN_S)
        and not (request.named and state.actors.ending(request.name))
        and state.gang_is_complete(request)
    )


def _reserve(
    state: State, waiter: Waiter, before: Reservation | None = None, workers: Set[str] = frozenset()
) -> None:
    """Reserve room for a request if possible; `before`, it was reserved on `workers`."""
    actor, ledger, now = waiter.request.actor, state.workers.ledger, state.now
    backoff = state.backoffs.get(actor, Backoff(frozenset(), OVERTAKEN_S, 0.0))
    _take(state, waiter, best=workers, worst=backoff.workers)
    gained_at = now
    if before is not None and not any(map(int.__lt__, ledger.shortfall, before.shortfall)):
        gained_at = before.gained_at
    if now >= gained_at + RESERVED_S:
        ledger.release_reservation()
        gained_at, tried = now, backoff.workers | workers
        _take(state, waiter, best=frozenset(), worst=tried)
        if ledger.reserved_on & tried:  # all were tried
            ledger.release_reservation()
            pause_s = 2 * backoff.pause_s
            state.backoffs[actor] = Backoff(frozenset(), pause_s, now + pause_s)
        else:
            state.backoffs[actor] = Backoff(tried, backoff.pause_s, now)
    if ledger.reserved:
        class_name = waiter.request.class_name
        state.reservation = Reservation(actor, class_name, gained_at, ledger.shortfall)


def _take(state: State, waiter: Waiter, best: Set[str], worst: Set[str]) -> None:
    request = waiter.request
    count = state.waiting.gang_size(gang_of(request)) or 1
    needs = request.resources, request.python, count, state.workers_for(request)
    state.workers.ledger.reserve(*needs, best, worst)
