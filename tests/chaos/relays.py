"""Machines that fail while a large value is sent to a group, or stays with the actor that made it.

Each trial sends an array to an actor on each of three machines: the client sends it to one, which
relays it.  Meanwhile, the store or the worker of a machine is killed, or the store is stopped for a
while.  Every call must end within END_S, with the right value or a true error.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import remotely
from remotely import ActorDied, RemotelyError, WorkerLost
from tests.chaos.finding import Finding, Trial, harmed
from tests.clusters import Started, Traces, freeze, processes, wait_until

MACHINES = 3
LEFT_S = 20.0  # within which killed or stopped processes leave nothing behind
END_S = 60.0
SIZES = (200_000, 1_000_000, 5_000_000)  # numbers: 1.6 to 40 MB


@remotely.remote_class
class Member:
    def total(self, value: Any) -> float:
        return float(value.sum())

    def make(self, size: int) -> Any:
        return np.ones(size)

    def machine(self) -> str:
        return os.environ["REMOTELY_HOST"]


class Stage:
    """A cluster of three machines, and an actor on each."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.draw = draw
        self.cluster = Started(folder, MACHINES, cpus=1)
        remotely.connect(self.cluster.address, key=self.cluster.key)
        self.group = self._new_group()

    def _new_group(self) -> Any:
        return remotely.group(Member, MACHINES)

    def pids(self, home: Path, module: str) -> list[int]:
        return [process.pid for process in processes(str(home), module)]

    def mend(self) -> None:
        """Restart killed workers, so that every member has a live machine again."""
        for home in self.cluster.homes:
            if not self.pids(home, "remotely.worker"):
                wait_until(lambda home=home: not processes(str(home)), "its end")  # type: ignore[misc]
                self.cluster.join(home)
        try:
            self.group.machine()
            return
        except RemotelyError:  # its frames still hold the handles
            del self.group
        self.group = self._new_group()

    def close(self) -> None:
        remotely.shutdown()
        self.cluster.stop()


def _kill(module: str, stage: Stage) -> None:
    home = stage.draw.choice(stage.cluster.homes)
    for pid in stage.pids(home, module):
        os.kill(pid, signal.SIGKILL)


def _stop(stage: Stage) -> None:
    home = stage.draw.choice(stage.cluster.homes)
    for pid in stage.pids(home, "remotely.store"):
        freeze(pid)
        time.sleep(stage.draw.uniform(0.1, 12.0))
        os.kill(pid, signal.SIGCONT)


def _trial(stage: Stage, harm: Callable[[Stage], None]) -> list[str]:
    size = stage.draw.choice(SIZES)
    after_s = stage.draw.uniform(0.0, 0.15)
    kept = remotely.ref(stage.group[0].make.submit(size))
    with harmed(after_s, partial(harm, stage)):
        futures: list[Future[float]] = [
            *stage.group.total.submit(np.ones(size)),
            *stage.group.total.submit(kept),
            *stage.group.total.submit(remotely.put(np.ones(size))),
        ]
        return [word for future in futures if (word := _wrong(future, size))]


def _wrong(future: "Future[float]", size: int) -> str:
    """Return what is wrong with an outcome; "" if it is a promised one."""
    try:
        value = future.result(END_S)
    except (ActorDied, WorkerLost):
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if value == size else f"{value} instead of {size}"


def _run(harm: Callable[[Stage], None], n: int, seed: int, folder: Path) -> Finding:
    begun, before = time.monotonic(), Traces()
    wrong: list[str] = []
    stage = Stage(folder / "stage", random.Random(seed))
    try:
        for number in range(n):
            wrong += [f"trial {number + 1}: {word}" for word in _trial(stage, harm)]
            stage.mend()
            if stage.group.total(np.ones(SIZES[0])) != [float(SIZES[0])] * MACHINES:
                wrong.append(f"after trial {number + 1} a group got another value")
    finally:
        stage.close()
    left = before.left_after(LEFT_S)
    wrong += [f"left behind: {name}: {value}" for name, value in left.items()]
    return Finding(n, time.monotonic() - begun, f"{9 * n} calls", wrong)


TRIALS = {
    "kill a store amid a transfer": Trial(300, partial(_run, partial(_kill, "remotely.store"))),
    "kill a relaying worker": Trial(300, partial(_run, partial(_kill, "remotely.worker"))),
    "stop a relay": Trial(25, partial(_run, _stop)),
}
