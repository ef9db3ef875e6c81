"""The time to detection of a death: from the kill, or the cut, to the exception at the caller."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import psutil

import remotely
from remotely.errors import ActorDied, WorkerLost
from tests.chaos.finding import Finding, Trial
from tests.clusters import Started
from tests.machines import MASTER, PORT, Machines, why_not

ACTOR_S = 0.2  # the promises
WORKER_S = 2.0  # the client waits up to 1.5 s for the master's obituary
MACHINE_S = 10.0
CROWD_S = 10.0  # the length of a fence: a worker that is busy for longer ends all its actors
HANG_S = 60.0
BESIDE = 1000  # unrelated processes
OTHERS = 4


@remotely.remote_class
class Waiting:
    """An actor with a call that never returns."""

    def pid(self) -> int:
        return os.getpid()

    def machine(self) -> str:
        return Path(os.environ["REMOTELY_HOME"]).name

    def wait(self) -> None:
        threading.Event().wait()


def actors(n: int, seed: int, folder: Path) -> Finding:
    """Kill an actor of this machine amid a call, n times."""
    del folder
    begun, draw = time.monotonic(), random.Random(seed)
    remotely.connect(cpus=4)

    def once() -> float:
        waiting = Waiting()
        return _told_after(waiting, waiting.pid(), draw)

    told = [once() for _ in range(n)]
    remotely.shutdown()
    return _finding(told, ACTOR_S, begun)


def workers(n: int, seed: int, folder: Path) -> Finding:
    """Kill a worker amid a call to one of its actors, over TCP, n times."""
    begun, draw = time.monotonic(), random.Random(seed)
    started = Started(folder)
    remotely.connect(started.address, key=started.key)

    def once() -> float:
        waiting = Waiting()
        _zygote, worker, *_ = psutil.Process(waiting.pid()).parents()
        home = started.home.parent / waiting.machine()
        told = _told_after(waiting, worker.pid, draw)
        started.join(home)
        return told

    told = [once() for _ in range(n)]
    remotely.shutdown()
    started.stop()
    return _finding(told, WORKER_S, begun)


SCRIPT = """
import subprocess, sys
import remotely
from tests.chaos.detection import Waiting, _wait_s

remotely.connect(sys.argv[1])
for _ in range(int(sys.argv[2])):
    waiting = remotely.options(Waiting, machine="machine2")()
    call = waiting.wait.submit()
    cable = lambda way: subprocess.run(["ip", "link", "set", "to-two", way], check=True)
    print(_wait_s(call, lambda: cable("down")), flush=True)
    cable("up")
    remotely.close(waiting)  # its call is still waiting
"""


def crowd(n: int, seed: int, folder: Path) -> Finding:
    """Kill n actors amid a call, all at once, among many other processes; other actors live on."""
    begun, draw = time.monotonic(), random.Random(seed)
    started = Started(folder)
    remotely.connect(started.address, key=started.key)
    beside = [subprocess.Popen(["sleep", "600"]) for _ in range(BESIDE)]
    try:
        crowd_class = remotely.options(Waiting, cpus=0)
        others = remotely.group(crowd_class, OTHERS)
        lives = others.pid()
        crowd = remotely.group(crowd_class, n)
        pids, calls = crowd.pid(), [waiting.wait.submit() for waiting in crowd]
        draw.shuffle(pids)
        at = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        told = []
        for call in calls:
            _wait_s(call, lambda: None)
            told.append(time.monotonic() - at)
        finding = _finding(told, CROWD_S, begun)
        if others.pid() != lives:
            finding.wrong.append("an actor that was not killed has ended")
    finally:
        for process in beside:
            process.kill()
            process.wait()
        remotely.shutdown()
        started.stop()
    return finding


def machines(n: int, seed: int, folder: Path) -> Finding:
    """Pull the cable of a machine amid a call to one of its actors, and plug it in again, n times.

    Without network namespaces the trial counts as failed.
    """
    del seed  # when a cable is pulled depends on when the machine returns
    begun = time.monotonic()
    if why := why_not():
        return Finding(0, 0.0, "not tried", [why])
    made = Machines(folder)
    try:
        out = subprocess.run(
            made.command(0, sys.executable, "-c", SCRIPT, f"{MASTER}:{PORT}", str(n)),
            env={**os.environ, "REMOTELY_HOME": str(made.homes[0])},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    finally:
        made.close()
    return _finding([float(line) for line in out.split()], MACHINE_S, begun)


def _told_after(waiting: Waiting, pid: int, draw: random.Random) -> float:
    call = waiting.wait.submit()
    time.sleep(draw.uniform(0.0, 0.05))
    return _wait_s(call, lambda: os.kill(pid, signal.SIGKILL))


def _wait_s(call: "Future[None]", strike: Callable[[], object]) -> float:
    at = time.monotonic()
    strike()
    try:
        call.result(HANG_S)
    except (ActorDied, WorkerLost):
        return time.monotonic() - at
    raise AssertionError("an endless call has returned")


def _finding(told_s: list[float], promised_s: float, begun: float) -> Finding:
    told_s.sort()
    at = {
        name: told_s[int(part * (len(told_s) - 1))]
        for name, part in (("p50", 0.5), ("p99", 0.99), ("at most", 1.0))
    }
    figures = ", ".join(f"{name} {1000 * seconds:,.0f} ms" for name, seconds in at.items())
    late = [f"told after {seconds:.2f} s" for seconds in told_s if seconds > promised_s]
    return Finding(len(told_s), time.monotonic() - begun, f"told after {figures}", late)


TRIALS = {
    "told of an actor": Trial(1000, actors),
    "told of a crowd": Trial(500, crowd),
    "told of a worker": Trial(200, workers),
    "told of a machine": Trial(20, machines),
}
