"""Jobs of `remotely run` that end by any signal, to any process, at any time: nothing is left."""

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.chaos.finding import Finding, Trial
from tests.clusters import processes
from tests.jobs import COMMAND, Job

LEFT_S = 20.0  # the promise: after this time, nothing is left
RANKS = 3
# Half of the signals come before the command runs, about STARTED_S after rank 0 creates its folder.
# A rank that starts after the end of rank 0 cannot know that, and waits until its timeout.
STARTED_S = 3.0
PATIENCE_S = 15.0
HANG_S = 60.0
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
# The processes to signal, found by their arguments.
VICTIMS: dict[str, Callable[[Job, str], list[int]]] = {
    "rank 0": lambda job, tag: [job.ranks[0].pid],
    "the command": lambda job, tag: [
        p for p in _with(tag, "-c") if COMMAND in _words(p) and _words(p)[1] == "-c"
    ],
    "its guard": lambda job, tag: [
        child for child in _children(job.ranks[0].pid) if "run" in _words(child)
    ],
    "the master": lambda job, tag: _with(tag, "remotely.master"),
    "a worker of rank 0": lambda job, tag: [
        child for child in _children(job.ranks[0].pid) if "remotely.worker" in _words(child)
    ],
}


def ended(n: int, seed: int, folder: Path) -> Finding:
    """End rank 0 or a process of it; check that all processes of all ranks end."""
    return _repeated(n, seed, folder, _end_job)


def ranks(n: int, seed: int, folder: Path) -> Finding:
    """End another rank; check that all its processes end, and no other ones."""
    return _repeated(n, seed, folder, _end_rank)


def _repeated(
    n: int,
    seed: int,
    folder: Path,
    once: Callable[[Job, random.Random, str], tuple[str, list[str]]],
) -> Finding:
    begun, draw = time.monotonic(), random.Random(seed)
    wrong: list[str] = []
    slowest = 0.0
    for number in range(n):
        # A short path, for ipc sockets; its name identifies the processes.
        temporary = Path(tempfile.mkdtemp(prefix=f"jobs-{number}-"))
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("REMOTELY_", "SLURM_"))},
            "REMOTELY_HOME": str(temporary / "home"),
            "TMPDIR": str(temporary),
        }
        job = Job(environment, temporary / "shared", number)
        try:
            did, what = once(job, draw, str(temporary))
            took = _time_until_nothing(temporary)
            slowest = max(slowest, took)
            if took > LEFT_S:
                left = [f"{p.name()} of rank {_rank_of(p)}" for p in processes(str(temporary))]
                files = [str(f) for f in temporary.rglob("*") if f.is_file()]
                what.append(f"{took:.0f} s; then there were {left} {files}")
        finally:
            job.kill()
            for process in processes(str(temporary)):
                process.kill()
            shutil.rmtree(temporary)
        wrong += [f"{number}: {did}: {sentence}" for sentence in what]
    told = f"nothing left after at most {slowest:.1f} s"
    return Finding(n, time.monotonic() - begun, told, wrong)


def _end_job(job: Job, draw: random.Random, tag: str) -> tuple[str, list[str]]:
    victim, number = draw.choice(list(VICTIMS)), draw.choice(SIGNALS)
    if victim == "its guard":
        number = signal.SIGTERM  # nothing can clean up after a SIGKILL of the guard
    did = f"{number.name} to {victim}"
    job.script(RANKS, options=("--patience", PATIENCE_S))
    if draw.random() < 0.5:
        while not list(job.folder.glob("*")):
            time.sleep(0.01)
        after_s = draw.uniform(0.0, STARTED_S)
        did += f" {after_s:.2f} s after the beginning"
        time.sleep(after_s)
        pids = VICTIMS[victim](job, tag) or [job.ranks[0].pid]
    else:
        if job.line() != f"machines {RANKS}":
            return did, ["the command did not run"]
        pids = VICTIMS[victim](job, tag)
        if not pids:
            return did, [f"there is no such process: {victim}"]
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[0], number)
    return did, []


def _end_rank(job: Job, draw: random.Random, tag: str) -> tuple[str, list[str]]:
    del tag
    rank, number = draw.randrange(1, RANKS), draw.choice(SIGNALS)
    did = f"{number.name} to rank {rank}"
    job.script(RANKS)
    if job.line() != f"machines {RANKS}" or not job.line().startswith("ranks"):
        return did, ["the command did not run"]
    job.ranks[rank].send_signal(number)
    wrong = []
    deadline = time.monotonic() + LEFT_S
    while _of_rank(job, rank):
        if time.monotonic() > deadline:
            wrong.append(f"rank {rank} has left something for {LEFT_S:.0f} s")
            break
        time.sleep(0.05)
    others = [job.ranks[other].poll() for other in range(RANKS) if other != rank]
    if others != [None] * (RANKS - 1):
        wrong.append(f"other ranks have ended: {others}")
    if (code := job.ends()[0]) != 0:
        wrong.append(f"the command ended with {code}")
    return did, wrong


def _time_until_nothing(folder: Path) -> float:
    """Return the time until the job has no process and no file left."""
    begun = time.monotonic()
    while processes(str(folder)) or any(
        file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"
    ):
        if time.monotonic() > begun + HANG_S:
            break
        time.sleep(0.05)
    return time.monotonic() - begun


def _of_rank(job: Job, rank: int) -> list[psutil.Process]:
    return [p for p in processes(str(job.folder.parent)) if _rank_of(p) == str(rank)]


def _rank_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("RANK_OF_TEST", "")
    return ""


def _with(tag: str, word: str) -> list[int]:
    return [process.pid for process in processes(tag, word)]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _words(pid: int) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return ["", ""]


TRIALS = {
    "end a job": Trial(100, ended),
    "end a rank": Trial(100, ranks),
}
