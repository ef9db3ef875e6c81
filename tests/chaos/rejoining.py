"""A worker that is killed under load, and whose machine joins again, soon or late.

Actors of both machines are called all the time: per machine one placed by the machine's name, one
by its address, one near that, and one with idempotent calls; one more may live on either machine.
Running calls are lost, once; later calls wait and succeed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos.finding import Finding, Trial
from tests.clusters import processes, wait_until
from tests.machines import MASTER, PORT, Machines, why_not

BACK_S = 3.0  # after the machine has joined again
LEASE_S = 15.0  # after which an actor may live elsewhere
LATE = 0.2  # the share of machines that join again only after that

SCRIPT = """
import json, os, sys, threading, time
import remotely

@remotely.remote_class(max_restarts=10_000, cpus=0)
class Echo:
    def echo(self, value):
        return value, os.path.basename(os.environ["REMOTELY_HOME"])
    @remotely.idempotent(retries=2)
    def again(self, value):
        return self.echo(value)

remotely.connect(sys.argv[1])
there = lambda **where: remotely.options(Echo, **where)()
actors = {"anywhere": there(cpus=2)}
for number in "12":
    machine, address = "machine" + number, f"10.231.{number}.2"
    actors[f"name {machine}"] = there(machine=machine)
    actors[f"address {machine}"] = by_address = there(machine=address)
    actors[f"near {machine}"] = there(near=by_address)
    actors[f"idempotent {machine}"] = there(machine=machine)
at = 0.0
answered = {}  # the time and machine of the first reply of each after that
lost = {kind: [] for kind in actors}

def call_without_end(kind, actor):
    call = actor.again if kind.startswith("idempotent") else actor.echo
    for number in range(sys.maxsize):
        try:
            value, home = call(number)
            assert value == number
            if time.monotonic() >= at:
                answered.setdefault(kind, (time.monotonic(), home))
        except remotely.RemotelyError as error:
            lost[kind].append(f"{type(error).__name__}: {error}")

for each in actors.items():
    threading.Thread(target=call_without_end, args=each, daemon=True).start()
for line in sys.stdin:  # a time, and the actors whose first reply after it to report
    at, *kinds = json.loads(line)
    answered.clear()
    patience = time.monotonic() + 60
    while not answered.keys() >= set(kinds or actors) and time.monotonic() < patience:
        time.sleep(0.002)
    told = {}
    for kind in kinds or actors:
        when, home = answered.get(kind, (float("inf"), ""))
        told[kind] = {"back_s": when - at, "home": home, "lost": lost[kind]}
    print(json.dumps(told), flush=True)
    for k in told:
        lost[k] = []
"""


class _Callers:
    """The script, which calls from its own machine."""

    def __init__(self, machines: Machines) -> None:
        self._script = subprocess.Popen(
            machines.command(0, sys.executable, "-c", SCRIPT, f"{MASTER}:{PORT}"),
            env={**os.environ, "REMOTELY_HOME": str(machines.homes[0])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def back_since(self, at: float, *kinds: str) -> dict[str, Any]:
        """Wait until each has replied after `at`; return what happened to each since."""
        assert self._script.stdin is not None
        assert self._script.stdout is not None
        self._script.stdin.write(json.dumps([at, *kinds]) + "\n")
        self._script.stdin.flush()
        return json.loads(self._script.stdout.readline())  # type: ignore[no-any-return]

    def close(self) -> None:
        self._script.kill()
        self._script.wait()


def rejoin(n: int, seed: int, folder: Path) -> Finding:
    """Kill the worker of a machine amid calls to its actors, and have it join again, n times."""
    if why := why_not():
        return Finding(0, 0.0, "not tried", [why])
    begun, draw = time.monotonic(), random.Random(seed)
    machines = Machines(folder)
    callers = _Callers(machines)
    wrong: list[str] = []
    back_s: list[float] = []
    try:
        home = callers.back_since(time.monotonic(), "anywhere")["anywhere"]["home"]
        callers.back_since(time.monotonic())
        for turn in range(n):
            is_late = draw.random() < LATE
            number = int(home[-1]) if is_late else draw.choice((1, 2))
            time.sleep(draw.uniform(0.0, 1.0))
            seen: dict[str, Any] = {}
            _kill_worker(machines, number)
            struck = time.monotonic()
            if is_late:
                seen["anywhere"] = callers.back_since(struck, "anywhere")["anywhere"]
                seen["anywhere"]["back_s"] -= LEASE_S
            else:
                time.sleep(draw.uniform(0.0, 4.0))
            machines.join(number, f"{MASTER}:{PORT}", "--cpus", "2")
            seen = {**callers.back_since(time.monotonic()), **seen}
            was_at, home = home, seen["anywhere"]["home"]
            for kind, told in seen.items():
                is_struck = (was_at if kind == "anywhere" else kind).endswith(f"machine{number}")
                may_lose = is_struck and not kind.startswith("idempotent")
                if len(told["lost"]) > may_lose:
                    wrong.append(f"{turn}: {kind} lost {told['lost']}")
                if told["back_s"] > BACK_S:
                    wrong.append(f"{turn}: {kind} was back after {told['back_s']:.1f} s")
                if is_struck:
                    back_s.append(told["back_s"])
    finally:
        callers.close()
        machines.close()
    back_s.sort()
    middle, last = (f"{back_s[i]:.2f} s" for i in (len(back_s) // 2, -1))
    told = f"of {len(back_s)} actors half were back {middle} after their machine, all after {last}"
    return Finding(n, time.monotonic() - begun, told, wrong)


def _kill_worker(machines: Machines, number: int) -> None:
    (worker,) = processes(str(machines.homes[number]), "remotely.worker")
    worker.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes(str(machines.homes[number])), "the end of its actors")


TRIALS = {"a worker that joins again": Trial(100, rejoin)}
