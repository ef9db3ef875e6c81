"""The persistent daemons of this machine, and the cluster of each.

    ~/.remotely/run/HOST/PORT/    HOST is this machine: its home may be shared with others
        master.json               written by the launcher, removed by the daemon when it ends
        worker.json               the worker that `remotely start` started
        joined-ID.json            a worker that joined a master of this port, here or elsewhere
        worker.killed, joined-ID.killed
                                  the worker was killed: the next worker reports that to the master
        master.log, worker.log    their output; nearly nothing

Pids are reused, so a daemon is identified by its pid and its start time.  If a `.json` file names a
dead daemon, it was killed.  The process that finds the file renames it to `.killed`, and removes
the folder of sockets and logs that the daemon could not remove.  A `.killed` file is removed when
the next daemon runs or when the user stops the cluster, but not when a replacement fails to start.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from remotely.machine import file_lock, folders, processes, this_machine

KILLED_GONE_S = 3.0  # timeout for SIGKILL to end the processes that a killed worker has left


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one daemon."""

    role: Literal["master", "worker", "joined"]
    address: str  # of the master, "host:port", as this machine reaches it
    cluster: str  # the master's public key: two clusters may have the same port
    pid: int
    started: float
    log: str
    listens: str = ""  # "IP:port" where the master listens; empty for a worker that has joined
    worker: str = ""  # its id
    nonce: str = ""  # from which the id is derived, with the key
    pid_space: str = ""  # in which the pid is valid: see this_machine
    folder: str = ""  # of the worker, for sockets and logs

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.started)


def folder_of(port: int) -> Path:
    return folders.home() / "run" / this_machine.machine_name() / str(port)


def make_folder(port: int) -> Path:
    """Create the folder of this port with mode 0700, and return it."""
    folder = folder_of(port)
    _make_private(folder)
    return folder


def _make_private(folder: Path) -> None:
    for made in reversed((folder, *folder.parents[:3])):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)


def write(file: Path, running: Running) -> None:
    """Replace the file atomically, as another process may be reading it."""
    temporary = file.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(running))
    temporary.replace(file)


def running(port: int) -> list[Running]:
    """Return the live daemons of this port: the master, its own worker, and joined workers."""
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
    """Rename the file of a killed daemon to `.killed`, and remove its folder."""
    with contextlib.suppress(FileNotFoundError):
        file.replace(file.with_suffix(".killed"))
    if daemon.folder:
        shutil.rmtree(daemon.folder, ignore_errors=True)


def leave(file: Path) -> None:
    """Remove the file of this daemon, which ends."""
    file.unlink(missing_ok=True)
    _tidy(file.parent)


def forget(file: Path) -> None:
    """Remove the `.killed` file beside this one: the next daemon runs, or none is wanted."""
    file.with_suffix(".killed").unlink(missing_ok=True)


def forget_all(folder: Path) -> None:
    """The user stops the cluster: remove all `.killed` files, unless a daemon still runs."""
    if not _running_in(folder):
        for killed in folder.glob("*.killed"):
            killed.unlink(missing_ok=True)
        _tidy(folder)


@contextlib.contextmanager
def predecessors(folder: Path, cluster: str) -> Iterator[list[Running]]:
    """Yield the killed workers of a cluster on this machine, after killing what they have left.

    If the block succeeds, their `.killed` files are removed.
    """
    _running_in(folder)  # renames the files of dead daemons to `.killed`
    killed = {}
    for file in folder.glob("*.killed"):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            worker = msgspec.json.decode(file.read_bytes(), type=Running)
            if worker.role != "master" and worker.cluster == cluster:
                killed[file] = worker
    here = this_machine.pid_space()  # a missing pid of another pid space proves nothing
    ours = [worker for worker in killed.values() if worker.pid_space == here]
    yield [worker for worker in ours if processes.end_tagged(worker.worker, KILLED_GONE_S)]
    for file in killed:
        file.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """If no daemon is left, remove empty logs, and the folder if it is empty then."""
    if _running_in(folder):
        return
    for log in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if log.stat().st_size == 0:
                log.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def ports() -> list[int]:
    """Return the ports with live daemons on this machine."""
    folders = folder_of(0).parent.glob("*")
    found = sorted(int(folder.name) for folder in folders if folder.name.isdecimal())
    return [port for port in found if running(port)]


@contextlib.contextmanager
def starting(port: int) -> Iterator[None]:
    """Hold the lock for starting daemons here; remove the port's folder if the block fails."""
    ours = folder_of(port).parent
    _make_private(ours)
    with file_lock.locked(ours / ".lock"):
        folder = make_folder(port)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # not empty: a daemon runs there, or left a log
                folder.rmdir()
            raise
