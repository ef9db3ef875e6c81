"""What this machine is: who sees the same files and processes, and what there is to give away."""

import contextlib
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import psutil

from remotely import cgroup

TAG = "REMOTELY_ACTOR"  # "worker:actor", in the environment of an actor and of all it starts
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def identity() -> str:
    """Return a name that two processes share just when they see the same files, and may open them.

    The kernel's boot, the namespaces of mounts and of processes (a container has its own) and the
    user.  REMOTELY_HOST, if set, is added: it lets parts of one machine pass for several, as in the
    tests.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mounts, pids = Path("/proc/self/ns/mnt").readlink(), Path("/proc/self/ns/pid").readlink()
    return f"{boot}:{mounts}:{pids}:{os.getuid()}:{os.environ.get('REMOTELY_HOST', '')}"


def machine_name() -> str:
    return socket.gethostname()


def cores() -> int:
    """Return how many cores this process may use: of its affinity, and its group's time."""
    there = len(os.sched_getaffinity(0))
    return there if (limit := cgroup.cpus()) is None else min(there, max(1, int(limit)))


def memory() -> int:
    """Return how many bytes of memory this process may use: of the machine's, and its group's."""
    there = int(psutil.virtual_memory().total)
    return there if (limit := cgroup.memory()) is None else min(there, limit)


def oom_kills() -> int:
    """Return how many processes the kernel has ended for want of memory since the boot."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def address_towards(host: str, port: int) -> str:
    """Return the address by which `host` would know this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # a datagram socket only looks up the route
        return str(probe.getsockname()[0])


def birth(pid: int) -> float | None:
    """Return when a process started; None if it has ended, reaped or not.

    On Linux in ticks since the boot: the time of day may be set while the process lives.
    """
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if words[0] in "ZX" else float(words[19])
    except OSError:
        pass
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def module_command(module: str, *arguments: str) -> list[str]:
    """Return what runs a module of ours, without taking a file of the working directory for one."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", module, *arguments]


def log_format(role: str, stays: bool) -> str:
    """Return how a daemon's lines look: in a file with the time, on a script's terminal without."""
    return f"{'%(asctime)s ' if stays else ''}remotely {role}: %(message)s"


def is_alive(pid: int, started: float) -> bool:
    """Tell whether the process of this pid is still the one that started then."""
    return birth(pid) == started


def children_of(pid: int) -> list[int]:
    """Return the processes of which this one is the parent, without a look at any other.

    One may be left out while others of them end (man 5 proc).
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for t in threads for word in (t / "children").read_text().split()]
    except FileNotFoundError:  # it has ended, or the kernel was built without that file
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []


def tag_of(pid: int) -> str:
    """Return the tag with which a process was started; nothing if it has none, or has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    tag = f"{TAG}=".encode()
    found = (line for line in environment.split(b"\0") if line.startswith(tag))
    return next(found, tag)[len(tag) :].decode(errors="replace")


def kill_tree(pid: int) -> None:
    """Kill a process and all that it started, and that it was the last to hold together."""
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_tagged(prefix: str) -> None:
    """Kill what actors left behind in sessions of their own: it inherited the tag's variable."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TAG, "").startswith(prefix):
                process.kill()


def kill_descendants() -> None:
    """Kill the processes that this one started, and those that they started."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def raise_descriptor_limit(at_most: int | None = None) -> None:
    """Allow this process as many open files as the machine permits; an actor costs it a handful.

    `at_most` is for a process that is not ours alone.  What it starts inherits the limit, and some
    programs close every number up to it one by one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if at_most is None else min(hard, at_most)
    if hard == resource.RLIM_INFINITY and at_most is not None:
        wanted = at_most
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
