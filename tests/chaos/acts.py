"""The faults injected into a cluster under load; each act is one row of the figures.

kill      SIGKILL, at exponential intervals, to a random process of a role
stop      SIGSTOP, and SIGCONT after less or more than a lease
weather   network faults: relay.py
"""

import functools
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.finding import Finding, Trial
from tests.chaos.load import ACTORS_A_THREAD, THREADS
from tests.chaos.stage import CLIENTS, ROLES, Stage, within

ACTORS = CLIENTS * THREADS * ACTORS_A_THREAD
WELL_S = 60.0  # within which calls run again after each act


class Act(NamedTuple):
    """A fault that is injected `n` times for the published figures; `once` injects it once."""

    n: int
    once: Callable[[Stage, random.Random], None]
    through_relay: bool = False
    guests: int = 0  # guest processes for the clients to call instead of actors of their own


def _kill(role: str, every_s: float) -> Callable[[Stage, random.Random], None]:
    def once(stage: Stage, draw: random.Random) -> None:
        time.sleep(draw.expovariate(1 / every_s))
        pid = stage.victim(role)
        while pid is None:
            stage.mend()
            time.sleep(0.02)
            pid = stage.victim(role)
        stage.signal(pid, signal.SIGKILL)
        if role != "actor":
            stage.mend()

    return once


def _kill_an_end(stage: Stage, draw: random.Random) -> None:
    """Kill a random party of the connection between a served object and its callers."""
    role = draw.choice(("actor", "actor", "client", "worker"))
    _kill(role, 0.7)(stage, draw)
    stage.mend()


def _stop(role: str, shortest_s: float, longest_s: float) -> Callable[[Stage, random.Random], None]:
    def once(stage: Stage, draw: random.Random) -> None:
        time.sleep(draw.uniform(0.1, 0.5))
        if (pid := stage.victim(role)) is not None:
            stage.signal(pid, signal.SIGSTOP)
            time.sleep(draw.uniform(shortest_s, longest_s))
            stage.signal(pid, signal.SIGCONT)
        stage.mend()

    return once


def _weather(
    word: Callable[[random.Random], str], shortest_s: float, longest_s: float
) -> Callable[[Stage, random.Random], None]:
    def once(stage: Stage, draw: random.Random) -> None:
        time.sleep(draw.uniform(0.1, 0.5))
        stage.weather(word(draw))
        time.sleep(draw.uniform(shortest_s, longest_s))
        stage.weather("pass")
        stage.mend()

    return once


def _flap(stage: Stage, draw: random.Random) -> None:
    for _ in range(draw.randrange(2, 8)):
        stage.weather(draw.choice(("full", "up", "down", "reset")))
        time.sleep(draw.uniform(0.02, 0.4))
        stage.weather("pass")
        time.sleep(draw.uniform(0.02, 0.4))


def _kill_master_amid_births(stage: Stage, draw: random.Random) -> None:
    """Kill the master while the owners of some dead actors restart them."""
    time.sleep(draw.uniform(0.2, 1.0))
    for _ in range(draw.randrange(1, 5)):
        if (actor := stage.victim("actor")) is not None:
            stage.signal(actor, signal.SIGKILL)
    time.sleep(draw.uniform(0.0, 0.1))
    if (master := stage.victim("master")) is not None:
        stage.signal(master, signal.SIGKILL)
    stage.mend()


def _cut_amid_an_owners_end(stage: Stage, draw: random.Random) -> None:
    """Cut the network while a client ends, so that its end may not reach the workers."""
    stage.await_clients(WELL_S)
    time.sleep(draw.uniform(0.0, 0.5))
    stage.dismiss()
    time.sleep(draw.uniform(0.0, 0.1))
    stage.weather(draw.choice(("full", "up", "down")))
    time.sleep(draw.uniform(0.0, 1.0))
    stage.weather("reset")  # a surviving connection has lost nothing, since TCP retransmits
    time.sleep(0.1)
    stage.weather("pass")
    stage.mend()


ACTS = {
    "kill actor": Act(1000, _kill("actor", 0.1)),
    "kill worker": Act(300, _kill("worker", 1.0)),
    "kill client": Act(300, _kill("client", 0.7)),
    "kill master": Act(100, _kill("master", 1.5)),
    "kill an end of a served object": Act(300, _kill_an_end, guests=ACTORS),
    "kill master amid births": Act(300, _kill_master_amid_births),
    "cut amid an owner's end": Act(300, _cut_amid_an_owners_end, True),
    **{f"stop {role} briefly": Act(25, _stop(role, 0.2, 8.0)) for role in ROLES},
    **{f"stop {role} for long": Act(25, _stop(role, 16.0, 24.0)) for role in ROLES},
    "partition": Act(100, _weather(lambda _: "full", 0.5, 20.0), True),
    "one way": Act(100, _weather(lambda draw: draw.choice(("up", "down")), 0.5, 20.0), True),
    "flapping": Act(100, _flap, True),
    "stall": Act(100, _weather(lambda _: "stall", 0.2, 20.0), True),
    "delay of 500 ms": Act(100, _weather(lambda _: "delay=500", 0.5, 5.0), True),
    "cut within a frame": Act(
        100, _weather(lambda draw: f"cut={draw.randrange(1, 3000)}", 0.2, 1.0), True
    ),
}


def run(name: str, n: int, seed: int, folder: Path) -> Finding:
    """Inject a fault n times into a new cluster, and judge the journals."""
    act = ACTS[name]
    draw = random.Random(f"{seed}:{name}")
    begun = time.monotonic()
    stage = Stage(folder / "stage", seed, act.through_relay, act.guests)
    unwell = []
    try:
        if not stage.await_calls(100, WELL_S):
            unwell.append("no calls ran at the start")
        for number in range(n):
            act.once(stage, draw)
            if number % 10 == 9 and not stage.await_calls(20, WELL_S):
                unwell.append(f"after {number + 1}: no calls ran within {WELL_S:.0f} s")
        stage.mend()
        if not stage.await_calls(100, WELL_S):
            unwell.append("at the end no calls ran any more")
        if not within(WELL_S, lambda: len(stage.pids("actor")) <= ACTORS):
            unwell.append(f"more live than {ACTORS} actors: {stage.pids('actor')}")
    finally:
        verdict, left = stage.close()
    unwell += [f"left behind: {name}: {value}" for name, value in left.items()]
    return Finding(n, time.monotonic() - begun, str(verdict), verdict.anomalies + unwell)


TRIALS = {name: Trial(act.n, functools.partial(run, name)) for name, act in ACTS.items()}
