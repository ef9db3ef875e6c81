"""Messages about a lack of room: what is requested, what is free, who holds it, what to do.

The user sees them in NoResources, or on the terminal of a script that waits.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from remotely.master import lending
from remotely.master.state import ActorRecord, State
from remotely.master.waiting import gang_of
from remotely.protocol import control
from remotely.protocol.resources import Resources, listed

SHOWN = 3  # holders, by name
SEARCHED = 1000  # actors, for holders of the requested resources


class Holder(NamedTuple):
    """An actor that holds resources; `whose` is empty if the requesting script made it."""

    name: str
    has: Resources
    whose: str


def why_it_waits(request: control.Request, state: State) -> str:
    """Return why a request waits now."""
    if request.named and state.actors.ending(request.name):
        return f"the actor that is named {request.name!r} has been asked to end, and still runs"
    if not state.workers.records:
        return "no machine has joined the cluster"
    away = _may_return(state.workers.away(), state.is_recovering)
    where, among = _where(request, state), state.workers_for(request)
    if among is not None and among <= state.workers.ledger.away:
        return f"{request.class_name} must be {where}{away}"
    asked, actors = request.resources, state.actors.records
    searched = itertools.islice(actors.values(), SEARCHED)
    found = (record for record in searched if _has_some(lending.held(record), asked))
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
        why += f". It must be {where}"
    if state.reservation is not None and state.reservation.actor != request.actor:
        why += f". Room is reserved for {state.reservation.class_name}, which has waited longer"
    return why + _sick(state) + _draining(state) + away


def why_never(request: control.Request, count: int, state: State) -> tuple[str, str] | None:
    """Return an error and its message if `count` actors of a request can never live at once.

    Return None if they can, or may once a machine or an actor comes back.
    """
    ledger = state.workers.ledger
    if why := why_nowhere(request, state):
        return "NoResources", why
    among = state.workers_for(request)
    if state.is_recovering or (among is not None and not among):
        return None
    embedded = state.workers.only_size() if state.is_embedded else None
    if why := ledger.why_never(request.resources, request.python, among):
        if request.python not in ledger.pythons:
            return "VersionMismatch", why
        if embedded is not None:
            why += f". {advice(request.resources, embedded, state.uncounted)}"
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
    """Return why the machine or actor that a request names cannot exist; None if it may."""
    if state.is_recovering:
        return None
    if request.machine and not state.workers.on_machine(request.machine):
        return no_machine(request.machine, state.workers.machines())
    if not request.near or request.near in state.restarts.pending:
        return None
    if (record := state.actors.records.get(request.near)) is None:
        return "the actor that it must be near has ended, or is not placed yet"
    if record.worker in state.workers and not state.workers_for(request):
        return f"the actor that it must be near is on another machine than {request.machine!r}"
    return None


def no_machine(name: str, names: list[str]) -> str:
    """Return why no machine can be meant by a name; `names` are those of all machines."""
    be = "is" if len(names) == 1 else "are"
    there = f"there {be} {listed(names)}" if names else "none has joined"
    return f"no machine of this cluster is named {name!r}: {there}"


def _where(request: control.Request, state: State) -> str:
    where = [f"on {request.machine}"] if request.machine else []
    if request.near:
        between = ", which is being restarted" if request.near in state.restarts.pending else ""
        where.append(f"near another actor{between}")
    return listed(where) if where else ""


def _may_return(away: list[str], is_recovering: bool) -> str:
    """Return a sentence about the machines that may come back."""
    if away:
        return f". {listed(away)} cannot be reached now, and may come back"
    if is_recovering:
        return ". The master was restarted, and other machines may come back"
    return ""


def _sick(state: State) -> str:
    """Return sentences about the machines that cannot start actors."""
    found = itertools.islice(state.workers.sick.items(), SHOWN)
    named = ((state.workers.records[worker].register.machine, sick.why) for worker, sick in found)
    return "".join(f". {machine} is sick: {why}" for machine, why in named)


def _draining(state: State) -> str:
    """Return sentences about the machines that are about to leave."""
    found = itertools.islice(state.workers.draining, SHOWN)
    named = (state.workers.records[worker].register.machine for worker in found)
    return "".join(f". {machine} is being drained, and gets no actors" for machine in named)


def _has_some(has: Resources, asked: Resources) -> bool:
    """Return whether an actor holds some of the requested resources."""
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
        whose = f"of {hello}{_silence(hello.session, state)}" if hello else "of another script"
    return Holder(request.name, request.resources, whose)


def _silence(session: str, state: State) -> str:
    """Return for how long a client has been silent, if it may have ended; else ""."""
    silent_s, lease_s = state.leases.silent_s(session, state.now), state.leases.lease_s
    if session not in state.unheard:
        return ""
    return f", which has been silent for {silent_s:.0f} s of {lease_s:.0f}"


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
    """Return why a request waits.

    has_others   there are more than `holders`
    embedded     the size of an embedded cluster, which no machine can join; else None
    together     how many of these actors are placed at once
    uncounted    how many actors would hold a CPU each if CPUs were counted
    """
    free = most_free.clamped()
    if together > 1:
        text = f"{together} actors of {class_name}, placed together, ask for {asked} each"
    else:
        text = f"{class_name} asks for {asked}"
    labelled = " with that label" if asked.labels else ""
    text += f"; the most free on one machine{labelled} is {free}"
    if holders:
        named = [f"{h.name} ({', '.join(filter(None, (str(h.has), h.whose)))})" for h in holders]
        named += ["others"] * has_others
        text += f". {listed(named)} {'have' if len(named) > 1 else 'has'} the rest"
    text += (
        ". Close an actor, or drop its handles: `a = A()` makes the new actor before it drops the "
        "old one, and Out[n] of a notebook keeps a handle"
    )
    if embedded is None:
        text += ". Another machine that joins (remotely join) has room too"
        return f"{text}. {_SHARE_CORES}" if asked.cpus * together > free.cpus else text
    if asked.cpus * together > free.cpus:
        cpus = embedded.cpus - free.cpus + asked.cpus * together
        return f"{text}. {_more_cpus(cpus, uncounted)}"
    return text


def why_never_together(
    class_name: str,
    count: int,
    asked: Resources,
    fitting: int,
    embedded: Resources | None,
    uncounted: int = 0,
) -> str:
    """Return why a gang can never live at once: only `fitting` of `count` actors fit.

    `embedded` and `uncounted` as in `why_waiting`.
    """
    if embedded is None:
        text = (
            f"{count} actors of {class_name} live at once, each with {asked}; all machines "
            f"together have room for {fitting}, if nothing else lived there. Make a smaller group, "
            "ask for less, or join more machines first (remotely join)"
        )
        if asked != Resources(asked.cpus):  # CPUs may not be the shortage
            return text
        return f"{text}. {_SHARE_CORES}, or remotely start --cpus {math.ceil(asked.cpus * count)}"
    in_all = embedded
    others = tuple((name, amount * count) for name, amount in asked.others)
    together = Resources(asked.cpus * count, asked.gpus * count, asked.memory * count, others)
    has = Resources(
        in_all.cpus,
        in_all.gpus,
        in_all.memory if asked.memory else 0,
        tuple((name, in_all.amount_of(name)) for name, _ in asked.others),
    )
    text = f"{count} actors of {class_name} ask for {together}; this cluster has {has} in all"
    return f"{text}. {advice(together, in_all, uncounted)}"


def advice(asked: Resources, in_all: Resources, uncounted: int = 0) -> str:
    """Return what to do about a request that is larger than an embedded cluster.

    `uncounted` as in `why_waiting`.
    """
    if labels := [label for label in asked.labels if label not in in_all.labels]:
        named = ", ".join(map(repr, labels))
        return f"remotely.connect(labels=[{named}]), before the first actor, labels this machine"
    if asked.cpus > in_all.cpus:
        return _more_cpus(asked.cpus, uncounted)
    return "Ask for less, or use a larger cluster: remotely.connect(ADDRESS)"


def oversubscribed(state: State) -> str:
    """Return the notice for a script whose actors hold no CPUs and outnumber the cores."""
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
