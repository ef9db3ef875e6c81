"""Leak checks: many births and ends of actors, calls, and interrupts leave nothing behind."""

import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

import remotely
from tests.chaos.finding import Finding, Trial
from tests.clusters import Traces, processes

SAMPLES = 20  # per run
WARM_PART = 4  # the first quarter of a run fills caches
SETTLE_S = 5.0  # for what was freed just before a sample
FLOOR_MB = 1.0  # below this is noise of the allocators
CROWD = 1000
BIRTHS_AT_ONCE = 10
WARM_BIRTHS = 50  # before the first sample: the first rounds fill caches, by 0.3 MB
END_S = 3.0  # for a script to end after Ctrl-C


@remotely.remote_class
class Echo:
    def echo(self, value: object) -> object:
        return value


class Holdings:
    """Samples of the descriptors, threads and memory of this process and its cluster's daemons."""

    def __init__(self) -> None:
        me = psutil.Process()
        daemons = [child for child in me.children() if _role(child) in ("master", "worker")]
        zygotes = [  # whose children, the actors, look the same
            child for daemon in daemons for child in daemon.children() if _role(child) == "zygote"
        ]
        self._all = [me, *daemons, *zygotes]
        self._samples: list[dict[str, int]] = []

    def sample(self) -> None:
        gc.collect()
        self._let_settle()
        found: dict[str, int] = {}
        for process in self._all:
            role = _role(process)
            found[f"{role}: descriptors"] = process.num_fds()
            found[f"{role}: threads"] = process.num_threads()
            found[f"{role}: KiB"] = process.memory_info().rss >> 10
        self._samples.append(found)

    def _let_settle(self) -> None:
        """Wait up to SETTLE_S for connections that libzmq's thread is closing."""
        deadline = time.monotonic() + SETTLE_S
        while self._samples and time.monotonic() < deadline:
            first = self._samples[0]
            if all(p.num_fds() <= first[f"{_role(p)}: descriptors"] + 2 for p in self._all):
                return
            time.sleep(0.02)

    def growth(self) -> dict[str, int]:
        """Return the growth from the end of the warm-up to the end."""
        first, last = self._samples[len(self._samples) // WARM_PART], self._samples[-1]
        return {name: last[name] - first[name] for name in first}


def _role(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:  # a zombie, of an earlier cluster
        return ""
    modules = [word for word in words if word.startswith("remotely.")]
    return modules[0].rpartition(".")[2] if modules else "client"


def births(n: int, seed: int, folder: Path) -> Finding:
    """Make and end n actors; memory may grow by 1 MB per 1,000 of them, nothing else may grow."""
    del seed, folder
    begun = time.monotonic()
    before = Traces()
    remotely.connect(cpus=2 * BIRTHS_AT_ONCE)
    for _ in range(0, WARM_BIRTHS, BIRTHS_AT_ONCE):
        _bear_and_end(0)
    holdings = Holdings()
    every = max(BIRTHS_AT_ONCE, n // SAMPLES)
    for made in range(0, n, BIRTHS_AT_ONCE):
        if made % every == 0:
            holdings.sample()
        _bear_and_end(made)
    holdings.sample()
    return _finding(n, begun, holdings, n / 1000 * (1 - 1 / WARM_PART), before)


def _bear_and_end(number: int) -> None:
    with remotely.group(Echo, BIRTHS_AT_ONCE) as group:
        assert group.echo(number) == [number] * BIRTHS_AT_ONCE


def calls(n: int, seed: int, folder: Path) -> Finding:
    """Make n calls, small and large; nothing may grow beyond the noise of the allocators."""
    del folder
    draw = random.Random(seed)
    begun = time.monotonic()
    before = Traces()
    remotely.connect(cpus=4)
    actors = remotely.group(Echo, 2)
    large = bytes(1 << 20)
    for actor in actors:  # each opens the memory of the other, once
        assert [actor.echo(large) for _ in range(2)] == [large] * 2
    holdings = Holdings()
    every = max(CROWD, n // SAMPLES)
    for made in range(0, n, CROWD):
        if made % every == 0:
            holdings.sample()
        actor = actors[draw.randrange(2)]
        futures = [actor.echo.submit(made) for _ in range(CROWD - 1)]
        assert all(future.result() == made for future in futures)
        assert actor.echo(large) == large
    holdings.sample()
    del actors, actor, futures
    return _finding(n, begun, holdings, 10.0, before)


def _finding(n: int, begun: float, holdings: Holdings, megabytes: float, before: Traces) -> Finding:
    growth = holdings.growth()
    wrong = [
        f"{name} grew by {by:,}"
        for name, by in growth.items()
        if by > (1000 * max(FLOOR_MB, megabytes) if name.endswith("KiB") else 2)
    ]
    remotely.shutdown()
    left = before.left_after(END_S)
    wrong += [f"left behind: {name}: {value}" for name, value in left.items()]
    grown = ", ".join(f"{name} {by:+,}" for name, by in growth.items() if name.endswith("KiB"))
    return Finding(n, time.monotonic() - begun, grown, wrong)


SCRIPT = """
print("up", flush=True)
import remotely, sys

@remotely.remote_class
class Echo:
    def echo(self, value):
        return value

while True:
    with remotely.group(Echo, 2) as echoes:
        for n in range(50):
            echoes.echo(n)
            [f.result() for f in echoes.echo.submit(bytes(100_000))]
    remotely.shutdown()
"""
TRACE = "Traceback"
NOISE = (
    "Exception ignored",
    "remotely master",
    "remotely worker",
    "Fatal Python error",
    "core dumped",
)


def interrupts(n: int, seed: int, folder: Path) -> Finding:
    """Interrupt a script at n random moments, a third twice; it ends quietly and leaves nothing.

    Only after its first line: interrupts during Python's own startup are not ours to handle.
    """
    draw = random.Random(seed)
    # Background jobs of a shell ignore SIGINT, and so would the script.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    begun = time.monotonic()
    wrong: list[str] = []
    longest = 0.0
    for number in range(n):
        home = folder / f"run-{number}"
        home.mkdir()
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(home), "REMOTELY_HOME": str(home)},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(draw.uniform(0.0, 2.5))
        at = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)  # to the whole group, as a terminal does
        if draw.random() < 1 / 3:
            time.sleep(draw.uniform(0.0, 0.3))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
        took = time.monotonic() - at
        longest = max(longest, took)
        if took > END_S:
            wrong.append(f"{number}: took {took:.1f} s")
        if any(noise in errors for noise in NOISE) or errors.count(TRACE) > 3:
            wrong.append(f"{number}: {errors[-1500:]}")
        deadline = time.monotonic() + END_S
        while (left := _left(home)) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            wrong.append(f"{number}: left behind: {left}")
    return Finding(n, time.monotonic() - begun, f"ended within {longest:.1f} s", wrong)


def _left(home: Path) -> list[str]:
    return [*(str(p) for p in processes(str(home))), *(str(f) for f in home.iterdir())]


TRIALS = {
    "births": Trial(10_000, births),
    "calls": Trial(1_000_000, calls),
    "interrupts": Trial(500, interrupts),
}
