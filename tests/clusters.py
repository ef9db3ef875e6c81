"""Helpers for tests with real processes: waiting for conditions, finding processes, clusters."""

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from remotely.machine.processes import all_processes

DEADLINE_S = 40.0
SCRIPTS = Path(sys.executable).parent


def printed() -> str:
    """Return what the fixture capfd has captured, and leave it there.

    Its `readouterr` empties the files, and what is written in the middle of that is lost: a thread
    or a process that prints once would be waited for in vain.
    """
    return "".join(os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in (1, 2))


def wait_until(fact: Callable[[], object], what: str) -> None:
    """Poll until a condition of another process holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.01)


def freeze(pid: int) -> None:
    """Stop a process, and return once none of its threads runs.

    The signal only asks the kernel for that: on a busy machine the process may go on for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: all(map(_is_stopped, Path(f"/proc/{pid}/task").iterdir())), "it stops")


def _is_stopped(thread: Path) -> bool:
    """Return whether a thread is stopped (man 5 proc), or has ended meanwhile."""
    try:
        after_name = (thread / "stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return after_name.split()[0] == "T"


def processes(tag: str, word: str = "") -> list[psutil.Process]:
    """Return the living processes with `tag` in their environment or arguments.

    With a `word`, only those with that argument, such as "remotely.worker".
    """
    found = []
    for process in all_processes():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if process.status() == psutil.STATUS_ZOMBIE or (word and word not in words):
                continue
            if any(tag in text for text in (*words, *process.environ().values())):
                found.append(process)
    return found


def ignores(pid: int, number: signal.Signals) -> bool:
    """Return whether a process ignores a signal (man 5 proc)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def _ports() -> Iterator[int]:
    """Yield ports in random order, without repetition, from a range of this test process alone."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    ours = range(20_000 + 1_500 * number, 20_000 + 1_500 * (number + 1))
    return itertools.cycle(random.Random().sample(ours, len(ours)))


_PORTS = _ports()


def free_port() -> int:
    """Return a free port outside the kernel's ephemeral range.

    A client that keeps connecting to a port of that range without a listener may get the same port
    for its own end: it is then connected to itself, and the port is taken.
    """
    for port in itertools.islice(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("none of a hundred ports is free")


class Traces:
    """The processes, threads, folders and segments that exist now, to compare with later ones."""

    def __init__(self) -> None:
        me = psutil.Process()
        self.children = {child.pid for child in me.children(recursive=True) if _lives(child)}
        self.threads = {t.name for t in threading.enumerate() if t.name.startswith("remotely")}
        self.folders = set(Path(tempfile.gettempdir()).glob("remotely-*"))
        # Without the semaphores of other users of multiprocessing on this machine.
        self.segments = {p for p in Path("/dev/shm").glob("*") if not p.name.startswith("sem.mp-")}

    def left_since(self, before: "Traces") -> dict[str, object]:
        left = {name: value - vars(before)[name] for name, value in vars(self).items()}
        return {name: value for name, value in left.items() if value}

    def left_after(self, seconds: float) -> dict[str, object]:
        """Return what is still there and new since this snapshot, after up to `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := Traces().left_since(self)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _ended(home: Path) -> bool:
    return not processes(str(home))


def run(home: Path, *command: str, **variables: str) -> str:
    """Run a command of `remotely` with its files in `home`."""
    done = subprocess.run(
        [SCRIPTS / "remotely", *command],
        env={**os.environ, "REMOTELY_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"remotely {' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


class Here:
    """A master and its worker on this machine."""

    def __init__(self, home: Path, cpus: int = 16) -> None:
        self.home = home
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.key = home / "keys" / "client.key"
        run(home, "start", "--port", str(self.port), "--cpus", str(cpus))
        (self._worker,) = processes(str(home), "remotely.worker")
        wait_until(self.below_worker, "its zygote")

    def join(self, cpus: int) -> None:
        """Start another worker on this machine."""
        key = str(self.home / "keys" / "worker.key")
        run(self.home, "join", self.address, "--key", key, "--cpus", str(cpus))

    def below_worker(self) -> set[int]:
        """Return the pids of the zygote, the actors, and their children."""
        return {p.pid for p in self._worker.children(recursive=True) if _lives(p)}

    def stop(self) -> None:
        run(self.home, "stop", "--port", str(self.port))
        wait_until(functools.partial(_ended, self.home), f"the end of {self.home.name}")


class Started:
    """A master with two or more joined workers."""

    def __init__(self, folder: Path, machines: int = 2, cpus: int = 8) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.home = folder / "master"
        self.homes = [folder / name for name in ("one", "two", "three", "four")[:machines]]
        self._cpus = str(cpus)
        self.run(self.home, "start", "--port", str(self.port), "--cpus", "0")
        self.key = self.home / "keys" / "client.key"
        for home in self.homes:
            home.mkdir()
            shutil.copy(self.home / "keys" / "worker.key", home / "worker.key")
            (home / "worker.key").chmod(0o600)
            self.join(home)

    def join(self, home: Path) -> None:
        """Start the worker of a machine."""
        host = f"127.0.0.{2 + self.homes.index(home)}"
        key = str(home / "worker.key")
        self.run(home, "join", self.address, "--key", key, "--host", host, "--cpus", self._cpus)

    def run(self, home: Path, *command: str) -> str:
        """Run a command on the machine of `home`."""
        return run(home, *command, REMOTELY_HOST=home.name)

    def stop(self) -> None:
        self.run(self.home, "stop", "--port", str(self.port))
        for home in (self.home, *self.homes):
            wait_until(functools.partial(_ended, home), f"the end of {home.name}")
