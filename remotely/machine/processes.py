"""The processes of this machine: which still run, what each has started, and how to end them.

A worker finds the processes that its actors have started by a tag: an environment variable (TAG),
because that is inherited.  But the kernel shows the environment that a process had when it last
executed a program (man 5 proc), and an actor is a fork of the zygote, as is what the actor itself
forks.  What the kernel shows is the process's own memory, though.  So the zygote is started with
room for a tag, and an actor writes its own there.
"""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

import psutil

TAG = "REMOTELY_ACTOR"  # "worker:actor", in the environment of an actor and of all it starts
ROOM = "-" * 65  # two ids and a colon


def birth(pid: int) -> float | None:
    """Return when a process started; None if it has ended, reaped or not.

    On Linux in ticks since the boot, because the time of day may be changed meanwhile.
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
    """Return whether this pid is still the process that started then."""
    return birth(pid) == started


def children_of(pid: int) -> list[int]:
    """Return the children of a process, without reading any other process.

    The list may lack one while others of them end (man 5 proc).
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
    """Kill a process and all its descendants."""
    for child in children_of(pid):
        kill_tree(child)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_tagged(prefix: str) -> bool:
    """Kill actors, and what they left behind in other sessions, which inherited the tag.

    Returns whether there were any.
    """
    found = False
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TAG, "").startswith(prefix):
                process.kill()
                found = True
    return found


def end_tagged(prefix: str, within_s: float) -> bool:
    """Kill the same until there are none; return whether there are none in time."""
    deadline = time.monotonic() + within_s
    while kill_tagged(prefix):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def kill_descendants() -> None:
    """Kill the processes that this one started, and those that they started."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def mark(tag: str) -> None:
    """Make the kernel show this tag for this process and its forks.

    Call this before the variable is changed by other means, which put it elsewhere in memory.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    room = getenv(TAG.encode())
    if room and len(tag) <= (length := len(ctypes.string_at(room))):
        ctypes.memmove(room, tag.encode().ljust(length, b"\0"), length)
