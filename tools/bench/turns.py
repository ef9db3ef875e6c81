"""The turns of systems.

In a turn one system measures one part in a new process.
Between turns most systems would disturb the others: idle, Ray and PARL use much of a core, and
stopping them (SIGSTOP) makes their heartbeats end them.  A new start takes seconds that are not
counted, and is also a figure itself.

A round goes through the parts, and through the systems of each part, so compared figures are
measured within a minute.  Every second round is in reverse order.  Before each turn the machine
should become idle.  Processes that a turn leaves running are ended: orphans become children of
this process.
"""

import contextlib
import ctypes
import importlib.metadata
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import remotely
from tools.bench import processes
from tools.bench.benchmark import LIMIT_S, OWN, ROOT, Benchmark, System

QUIET_S = 5.0  # the longest wait for an idle machine before a turn
GRACE_S = 2.0  # for the processes of a turn to end by themselves
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
OURS = "remotely-actors"  # the distribution


class Turn(NamedTuple):
    part: str
    system: str
    script: Path
    python: Path = OWN


class Report(NamedTuple):
    """The report of a turn: values by figure and repeat, and why others are missing."""

    values: dict[str, dict[int, float]]
    why_not: dict[str, str]


class TurnFailed(Exception):
    """A system's process failed; the text is the end of its output.

    `report` is what it had reported by then.
    """

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


def versions(systems: Mapping[str, System]) -> dict[str, str]:
    """Return the versions of the installed systems; ours may be only a tree."""
    found = {}
    for name, system in systems.items():
        if not system.package:
            found[name] = ""
        elif system.python == OWN:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(system.package)
            if system.package == OURS:
                found.setdefault(name, remotely.__version__)
        elif system.python.exists():
            ask = f"from importlib.metadata import version; print(version({system.package!r}))"
            done = subprocess.run([system.python, "-c", ask], capture_output=True, text=True)
            if done.returncode == 0:
                found[name] = done.stdout.strip()
    return found


def in_order(
    bench: Benchmark, systems: Iterable[str], parts: Iterable[str], number: int
) -> list[Turn]:
    """Return the turns of a round: for each part the systems that measure it."""
    allowed, wanted = set(systems), set(parts)
    turns = [
        Turn(part, system, bench.folder / script, bench.systems[system].python)
        for part, by_system in bench.parts.items()
        for system, script in by_system.items()
        if part in wanted and system in allowed and (bench.folder / script).exists()
    ]
    return turns[::-1] if number % 2 else turns


def take(
    turn: Turn,
    quick: bool,
    limit_s: float = LIMIT_S,
    quiet_s: float = QUIET_S,
    more: Sequence[str] = (),
) -> Report:
    """Run a turn with `more` arguments; return its report.  Raises TurnFailed."""
    if not quick:
        processes.wait_until_quiet(quiet_s)
    words = [str(turn.python), str(turn.script), turn.part, *more]
    with tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True) as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr, _nothing_left():
            process = subprocess.Popen(
                words + ["--quick"] * quick,
                cwd=folder,
                env=_environment(folder, turn.python),
                stdin=subprocess.DEVNULL,
                stdout=stdout,  # a file, because daemons of a peer would keep a pipe open
                stderr=stderr,
                start_new_session=True,
            )
            try:
                code: int | str = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = f"nothing after {limit_s:g} s"
                process.kill()
                process.wait()
        printed = out.read_text(errors="replace")
        if code != 0:
            said = err.read_text(errors="replace") or printed
            text = f"{turn.part} of {turn.system} ended with {code}: {said[-2000:]}"
            raise TurnFailed(text, parse(printed))
        return parse(printed)


def parse(text: str) -> Report:
    """Return the report in a process's output."""
    report = Report({}, {})
    for line in text.splitlines():
        if not line.startswith('{"figure"') or not line.endswith("}"):  # the last may be cut off
            continue
        one = json.loads(line)
        if "why" in one:
            report.why_not[one["figure"]] = one["why"]
        else:
            report.values.setdefault(one["figure"], {})[one.get("repeat", 0)] = float(one["value"])
    return report


def _environment(folder: str, python: Path) -> dict[str, str]:
    """Return the environment of a turn: none of the user's variables, and a temporary home.

    Only our own interpreter's PYTHONPATH and matplotlib's cache of fonts are kept, which it would
    build again in each home.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(("REMOTELY_", "RAY_", "PYTHON"))}
    paths = [str(ROOT), *([os.environ.get("PYTHONPATH", "")] if python == OWN else [])]
    fonts = os.environ.get("MPLCONFIGDIR") or str(Path.home() / ".cache" / "matplotlib")
    return {
        **own,
        "HOME": folder,
        "TMPDIR": folder,
        "MPLCONFIGDIR": fonts,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONWARNINGS": "ignore",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    """End all processes that the block started, also daemons."""
    prctl = ctypes.CDLL(None).prctl
    before = set(processes.descendants(os.getpid()))
    prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        deadline = time.monotonic() + GRACE_S
        while left := set(processes.descendants(os.getpid())) - before:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    if time.monotonic() > deadline:
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)
        prctl(SUBREAPER, 0, 0, 0, 0)
