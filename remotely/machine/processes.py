"""The processes of this machine: whether they run, their children, and how to kill them.

A worker finds the processes that its actors have started by a tag in an environment variable (TAG),
which children inherit.  But /proc/PID/environ shows the environment of the last exec (man 5 proc),
and an actor is only a fork of the zygote.  What it shows is the process's own memory, though.  So
the zygote is started with a placeholder for the tag, and each actor overwrites it with its own.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

TAG = "REMOTELY_ACTOR"  # "worker:actor", in the environment of an actor and its descendants
TAG_PLACEHOLDER = "-" * 65  # as long as two ids and a colon
ENDING_S = 2.0  # how long `is_alive` waits for a process that is ending
PF_EXITING = 0x4  # linux/sched.h: the process is in exit(2)


def tag_without_actor(worker: str) -> str:
    """Return the tag of what a worker has started for no actor.  Its forks write theirs over it."""
    return f"{worker}:".ljust(len(TAG_PLACEHOLDER), "-")


def is_of_actor(tag: str) -> bool:
    """Return whether a tag names an actor, and not only a worker."""
    return bool(tag.partition(":")[2].strip("-"))


def birth(pid: int) -> float | None:
    """Return when a process started; None if it has ended, even if it is not reaped.

    On Linux in clock ticks since boot, because the time of day may be changed.
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


def is_alive(pid: int, started: float) -> bool:
    """Return whether the process with this pid and start time still runs.

    SIGKILL takes effect only when the process is next scheduled, which a busy machine delays.  So a
    process that is ending is awaited, for at most ENDING_S: whoever has killed a master and starts
    the next one at once is not told that the first one still runs.
    """
    deadline = time.monotonic() + ENDING_S
    while birth(pid) == started:
        if not _is_ending(pid) or time.monotonic() > deadline:
            return True
        time.sleep(0.005)
    return False


def _is_ending(pid: int) -> bool:
    """Return whether a process has been sent SIGKILL or has begun to exit; False where unknown."""
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    # man 5 proc: the signals that are pending for the thread, and for the process.
    pending = [int(line.split()[1], 16) for line in status if line[:7] in ("SigPnd:", "ShdPnd:")]
    killed = any(mask >> (signal.SIGKILL - 1) & 1 for mask in pending)
    return killed or bool(int(flags) & PF_EXITING)


def children_of(pid: int) -> list[int]:
    """Return the children of a process, without scanning all processes.

    The list may omit a child while others end (man 5 proc).
    """
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(word) for t in threads for word in (t / "children").read_text().split()]
    except FileNotFoundError:  # it has ended, or this kernel lacks that file
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []


def tag_of(pid: int) -> str:
    """Return the tag of a process; "" if it has none, or has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
    tag = f"{TAG}=".encode()
    found = (line for line in environment.split(b"\0") if line.startswith(tag))
    return next(found, tag)[len(tag) :].decode(errors="replace")


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def all_processes() -> Iterator[psutil.Process]:
    """Yield the processes of this machine.

    `psutil.process_iter` keeps its objects from one use to the next, also that of a process that
    has ended since and whose pid another one has now: it refuses to kill that.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def kill_tagged(prefix: str) -> bool:
    """Kill all processes whose tag has this prefix; return whether there were any.

    These include what actors have left in sessions of their own.
    """
    if not prefix:  # every tag has it
        raise ValueError("an empty prefix")
    found = False
    for process in all_processes():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TAG, "").startswith(prefix):
                process.kill()
                found = True
    return found


def end_tagged(prefix: str, within_s: float) -> bool:
    """Repeat `kill_tagged` until no process is left; return whether that was in time."""
    deadline = time.monotonic() + within_s
    while kill_tagged(prefix):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def kill_descendants() -> None:
    """Kill all descendants of this process."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def write_tag(tag: str) -> None:
    """Write the tag where /proc shows it, for this process and its forks.

    Call this before anything else sets the variable, which would move it in memory.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    placeholder = getenv(TAG.encode())
    if placeholder and len(tag) <= (length := len(ctypes.string_at(placeholder))):
        ctypes.memmove(placeholder, tag.encode().ljust(length, b"\0"), length)
