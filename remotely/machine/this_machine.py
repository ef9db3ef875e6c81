"""Facts about this machine: its identity, its name, its cores and memory."""

import contextlib
import os
import socket
import sys
from pathlib import Path

import psutil

from remotely.machine import cgroup

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def identity() -> str:
    """Return a name that two processes share if and only if they can open the same files.

    It consists of the boot id, the mount and process namespaces (a container has its own) and the
    user.  REMOTELY_HOST is appended, if set: in the tests it makes one machine look like several.
    """
    mounts = Path("/proc/self/ns/mnt").readlink()
    return f"{pid_space()}:{mounts}:{os.environ.get('REMOTELY_HOST', '')}"


def pid_space() -> str:
    """Return a name that two processes share if and only if they have the same user and pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/pid').readlink()}:{os.getuid()}"


def machine_name() -> str:
    return socket.gethostname()


def script_name() -> str:
    """Return the name by which people know this process: that of its script, or package."""
    script = Path(sys.argv[0] if sys.argv else "")
    of_script = script.parent.name if script.name == "__main__.py" else script.name
    name = "python -c" if of_script == "-c" else of_script or "python"
    return name.encode(errors="replace").decode()


def cores() -> int:
    """Return the number of cores that the CPU affinity and the control group allow."""
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS and Windows have none
    there = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return there if (limit := cgroup.cpus()) is None else min(there, max(1, int(limit)))


def memory() -> int:
    """Return the memory of the machine in bytes, or the limit of the control group if lower."""
    return memory_pool()[0]


def memory_pool() -> tuple[int, str]:
    """Return that number of bytes, and an id of what has them: this boot, or a control group."""
    size, owner = int(psutil.virtual_memory().total), "all"
    limit = cgroup.memory_limit()
    if limit is not None and limit[0] < size:
        size, owner = limit
    return size, f"{boot()}:{owner}"


def used_memory() -> tuple[int, int]:
    """Return how many bytes of that memory are in use, by whatever runs here, and its size."""
    there, size = psutil.virtual_memory(), memory()
    used = cgroup.memory_used() if size < there.total else None
    return (there.total - there.available if used is None else used), size


def boot() -> str:
    """Return a name of this boot of the machine, whatever containers and users it has."""
    found = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{found}:{os.environ.get('REMOTELY_HOST', '')}"


KEPT_SHARE, MOST_KEPT = 0.05, 2 << 30


def memory_for_actors(there: int | None = None) -> int:
    """Return how much of the memory to offer: all but 5 %, at most 2 GiB, which are kept for the
    system, the worker and what callers have mapped."""
    there = memory() if there is None else there
    return there - min(int(KEPT_SHARE * there), MOST_KEPT)


def oom_kills() -> int:
    """Return the number of processes that the OOM killer has killed since boot."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def address_towards(host: str, port: int) -> str:
    """Return the address at which `host` sees this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # a datagram socket only looks up the route
        return str(probe.getsockname()[0])
