"""The CPU and memory limits of this process's control group, set by a container or service manager.

A process is in one group of each hierarchy.  The limits of a group also apply to the groups below
it, so the lowest limit from this group up to the root counts.  A container sees its own group as
the root; outside of containers, /proc/self/cgroup names the group.

    version 2   /sys/fs/cgroup/GROUP/cpu.max "200000 100000", memory.max "8589934592", or "max"
    version 1   /sys/fs/cgroup/cpu/GROUP/cpu.cfs_quota_us and cpu.cfs_period_us, or -1
                /sys/fs/cgroup/memory/GROUP/memory.limit_in_bytes, or nearly 2**63

Cpusets need not be read: the CPU affinity includes them.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpus(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the limit in CPUs; None if there is none."""
    limits = []
    for folder in _folders("", root, own):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        limits += _quotient(quota, period)
    for folder in _folders("cpu", root, own):
        limits += _quotient(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
    return min(limits, default=None)


def memory_limit(root: Path = ROOT, own: Path = OWN) -> tuple[int, str] | None:
    """Return the limit in bytes, and an id of the group that has it; None if there is none.

    The inode of its folder is that id: a container sees its own group under another path.
    """
    found = _memory_group(root, own)
    return None if found is None else (found[0], f"group {found[1].stat().st_ino}")


def memory_used(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return what the group with that limit uses, without cached files that can be dropped."""
    if (found := _memory_group(root, own)) is None:
        return None
    folder = found[1]
    used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    lines = (line.split() for line in _read(folder / "memory.stat").splitlines())
    cached = {name: int(size) for name, size in lines}
    droppable = cached.get("total_inactive_file", cached.get("inactive_file", 0))
    return max(0, int(used) - droppable) if used.isdecimal() else None


def _memory_group(root: Path, own: Path) -> tuple[int, Path] | None:
    """Return the lowest limit and the folder of the group that has it."""
    files = [folder / "memory.max" for folder in _folders("", root, own)]
    files += [folder / "memory.limit_in_bytes" for folder in _folders("memory", root, own)]
    found = [(int(text), file.parent) for file in files if (text := _read(file)).isdecimal()]
    return min(found, key=lambda each: each[0]) if found else None


def _quotient(quota: str, period: str) -> list[float]:
    known = quota.isdecimal() and period.isdecimal() and int(quota) and int(period)
    return [int(quota) / int(period)] if known else []


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folder of this process's group and of those above it; "" is version 2."""
    for line in _read(own).splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            top = root / controller  # a symbolic link if the hierarchy has several controllers
            folder = top / group.lstrip("/")
            yield folder
            while folder != top and top in folder.parents:
                folder = folder.parent
                yield folder


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # this machine has no such limit
        return ""
