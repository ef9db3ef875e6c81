"""The cost of processes, from /proc alone, so that it runs in the environment of any peer."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PROC = Path("/proc")
QUIET_FOR_S = 0.5
QUIET_SHARE = 0.15  # of one core: daemons of the machine, and the idle burn of a peer's own


def descendants(root: int) -> list[int]:
    """Return the processes below `root`, those that run on after their parents excepted."""
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
    """Return the processor time that the threads of a process have had.

    From schedstat, which counts nanoseconds: the ticks of `stat` are 10 ms, more than an idle
    process takes in a second.  Threads that have ended are not in it.
    """
    total = 0
    for file in (PROC / str(pid) / "task").glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[0])
        except OSError:  # it ended just now
            pass
    return total / 1e9


def unique_bytes(pid: int) -> int:
    """Return the memory that no other process shares: what would be free if this one ended."""
    lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def cpu_of(pids: Iterable[int]) -> dict[int, float]:
    return {pid: cpu_s(pid) for pid in pids}


def wait_until_quiet(limit_s: float = 10.0) -> bool:
    """Wait until the machine does next to nothing; False if it does not come to that."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = _busy_s()
        time.sleep(QUIET_FOR_S)
        if _busy_s() - before < QUIET_SHARE * QUIET_FOR_S:
            return True
    return False


def _busy_s() -> float:
    """Return the time that all cores together were not idle."""
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
