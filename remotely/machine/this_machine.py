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

    It is made of the boot id, the mount and process namespaces (a container has its own) and the
    user.  REMOTELY_HOST, if set, is added: with it, parts of one machine pass for several, as in
    the tests.
    """
    mounts = Path("/proc/self/ns/mnt").readlink()
    return f"{pid_space()}:{mounts}:{os.environ.get('REMOTELY_HOST', '')}"


def pid_space() -> str:
    """Return a name that two processes share if and only if a pid means the same process to both,
    and they are of one user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{Path('/proc/self/ns/pid').readlink()}:{os.getuid()}"


def machine_name() -> str:
    return socket.gethostname()


def cores() -> int:
    """Return how many cores this process may use, by its affinity and its control group."""
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS and Windows have none
    there = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return there if (limit := cgroup.cpus()) is None else min(there, max(1, int(limit)))


def memory() -> int:
    """Return how many bytes this process may use, by the machine and the control group."""
    there = int(psutil.virtual_memory().total)
    return there if (limit := cgroup.memory()) is None else min(there, limit)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since the boot."""
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
