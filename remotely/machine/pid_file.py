"""The persistent daemons of this machine, and the cluster of each.

    ~/.remotely/run/HOST/PORT/    HOST is this machine: its home may be shared with others
        master.json               written by the launcher, removed by the daemon when it ends
        master.killed             left by a master that was killed: its workers may be elsewhere,
                                  waiting for the next master
        worker.json               the worker that `remotely start` started
        joined-ID.json            a worker that joined a master of this port, here or elsewhere
        worker.killed, joined-ID.killed
                                  left by one that was killed: the next tells the master of it
        master.log, worker.log    their output; nearly nothing

Pids are reused, so a daemon is identified by its pid and its start time.  A file whose daemon is
dead was left by one that was killed.  Whoever finds it makes it `.killed`, and removes the folder
of sockets and logs that the daemon could not remove.  A killed daemon is forgotten when the next
one lives, or when the user ends the cluster; not by the end of one that could not take its place.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from remotely.machine import file_lock, folders, processes, this_machine

GONE_S = 3.0  # for what a killed worker has left to end by SIGKILL


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one daemon."""

    role: Literal["master", "worker", "joined"]
    address: str  # of the master, "host:port", as this machine reaches it
    cluster: str  # the master's public key: two clusters may have the same port
    pid: int
    started: float
    log: str
    listens: str = ""  # where the master does, "IP:port"; not of a worker that has joined
    worker: str = ""  # its id
    nonce: str = ""  # what makes that of its key
    pid_space: str = ""  # where its pid means a process: see this_machine
    folder: str = ""  # of the worker, for sockets and logs

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.started)


def folder_of(port: int) -> Path:
    return folders.home() / "run" / this_machine.machine_name() / str(port)


def make_folder(port: int) -> Path:
    """Create the folder of this port, closed to other users, and return it."""
    folder = folder_of(port)
    _make_private(folder)
    return folder


def _make_private(folder: Path) -> None:
    for made in reversed((folder, *folder.parents[:3])):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)


def write(file: Path, running: Running) -> None:
    """Replace the file atomically: another process may be reading it."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(running))
    temporary.replace(file)


def running(port: int) -> list[Running]:
    """Return the living daemons of this port: the master, its own worker, and joined workers."""
    return _running_in(folder_of(port))


def _running_in(folder: Path) -> list[Running]:
    found = []
    for file in folder.glob("*.json"):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            daemon = msgspec.json.decode(file.read_bytes(), type=Running)
            if daemon.alive:
                found.append(daemon)
            else:
                remove(file, daemon)
    return sorted(found, key=lambda d: (["master", "worker", "joined"].index(d.role), d.pid))


def remove(file: Path, daemon: Running) -> None:
    """Remove what a killed daemon has left."""
    with contextlib.suppress(FileNotFoundError):
        file.replace(file.with_suffix(".killed"))
    if daemon.folder:
        shutil.rmtree(daemon.folder, ignore_errors=True)


def leave(file: Path) -> None:
    """For a daemon that ends: remove its own file."""
    file.unlink(missing_ok=True)
    _tidy(file.parent)


def forget(file: Path) -> None:
    """Forget the daemon of this file that was killed: the next one lives, or is not to be."""
    file.with_suffix(".killed").unlink(missing_ok=True)


def forget_all(folder: Path) -> None:
    """The user ends the cluster: nobody is to take the place of those that were killed."""
    if not _running_in(folder):
        for killed in folder.glob("*.killed"):
            killed.unlink(missing_ok=True)
        _tidy(folder)


def was_killed(port: int) -> bool:
    """Return whether the last master of this port was killed."""
    return (folder_of(port) / "master.killed").exists()


@contextlib.contextmanager
def predecessors(folder: Path, cluster: str) -> Iterator[list[Running]]:
    """Yield the workers of a cluster that were killed here, and of which nothing is left.

    What they left is ended first.  If the block ends well, they are forgotten.
    """
    _running_in(folder)  # those whose end nobody has seen yet become `.killed`
    killed = {}
    for file in folder.glob("*.killed"):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            worker = msgspec.json.decode(file.read_bytes(), type=Running)
            if worker.role != "master" and worker.cluster == cluster:
                killed[file] = worker
    here = this_machine.pid_space()  # of elsewhere, an unknown pid says nothing
    ours = [worker for worker in killed.values() if worker.pid_space == here]
    yield [worker for worker in ours if processes.end_tagged(worker.worker, GONE_S)]
    for file in killed:
        file.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """When the last daemon is gone, remove the folder too, unless there is more to tell."""
    if _running_in(folder):
        return
    for log in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def ports() -> list[int]:
    """Return the ports with living daemons on this machine."""
    folders = folder_of(0).parent.glob("*")
    found = sorted(int(folder.name) for folder in folders if folder.name.isdecimal())
    return [port for port in found if running(port)]


@contextlib.contextmanager
def starting(port: int) -> Iterator[None]:
    """Let one process at a time start a cluster at a port.  If it fails, no folder is left."""
    ours = folder_of(port).parent
    _make_private(ours)
    with file_lock.locked(ours / ".lock"):
        folder = make_folder(port)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # not empty: something runs there, or left its log
                folder.rmdir()
            raise
