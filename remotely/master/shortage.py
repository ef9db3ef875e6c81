"""The sentences about a lack of room: what is asked for, what is free, who has it, what to do.

They reach the user in NoResources, or on the terminal of a script that waits.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from remotely.master.state import ActorRecord, State
from remotely.master.waiting import gang_of
from remotely.protocol import control
from remotely.protocol.resources import Resources, listed

SHOWN = 3  # holders, by name
SEARCHED = 1000  # actors, for those who hold some of what is asked for


class Holder(NamedTuple):
    """An actor that has a place; `whose` is empty if the script that asks made it."""

    name: str
    has: Resources
    whose: str


def why_it_waits(request: control.Request, state: State) -> str:
    """Return why a request waits on this cluster, as it is now."""
    if request.named and state.actors.ending(request.name):
        return f"the actor that is named {request.name!r} has been asked to end, and still runs"
    if not state.workers.records:
        return "no machine has joined the cluster"
    away = who_may_return(state.workers.away(), state.is_learning)
    where, among = _where(request, state), state.workers_for(request)
    if among is not None and among <= state.workers.ledger.away:
        return f"{request.class_name} is to be {where}{away}"
    asked, actors = request.resources, state.actors.records
    searched = itertools.islice(actors.values(), SEARCHED)
    found = (record for record in searched if _has_some(record.request.resources, asked))
    holders = [_holder(r, request.job, state) for r in itertools.islice(found, SHOWN + 1)]
    why = why_waiting(
        request.class_name,
        asked,
        state.workers.ledger.most_free(asked),
        holders[:SHOWN],
        len(holders) > SHOWN or len(actors) > SEARCHED,
        state.workers.only_size() if state.is_embedded else None,
        request.together if gang_of(request) else 1,
        state.uncounted,
    )
    if where:
        why += f". It is to be {where}"
    if state.kept is not None and state.kept.actor != request.actor:
        why += f". Room is kept for {state.kept.class_name}, which has waited longer"
    return why + away


def why_never(request: control.Request, count: int, state: State) -> tuple[str, str] | None:
    """Return the error and the words for `count` of a request, which can never live at once.

    None if they can, or if there may be room where a machine or an actor comes back.
    """
    ledger = state.workers.ledger
    if why := why_nowhere(request, state):
        return "NoResources", why
    among = state.workers_for(request)
    if state.is_learning or (among is not None and not among):
        return None
    embedded = state.workers.only_size() if state.is_embedded else None
    if why := ledger.why_never(request.resources, request.python, among):
        if request.python not in ledger.pythons:
            return "VersionMismatch", why
        if embedded is not None:
            why += f". {way_out(request.resources, embedded, state.uncounted)}"
        return "NoResources", why
    if count == 1:
        return None
    fitting = ledger.copies_in_all(request.resources, request.python, count, among)
    if fitting >= count:
        return None
    return "NoResources", why_never_together(
        request.class_name, count, request.resources, fitting, embedded, state.uncounted
    )


def why_nowhere(request: control.Request, state: State) -> str | None:
    """Return why there is no place as a request names it, and will not be; None if there may be."""
    if state.is_learning:
        return None
    if request.machine and not state.workers.on_machine(request.machine):
        names = state.workers.machines()
        be = "is" if len(names) == 1 else "are"
        return (
            f"no machine of this cluster is named {request.machine!r}: there {be} {listed(names)}"
        )
    if not request.near or request.near in state.restarts.due:
        return None
    if (record := state.actors.records.get(request.near)) is None:
        return "the actor that it is to be near has ended, or has no place yet"
    if record.worker in state.workers and not state.workers_for(request):
        return f"the actor that it is to be near is on another machine than {request.machine!r}"
    return None


def _where(request: control.Request, state: State) -> str:
    where = [f"on {request.machine}"] if request.machine else []
    if request.near:
        between = ", which is between two lives" if request.near in state.restarts.due else ""
        where.append(f"near another actor{between}")
    return listed(where) if where else ""


def who_may_return(away: list[str], is_learning: bool) -> str:
    """Return who is waited for, as the end of a sentence."""
    if away:
        return f". {listed(away)} cannot be reached now, and may come back"
    if is_learning:
        return ". The master was started again, and other machines may come back"
    return ""


def _has_some(has: Resources, asked: Resources) -> bool:
    """Tell whether an actor holds some of what is asked for."""
    return bool(
        (has.cpus and asked.cpus)
        or (has.gpus and asked.gpus)
        or (has.memory and asked.memory)
        or any(has.amount_of(name) for name, _ in asked.others)
    )


def _holder(record: ActorRecord, job: str, state: State) -> Holder:
    request, whose = record.request, ""
    if request.job != job:
        session = state.sessions.get(request.owner)
        hello = session and session.hello
        whose = f"of pid {hello.pid} on {hello.machine}" if hello else "of another script"
    return Holder(request.name, request.resources, whose)


def why_waiting(
    class_name: str,
    asked: Resources,
    most_free: Resources,
    holders: Sequence[Holder],
    has_others: bool,
    embedded: Resources | None,
    together: int = 1,
    uncounted: int = 0,
) -> str:
    """Return why a request waits.  `has_others`: there are more than `holders`.

    `embedded`: all that the cluster has, if it is a script's own; no machine can join that.
    `together`: how many of these are placed at once.
    `uncounted`: how many actors hold a CPU each as soon as these are counted.
    """
    free = most_free.at_least_none()
    if together > 1:
        said = f"{together} actors of {class_name}, which live at once, ask for {asked} each"
    else:
        said = f"{class_name} asks for {asked}"
    said += f"; the most that a machine has free is {free}"
    if holders:
        named = [f"{h.name} ({', '.join(filter(None, (str(h.has), h.whose)))})" for h in holders]
        named += ["others"] * has_others
        said += f". {listed(named)} {'have' if len(named) > 1 else 'has'} the rest"
    said += (
        ". Close an actor, or let go of its handles: `a = A()` makes the new actor before it lets "
        "go of the old one, and Out[n] of a notebook keeps a handle"
    )
    if embedded is None:
        said += ". Another machine that joins (remotely join) has room too"
        return f"{said}. {_SHARE_CORES}" if asked.cpus * together > free.cpus else said
    if asked.cpus * together > free.cpus:
        cpus = embedded.cpus - free.cpus + asked.cpus * together
        return f"{said}. {_more_cpus(cpus, uncounted)}"
    return said


def why_never_together(
    class_name: str,
    count: int,
    asked: Resources,
    fitting: int,
    embedded: Resources | None,
    uncounted: int = 0,
) -> str:
    """Return why a group can never live at once: there is room for `fitting` of its `count`.

    `embedded` and `uncounted` as in `why_waiting`.
    """
    if embedded is None:
        said = (
            f"{count} actors of {class_name} live at once, each with {asked}; all machines "
            f"together have room for {fitting}, if nothing else lived there. Make a smaller group, "
            "ask for less, or join more machines first (remotely join)"
        )
        if asked != Resources(asked.cpus):  # something else may be what lacks
            return said
        return f"{said}. {_SHARE_CORES}, or remotely start --cpus {math.ceil(asked.cpus * count)}"
    in_all = embedded
    others = tuple((name, amount * count) for name, amount in asked.others)
    together = Resources(asked.cpus * count, asked.gpus * count, asked.memory * count, others)
    has = Resources(
        in_all.cpus,
        in_all.gpus,
        in_all.memory if asked.memory else 0,
        tuple((name, in_all.amount_of(name)) for name, _ in asked.others),
    )
    said = f"{count} actors of {class_name} ask for {together}; this cluster has {has} in all"
    return f"{said}. {way_out(together, in_all, uncounted)}"


def way_out(asked: Resources, in_all: Resources, uncounted: int = 0) -> str:
    """Return what to do about a request that is larger than a script's own cluster.

    `uncounted` as in `why_waiting`.
    """
    if asked.cpus > in_all.cpus:
        return _more_cpus(asked.cpus, uncounted)
    return "Ask for less, or use a larger cluster: remotely.connect(ADDRESS)"


def crowd(state: State) -> str:
    """Return what to tell a script whose actors outnumber the cores, and do not wait for one."""
    cores = f"{state.workers.ledger.cpus:g}"
    return (
        f"more actors live than this machine has cores ({cores}), which they share. To have each "
        f"wait for a core of its own: @remotely.remote_class(cpus=1), or remotely.connect(cpus="
        f"{cores}) for all that name no cpus"
    )


_SHARE_CORES = (
    "To share cores, as on a script's own cluster: @remotely.remote_class(cpus=0), which waits for "
    "none"
)


def _more_cpus(cpus: float, uncounted: int) -> str:
    return (
        f"remotely.connect(cpus={math.ceil(cpus) + uncounted}), before the first actor, lets more "
        "of them share this machine's cores; @remotely.remote_class(cpus=0.1) asks for less"
    )
