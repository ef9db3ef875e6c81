"""A played week of a cluster of 100 machines and 5,000 actors: the master's core without I/O.

Machines become sick (their starts fail, or never have an outcome) and recover, are swept clean,
renamed, cut off, drained and killed; scripts end and start again; the master is restarted; beats
are late under a storm of output.  Each script wants its actors to live, by name, some detached.

What must hold: no name is lost (once all is well again, each wanted actor lives) and none is double
(two living actors of one name, both within the master's reach); an actor that moves away from a
machine that is drained gets its next life, as long as its script lives; no lease is lost by late
beats; and the indexes of the master agree with a linear search.
"""

import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from remotely.protocol import control
from tests.chaos.finding import Finding, Trial
from tests.remotely.master.played import GIB, LEASE_S, Cluster, check

DAY_S = 86_400
BEAT_S = 3.0
LATE_S = LEASE_S - 1.0  # a storm delays beats by this much, less than a lease
RECONNECT_S = 6.0  # within which peers return to a restarted master
PATIENCE_S = 60.0


@dataclass
class Machine:
    """A machine: its worker of now, and what is wrong with it."""

    name: str
    worker: str
    cpus: int
    sick: str = ""  # "fails" or "stuck"
    is_cut_off: bool = False
    stuck: dict[str, control.Spawn] = field(default_factory=dict)  # starts without an outcome
    drains_until: float = 0.0  # when its worker leaves
    must_leave: bool = False  # it was sent SIGTERM


@dataclass
class Script:
    """A script, which wants actors of these names to live."""

    session: str
    names: list[str]
    alive: dict[str, str] = field(default_factory=dict)  # the actor of a name
    asked: dict[int, control.Request] = field(default_factory=dict)  # by ticket
    looked_up: dict[int, str] = field(default_factory=dict)  # the name, by ticket
    made: set[str] = field(default_factory=set)  # actors
    moved: set[str] = field(default_factory=set)  # those whose next life waits without a limit


class Week:
    """The cluster, its machines and scripts, and the events of a seed."""

    def __init__(self, seed: int, machines: int, actors: int) -> None:
        self.draw = random.Random(seed)
        self.cluster = Cluster()
        self.cluster.core.state.counts_cpus = True
        self.numbers = itertools.count()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        each = -(-actors // machines)
        self.machines = [
            Machine(f"machine-{n}", self._new("worker"), cpus=each + each // 4)
            for n in range(machines)
        ]
        scripts = max(1, machines // 5)
        self.scripts = [
            Script(self._new("script"), [f"name-{s}-{n}" for n in range(-(-actors // scripts))])
            for s in range(scripts)
        ]
        for machine in self.machines:
            self._joins(machine)
        for script in self.scripts:
            self.cluster.hello(script.session)
        self.settle()

    def _new(self, what: str) -> str:
        return f"{what}-{next(self.numbers)}"

    @property
    def within_reach(self) -> list[Machine]:
        return [m for m in self.machines if not m.is_cut_off]

    # --- what peers do ----------------------------------------------------------------------------

    def _joins(self, machine: Machine) -> None:
        drains_s = machine.drains_until and max(0.001, machine.drains_until - self.cluster.now)
        self.cluster.joins(
            machine.worker,
            machine.cpus,
            machine=machine.name,
            drains_s=drains_s,
            must_leave=machine.must_leave,
        )

    def _starts(self, machine: Machine, spawn: control.Spawn) -> None:
        """Let a worker start an actor, or not."""
        if machine.sick == "stuck":
            machine.stuck[spawn.request.actor] = spawn
            return
        self.cluster.to_spawn = [(machine.worker, spawn)]  # no other: those are in the outbox
        if machine.sick == "fails":
            self.cluster.fails(spawn.request.actor)
            self.counts["starts that failed"] += 1
        else:
            self.cluster.spawns()

    def _reads(self) -> bool:
        """Let peers act on what the master has sent; return whether there was anything."""
        outbox, self.cluster.outbox = self.cluster.outbox, []
        self.cluster.to_spawn.clear()  # it is in the outbox too, in the order of the messages
        scripts = {script.session: script for script in self.scripts}
        reached = {machine.worker: machine for machine in self.within_reach}
        for who, message in outbox:
            if who in scripts:
                self._tells(scripts[who], message)
            elif (machine := reached.get(who)) is None or who not in self.cluster.core.workers:
                continue  # it never hears of it
            elif isinstance(message, control.End) and message.moves:
                self._moves(machine, message.actor)
            elif isinstance(message, control.End):
                self._ends(machine, message.actor)
            elif isinstance(message, control.Spawn):
                self._starts(machine, message)
            elif isinstance(message, control.Stay):
                self._moves(machine, message.actor, stays=True)
            elif isinstance(message, control.Drain):
                self._drains(machine, message)
        return bool(outbox)

    def _moves(self, machine: Machine, actor: str, stays: bool = False) -> None:
        living = self.cluster.living[machine.worker]
        if actor in living:
            living[actor] = msgspec.structs.replace(living[actor], moves=not stays)
            if stays:
                self.counts["moves that were withdrawn"] += 1
                self.cluster.says(machine.worker, control.Stay(actor=actor))

    def _drains(self, machine: Machine, ask: control.Drain) -> None:
        if not ask.undo:
            machine.drains_until = self.cluster.now + ask.within_s
        elif not machine.must_leave:
            machine.drains_until = 0.0
            for actor, status in list(self.cluster.living[machine.worker].items()):
                if status.moves:
                    self._moves(machine, actor, stays=True)
            self.cluster.says(machine.worker, control.Leaving(within_s=0.0))

    def _drained_machines_go_on(self) -> None:
        """Let actors end their moves, and workers leave that have no actor left or no time."""
        for machine in self.machines:
            living = self.cluster.living.get(machine.worker, {})
            for actor, status in list(living.items()):
                if status.moves and self.draw.random() < 0.3:
                    self.counts["moves"] += 1
                    del living[actor]
                    obituary = control.Obituary(
                        actor=actor, life=status.request.life, moved=True, exited=True
                    )
                    if not machine.is_cut_off:
                        died = control.Died(obituary=obituary, lived=status)
                        self.cluster.says(machine.worker, died)
            is_over = not (living or machine.stuck) or self.cluster.now >= machine.drains_until
            if machine.drains_until and is_over and not machine.is_cut_off:
                self.counts["machines that have left"] += 1
                self.cluster.leaves(machine.worker)
                self._replace_worker(machine)

    def _ends(self, machine: Machine, actor: str) -> None:
        living = self.cluster.living[machine.worker]
        ended = machine.stuck.pop(actor, None) or living.pop(actor, None)
        if ended is not None:
            obituary = control.Obituary(actor=actor, life=ended.request.life)
            self.cluster.says(machine.worker, control.Died(obituary=obituary))

    def _tells(self, script: Script, message: msgspec.Struct) -> None:
        match message:
            case control.Placed(ticket=ticket, location=location):
                if (request := script.asked.pop(ticket, None)) is not None:
                    script.alive[request.name] = location.actor
            case control.NotPlaced(ticket=ticket, error=error):
                if (request := script.asked.pop(ticket, None)) is not None:
                    self.counts[f"requests that ended in {error}"] += 1
                    if request.actor in script.moved and error == "NoResources":
                        self.wrong.append(f"{request.name} has moved, and was given up")
                    script.alive.pop(request.name, None)
                    if error == "NameTaken":
                        self._looks_up(script, request.name)
            case control.Located(ticket=ticket, location=location):
                if name := script.looked_up.pop(ticket, ""):
                    script.alive.pop(name, None)
                    if location is not None:
                        script.alive[name] = location.actor
            case control.Died(obituary=obituary):
                self._is_told_of_a_death(script, obituary)

    def _is_told_of_a_death(self, script: Script, obituary: control.Obituary) -> None:
        pending = self.cluster.state.restarts.pending.get(obituary.actor)
        if obituary.moved and obituary.actor in script.made:
            script.moved.add(obituary.actor)
            if not (obituary.restarting or obituary.asked):
                self.wrong.append(f"{obituary.actor} has moved, and nobody makes its next life")
        if obituary.restarting:
            if pending is not None and pending.request.maker == script.session:
                request = msgspec.structs.replace(pending.request, life=obituary.life + 1)
                self._places(script, request)
            return
        for name, actor in list(script.alive.items()):
            if actor == obituary.actor:
                del script.alive[name]

    def _looks_up(self, script: Script, name: str, actor: str = "") -> None:
        ticket = next(self.cluster.tickets)
        script.looked_up[ticket] = name
        locate = control.Locate(ticket=ticket, name="" if actor else name, actor=actor)
        self.cluster.says(script.session, locate)

    def _places(self, script: Script, request: control.Request) -> None:
        ticket = next(self.cluster.tickets)
        script.asked[ticket] = request
        script.made.add(request.actor)
        patience_s = control.LONGEST_S if request.actor in script.moved else PATIENCE_S
        place = control.Place(ticket=ticket, request=request, patience_s=patience_s)
        self.cluster.says(script.session, place)

    def _wants(self) -> None:
        """Let scripts ask for the actors that they miss, and for those to which they have lost the
        connection."""
        living = {actor for m in self.machines for actor in self.cluster.living[m.worker]}
        for script in self.scripts:
            under_way = {r.name for r in script.asked.values()} | set(script.looked_up.values())
            for name, actor in list(script.alive.items()):
                if actor not in living and name not in under_way:
                    self._looks_up(script, name, actor)
                    under_way.add(name)
            for number, name in enumerate(script.names):
                if name in script.alive or name in under_way:
                    continue
                actor, is_detached = self._new("actor"), number % 2 == 0
                request = control_request(actor, script.session, name, is_detached)
                self._places(script, request)

    # --- time -------------------------------------------------------------------------------------

    def step(self, seconds: float = BEAT_S, are_late: bool = False) -> None:
        """Let time pass.  If beats `are_late`, none is heard until the end of it."""
        before = set(self.cluster.core.workers)
        cut_off = [machine.worker for machine in self.machines if machine.is_cut_off]
        self.cluster.advance(seconds, but=cut_off)
        lost = before - set(self.cluster.core.workers) - set(cut_off)
        if lost and are_late:
            self.wrong.append(f"late beats lost the lease of {sorted(lost)}")
        self._wants()
        for _ in range(1000):
            if not self._reads():
                break
        else:
            self.wrong.append("messages without an end")
        self._drained_machines_go_on()
        self._looks_for_doubles()

    def _looks_for_doubles(self) -> None:
        seen: dict[str, str] = {}
        for machine in self.within_reach:
            if machine.worker not in self.cluster.core.workers:
                continue
            for actor, status in self.cluster.living[machine.worker].items():
                name = status.request.name
                if name in seen:
                    self.wrong.append(f"{name} lives twice: {seen[name]} and {actor}")
                seen[name] = actor

    # --- events -----------------------------------------------------------------------------------

    def falls_sick(self) -> None:
        machine = self.draw.choice(self.machines)
        machine.sick = self.draw.choice(["fails", "stuck"])

    def recovers(self) -> None:
        for machine in self.machines:
            if machine.sick and self.draw.random() < 0.5:
                self._heal(machine)

    def _heal(self, machine: Machine) -> None:
        machine.sick = ""
        if not machine.is_cut_off:  # what hung goes on
            stuck, machine.stuck = machine.stuck, {}
            for spawn in stuck.values():
                self._starts(machine, spawn)

    def is_swept_clean(self) -> None:
        """A cleaner removes the folder of a worker: it leaves, and another is started."""
        self._replace_worker(self.draw.choice(self.machines))

    def _replace_worker(self, machine: Machine) -> None:
        self.cluster.loses(machine.worker)
        self.cluster.living.pop(machine.worker, None)
        machine.worker, machine.is_cut_off, machine.sick = self._new("worker"), False, ""
        machine.drains_until, machine.must_leave = 0.0, False
        machine.stuck.clear()
        self._joins(machine)

    def is_renamed(self) -> None:
        machine = self.draw.choice(self.within_reach)
        machine.name = self._new("machine")
        self.cluster.loses_route(machine.worker)
        self._joins(machine)

    def is_cut_off(self) -> None:
        self.draw.choice(self.machines).is_cut_off = True

    def returns(self) -> None:
        for machine in self.machines:
            if machine.is_cut_off and self.draw.random() < 0.5:
                self._connects(machine)

    def _connects(self, machine: Machine) -> None:
        machine.is_cut_off = False
        self._joins(machine)

    def is_drained(self) -> None:
        self._asks_for_drain(self.draw.choice(self.machines), undo=False)

    def is_undrained(self) -> None:
        for machine in self.machines:
            if machine.drains_until:
                self._asks_for_drain(machine, undo=True)

    def _asks_for_drain(self, machine: Machine, undo: bool) -> None:
        within_s = self.draw.choice([15.0, 120.0, 600.0])
        ask = control.Drain(within_s=within_s, ticket=1, machine=machine.worker, undo=undo)
        self.cluster.says(self.scripts[0].session, ask)

    def is_terminated(self) -> None:
        machine = self.draw.choice(self.machines)
        machine.drains_until, machine.must_leave = self.cluster.now + 20.0, True
        if not machine.is_cut_off:
            self.cluster.says(machine.worker, control.Leaving(within_s=20.0))

    def is_killed(self) -> None:
        machine = self.draw.choice(self.machines)
        living = list(self.cluster.living.get(machine.worker, {}))
        if living and not machine.is_cut_off:
            self._ends(machine, self.draw.choice(living))

    def script_ends(self) -> None:
        script = self.draw.choice(self.scripts)
        self.cluster.loses_client(script.session)
        script.session = self._new("script")
        script.alive.clear()
        script.asked.clear()
        script.looked_up.clear()
        script.made.clear()
        script.moved.clear()
        self.cluster.hello(script.session)
        for number, name in enumerate(script.names):
            if number % 2 == 0:  # detached: perhaps it lives
                self._looks_up(script, name)

    def master_restarts(self) -> None:
        self.cluster.outbox.clear()
        self.cluster.to_spawn.clear()
        until = self.cluster.now + LEASE_S
        self.cluster.starts_master(recovers_until=until)
        self.cluster.admission = self.cluster.core.state.admission
        peers: list[Machine | Script] = [*self.within_reach, *self.scripts]
        self.draw.shuffle(peers)
        pause = RECONNECT_S / len(peers)
        for peer in peers:
            self.cluster.now += pause
            if isinstance(peer, Machine):
                self._joins(peer)
            else:
                self.cluster.hello(peer.session)
                for ticket, request in list(peer.asked.items()):  # they were not answered
                    del peer.asked[ticket]
                    self._places(peer, request)
                for ticket, name in list(peer.looked_up.items()):
                    del peer.looked_up[ticket]
                    self._looks_up(peer, name)

    def storm(self) -> None:
        self.step(LATE_S, are_late=True)

    # --- the whole --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Mend everything, and let enough time pass for benches, patience and expectations."""
        for machine in self.machines:
            if machine.is_cut_off:
                self._connects(machine)
            self._heal(machine)
        for _ in range(400):
            self.step(BEAT_S)

    def play(self, days: float, events_a_day: float) -> None:
        kinds = [self.falls_sick, self.recovers, self.is_cut_off, self.returns] * 2
        kinds += [self.is_killed] * 6
        kinds += [self.is_drained, self.is_drained, self.is_undrained, self.is_terminated]
        kinds += [self.is_swept_clean, self.is_renamed, self.script_ends, self.storm]
        for number in range(int(days * events_a_day)):
            event = self.draw.choice(kinds) if number % 25 else self.master_restarts
            self.counts[event.__name__.replace("_", " ")] += 1
            event()
            for _ in range(self.draw.randrange(1, 30)):  # then nothing happens until the next
                self.step()
            if number % 50 == 0:
                check(self.cluster)
        self.settle()
        check(self.cluster)
        for script in self.scripts:
            living = {
                status.request.name
                for machine in self.machines
                for status in self.cluster.living[machine.worker].values()
            }
            if missing := set(script.names) - living:
                self.wrong.append(f"{len(missing)} actors are lost: {sorted(missing)[:5]}")


def control_request(actor: str, who: str, name: str, is_detached: bool) -> control.Request:
    """Return the request for an actor of a script that restarts."""
    from tests.remotely.master.played import request_of

    owner = "" if is_detached else who
    return request_of(
        actor, who, name=name, named=True, owner=owner, max_restarts=5, memory=GIB // 1000
    )


def weeks(n: int, seed: int, folder: Path) -> Finding:
    """Play n events in a cluster of 100 machines and 5,000 actors."""
    del folder
    begun = time.monotonic()
    week = Week(seed, machines=100, actors=5_000)
    week.play(days=7, events_a_day=n / 7)
    told = ", ".join(f"{count:,} {what}" for what, count in week.counts.most_common())
    return Finding(n, time.monotonic() - begun, told, week.wrong)


TRIALS = {"a played week": Trial(700, weeks)}
