"""The persistent daemons of this machine, and the cluster of each.

    ~/.remotely/run/PIDS/PORT/    PIDS is where pids mean the same (`this_machine.pid_space`): the
                                  home may be shared with other machines, containers and users
        master.json               written by the launcher, removed by the daemon when it ends
        worker.json               the worker that `remotely start` started
        joined-ID.json            a worker that joined a master of this port, here or elsewhere
        worker.killed, joined-ID.killed
                                  the worker was killed: the next worker reports that to the master
        master.log, worker.log    their output; nearly nothing (daemons.log_to)

Pids are reused, so a daemon is identified by its pid and its start time.  If a `.json` file names a
dead daemon, it was killed.  A process that starts or stops daemons renames the file to `.killed`,
and removes the folder of sockets and logs that the daemon could not remove; one that only reads
changes nothing.  A `.killed` file is removed when the next daemon runs or when the user stops the
cluster, but not when a replacement fails to start.

The folder has no host name in it: a host may be renamed.  Nor a machine id: images may share one.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from remotely.errors import RemotelyError
from remotely.machine import file_lock, folders, processes, this_machine

ENTERING = ".entering"  # beside the ports: locked by those who start a daemon
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
    machine: str = ""  # its name, for messages only
    worker: str = ""  # its id
    nonce: str = ""  # from which the id is derived, with the key
    folder: str = ""  # of the worker, for sockets and logs

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.started)


def folder_of(port: int) -> Path:
    return folders.home() / "run" / _here() / str(port)


@cache
def _here() -> str:
    try:
        return hashlib.blake2b(this_machine.pid_space().encode(), digest_size=6).hexdigest()
    except OSError:  # not Linux: no daemon runs here
        return this_machine.machine_name()


def make_folder(port: int) -> Path:
    """Create the folder of this port with mode 0700, and return it."""
    folder = folder_of(port)
    _make_private(folder)
    return folder


@contextlib.contextmanager
def entering(port: int) -> Iterator[Path]:
    """Make the folder of this port, which no daemon that leaves removes before the block ends."""
    folder = folder_of(port)
    _make_private(folder.parent)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(RemotelyError):  # no locks here: then it may be removed
            stack.enter_context(file_lock.locked(folder.parent / ENTERING, shared=True))
        yield make_folder(port)


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
    found = [daemon for _, daemon in _recorded_in(folder_of(port)) if daemon.alive]
    return sorted(found, key=lambda d: (["master", "worker", "joined"].index(d.role), d.pid))


def masters(cluster: str) -> list[tuple[Path, Running, bool]]:
    """Return the masters with this public key that are recorded in this home, by file, and whether
    each was started where this process sees its pid.  Others may have ended since."""
    ours = folder_of(0).parent
    found = []
    for folder in ours.parent.glob("*/*"):
        is_ours = folder.parent == ours
        for file, daemon in _recorded_in(folder):
            is_one = daemon.role == "master" and daemon.cluster == cluster
            if is_one and (not is_ours or daemon.alive):
                found.append((file, daemon, is_ours))
    return found


def _recorded_in(folder: Path, suffix: str = "json") -> list[tuple[Path, Running]]:
    found = []
    for file in folder.glob(f"*.{suffix}"):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            found.append((file, msgspec.json.decode(file.read_bytes(), type=Running)))
    return found


def retire_killed(folder: Path) -> bool:
    """Rename the files of the daemons that were killed, and remove what they have left; return
    whether any daemon lives."""
    lives = False
    for file, daemon in _recorded_in(folder):
        if daemon.alive:
            lives = True
        else:
            remove(file, daemon)
    return lives


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
    if not retire_killed(folder):
        for killed in folder.glob("*.killed"):
            killed.unlink(missing_ok=True)
        _tidy(folder)


@contextlib.contextmanager
def predecessors(folder: Path, cluster: str) -> Iterator[list[Running]]:
    """Yield the killed workers of a cluster on this machine, after killing what they have left.

    If the block succeeds, their `.killed` files are removed.
    """
    retire_killed(folder)
    killed = {
        file: worker
        for file, worker in _recorded_in(folder, "killed")
        if worker.role != "master" and worker.cluster == cluster
    }
    workers = killed.values()
    yield [worker for worker in workers if processes.end_tagged(worker.worker, KILLED_GONE_S)]
    for file in killed:
        file.unlink(missing_ok=True)


def _tidy(folder: Path) -> None:
    """If no daemon is left or enters, remove empty logs, and the folder if it is empty then."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock.locked(folder.parent / ENTERING, wait=False))
        except RemotelyError:
            pass  # there are no locks here
        except OSError:
            return  # a daemon enters, or the folder is gone
        if any(daemon.alive for _, daemon in _recorded_in(folder)):
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
        retire_killed(folder)
        try:
            yield
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(OSError):  # not empty: a daemon runs there, or left a log
                folder.rmdir()
            raise
