"""The limits of our control group: what a container or a service manager leaves of the machine.

A process is in one group of each hierarchy, and what holds for a group holds for all below it: so
the least of all limits from ours up to the root counts.  A container sees its own group as the
root; outside of one, /proc/self/cgroup says where we are.

    version 2   /sys/fs/cgroup/GROUP/cpu.max "200000 100000", memory.max "8589934592", or "max"
    version 1   /sys/fs/cgroup/cpu/GROUP/cpu.cfs_quota_us and cpu.cfs_period_us, or -1
                /sys/fs/cgroup/memory/GROUP/memory.limit_in_bytes, or nearly 2**63

A cpuset needs no reading: the kernel has put it into our affinity.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cpus(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return how many CPUs' time we may use; None if there is no limit."""
    limits = []
    for folder in _folders("", root, own):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        limits += _quotient(quota, period)
    for folder in _folders("cpu", root, own):
        limits += _quotient(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
    return min(limits, default=None)


def memory(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return how many bytes we may use; None if there is no limit."""
    texts = [_read(folder / "memory.max") for folder in _folders("", root, own)]
    texts += [_read(f / "memory.limit_in_bytes") for f in _folders("memory", root, own)]
    return min((int(text) for text in texts if text.isdecimal()), default=None)


def _quotient(quota: str, period: str) -> list[float]:
    known = quota.isdecimal() and period.isdecimal() and int(quota) and int(period)
    return [int(quota) / int(period)] if known else []


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folder of our group, and of those above it; "" is version 2."""
    for line in _read(own).splitlines():
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            top = root / controller  # where several are together it is a link
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
