"""Kills amid nested work: executors in functions of executors, on fewer cores than levels.

Each tree ends: in its value, or in the error of an actor that was killed.  When all have ended, the
master has every core again: what waiting actors lent and took back balances (master/lending.py).
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import remotely
from remotely.errors import ActorDied, RemotelyError
from tests.chaos.finding import Finding, Trial
from tests.clusters import wait_until

CPUS, DEPTH, WIDTH = 2, 3, 3
KILL_EVERY_S = 0.7
HANG_S = 120.0


@remotely.idempotent(retries=3)
def leaves(depth: int, width: int) -> int:
    if depth == 0:
        return 1
    with remotely.Executor() as executor:
        return sum(executor.map(leaves, [depth - 1] * width, [width] * width))


def nested(n: int, seed: int, folder: Path) -> Finding:
    """Kill n processes amid nested work, one after the other."""
    del folder
    begun, draw = time.monotonic(), random.Random(seed)
    remotely.connect(cpus=CPUS)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    over = threading.Event()

    def kill() -> None:
        for _ in range(n):
            time.sleep(draw.expovariate(1 / KILL_EVERY_S))
            with contextlib.suppress(RemotelyError, ProcessLookupError):
                if found := remotely.actors():
                    os.kill(draw.choice(found).pid, signal.SIGKILL)
        over.set()

    killer = threading.Thread(target=kill)
    killer.start()
    with remotely.Executor() as executor:
        while not over.is_set() or not outcomes["a value"]:
            try:
                found = executor.submit(leaves, DEPTH, WIDTH).result(HANG_S)
                outcomes["a value"] += 1
                if found != WIDTH**DEPTH:
                    wrong.append(f"{found} leaves of {WIDTH**DEPTH}")
            except ActorDied:
                outcomes["an actor died"] += 1
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {str(error)[:200]}")
    killer.join()
    wait_until(lambda: remotely.actors() == [], "the end of all actors")
    (machine,) = remotely.status().machines
    if machine.free_cpus != machine.cpus:
        wrong.append(f"{machine.free_cpus:g} of {machine.cpus:g} CPUs are free at the end")
    remotely.shutdown()
    told = ", ".join(f"{count:,} times {what}" for what, count in outcomes.most_common())
    return Finding(n, time.monotonic() - begun, told, wrong)


TRIALS = {"kill amid nested work": Trial(300, nested)}
