"""The CPUs that waiting actors lend.

An actor that waits uses no CPU, and what it waits for may need one.  An executor inside a function
of an executor would otherwise wait for the cores that its callers hold.  So an actor lends its
CPUs:

    to its own requests   while such a request is tried (`to_own_requests`), the actor's CPUs count
                          as free, and its worker as not overdrawn.  So nested work always goes on,
                          however many levels already wait.  An actor can lend this way no more CPUs
                          than it has: those of the living actors that it placed so are subtracted
    to everybody          as long as it waits, its CPUs are free in the ledger (`update`)

It waits while a request that it made is in the queue, and while it reports that its main thread
waits for another actor (wait_graph.py).  Executors and async methods request actors without
blocking the main thread; they need the CPUs all the same.

The actor takes its CPUs back when its wait ends, and preempts nobody.  If others have them by then,
more is allocated than there is: the free CPUs of the worker are negative, which `remotely status`
shows, and nothing else is placed there until they are not.

Not lent: memory and GPUs, whose contents the actor keeps, and custom resources, such as a license
that it has opened.

Pure.  Refused: to lend only after the main thread has reported a wait, because joblib polls and
asyncio never blocks; and to count a borrower as free for as long as it lives, because the actor may
run beside it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from remotely.master.state import ActorRecord, State
from remotely.protocol.resources import Resources

STALE_S = 5.0  # after the last report of a wait; it is repeated every second


def waits(state: State, actor: str) -> bool:
    """Return whether an actor waits for room or for another actor."""
    return state.waiting.any_inside(actor) or actor in state.wait_graph


def held(record: ActorRecord) -> Resources:
    """Return what an actor holds in the ledger."""
    asked = record.request.resources
    return msgspec.structs.replace(asked, cpus=0.0) if record.lends else asked


def update(state: State, record: ActorRecord) -> bool:
    """Lend or take back the CPUs of an actor that began or ended a wait.

    Returns whether they are free now, and were not before.
    """
    cpus = record.request.resources.cpus
    if not cpus or record.lends == waits(state, record.request.actor):
        return False
    record.lends = not record.lends
    ledger = state.workers.ledger
    change = ledger.release if record.lends else ledger.allocate
    change(record.worker, Resources(cpus), (), actors=0)
    return record.lends


@contextmanager
def to_own_requests(state: State, actor: str) -> Iterator[bool]:
    """Count what an actor can lend to its own requests as free; yield False if there is nothing.

    The actors that are placed meanwhile are its borrowers.
    """
    lender = state.actors.records.get(actor)
    cpus = _lendable(state, lender) if lender else 0.0
    if lender is None or not cpus:
        yield False
        return
    ledger = state.workers.ledger
    extra = Resources(cpus + max(0.0, -ledger.free(lender.worker).cpus))
    ledger.release(lender.worker, extra, (), actors=0)
    state.actors.lender = actor
    try:
        yield True
    finally:
        state.actors.lender = ""
        ledger.allocate(lender.worker, extra, (), actors=0)


def _lendable(state: State, lender: ActorRecord) -> float:
    if lender.worker not in state.workers:
        return 0.0
    borrowers = state.actors.by_lender.of(lender.request.actor)
    lent = sum(state.actors.records[actor].request.resources.cpus for actor in borrowers)
    return max(0.0, lender.request.resources.cpus - lent)


def take_changed(state: State) -> list[str]:
    """Return the actors since the last call that are new, or whose waits have begun or ended."""
    changed: dict[str, None] = {}
    for table in (state.waiting, state.wait_graph, state.actors):
        changed |= table.changed
        table.changed.clear()
    return list(changed)


def take_repaid(state: State) -> list[str]:
    """Return the actors that can lend again since the last call: a borrower has ended."""
    repaid, state.actors.repaid = state.actors.repaid, {}
    return list(repaid)
