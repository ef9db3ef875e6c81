"""The CPU time and memory of processes, from /proc only."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")
QUIET_FOR_S = 0.5
QUIET_SHARE = 0.15  # of one core: the machine's daemons and an idle peer


def descendants(root: int) -> list[int]:
    """Return the descendants of `root`, except those whose parents have ended."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        children.setdefault(_parent(pid), []).append(pid)
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def cpu_s(pid: int) -> float:
    """Return the CPU time of the threads of a process.

    It is from schedstat, in nanoseconds: a tick of `stat` is 10 ms, more than an idle process uses
    in a second.  Threads that have ended are not counted.
    """
    total = 0
    for file in (PROC / str(pid) / "task").glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[0])
        except OSError:  # it has just ended
            pass
    return total / 1e9


def unique_bytes(pid: int) -> int:
    """Return the memory that no other process shares."""
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def cpu_of(pids: Iterable[int]) -> dict[int, float]:
    return {pid: cpu_s(pid) for pid in pids}


def wait_until_quiet(limit_s: float = 10.0) -> bool:
    """Wait until the machine is idle; return whether it is."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = _busy_s()
        time.sleep(QUIET_FOR_S)
        if _busy_s() - before < QUIET_SHARE * QUIET_FOR_S:
            return True
    return False


def _busy_s() -> float:
    """Return the busy seconds of all cores together."""
    user, nice, system, _idle, _iowait, *others = map(
        int, (PROC / "stat").read_text().partition("\n")[0].split()[1:]
    )
    return float(user + nice + system + sum(others[:3])) / os.sysconf("SC_CLK_TCK")


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())


def _parent(pid: int) -> int:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
