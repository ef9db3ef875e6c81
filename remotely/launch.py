"""Starts the daemons: a cluster inside of a script's life, or one that stays.

A daemon is told what it is by one line on its standard input, so that no key is ever in an
argument list, where every user of the machine could read it.  An embedded cluster's daemons keep
that input open: its end is the end of the script, however the script ended.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from remotely import host, keys
from remotely.errors import RemotelyError
from remotely.keys import MemberKey
from remotely.master import Config as MasterConfig
from remotely.worker import Config as WorkerConfig

START_S = 10.0
END_S = 3.0

Daemon = subprocess.Popen[bytes]


class Embedded:
    """A master and a worker of this process alone, on ipc sockets in a private folder."""

    def __init__(self, cpus: float | None = None, gpus: int | None = None) -> None:
        self.folder = _new_folder()
        self.address = f"ipc://{self.folder}/master"
        master_key, self.key, worker_key = keys.fresh_keys()
        self._daemons: list[Daemon] = []
        try:
            config = MasterConfig(address=self.address, key=master_key.to_dict(), lifeline=True)
            master = _start("remotely.master", config, sys.stderr.fileno(), lifeline=True)
            self._daemons.append(master)
            worker = worker_config(self.address, worker_key, "", self.folder, cpus, gpus, True)
            # Beside the master, not after it: its socket retries until the master is there.
            self._daemons.append(_start("remotely.worker", worker, None, lifeline=True))
            _await_ready(master)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End both daemons, and with them everything that they started."""
        for daemon in self._daemons:
            _let_go(daemon)
        deadline = time.monotonic() + END_S
        for daemon in self._daemons:
            try:
                daemon.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            if daemon.stdout:
                daemon.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def forget(self) -> None:
        """In a forked child: do not keep the daemons alive when the parent is gone."""
        for daemon in self._daemons:
            _let_go(daemon)
            daemon.returncode = 0  # not a child of this process


class Running(msgspec.Struct, kw_only=True):
    """The pid file of a daemon that stays."""

    role: str
    address: str
    pid: int
    started: float
    log: str


def home() -> Path:
    return keys.default_folder().parent


def run_folder(port: int) -> Path:
    """Return where the pid files and logs of the cluster at this port are, on this machine."""
    return home() / "run" / str(port)


def running(port: int) -> list[Running]:
    """Return the daemons of the cluster at this port that live on this machine."""
    found = []
    for file in sorted(run_folder(port).glob("*.json")):
        with contextlib.suppress(msgspec.DecodeError, OSError):
            daemon = msgspec.json.decode(file.read_bytes(), type=Running)
            if host.is_alive(daemon.pid, daemon.started):
                found.append(daemon)
            else:
                file.unlink()
    return found


def start_master(bind_host: str, port: int) -> MemberKey:
    """Start a master that stays; return the client's key.  Raises RemotelyError if it cannot."""
    folder = keys.default_folder()
    keys.make_keys(folder)
    master_key = keys.load_master(folder / "master.key")
    address = f"tcp://{bind_host}:{port}"
    config = MasterConfig(address=address, key=master_key.to_dict(), lifeline=False)
    log = _log_file(port, "master")
    with log.open("ab") as file:
        daemon = _start("remotely.master", config, file.fileno(), lifeline=False)
    try:
        _await_ready(daemon)
    finally:
        if daemon.stdout:
            daemon.stdout.close()
    _remember("master", address, daemon.pid, port, log)
    return keys.load_member(folder / "client.key", "client")


def start_worker(
    master_host: str,
    port: int,
    key: MemberKey,
    tcp_host: str,
    cpus: float | None,
    gpus: int | None,
) -> Running:
    """Start a worker that stays, and joins the master at `master_host`."""
    address = f"tcp://{master_host}:{port}"
    config = worker_config(address, key, tcp_host, _new_folder(), cpus, gpus, False)
    log = _log_file(port, f"worker-{config.worker[:8]}")
    with log.open("ab") as file:
        daemon = _start("remotely.worker", config, file.fileno(), lifeline=False)
    return _remember(f"worker-{config.worker[:8]}", address, daemon.pid, port, log)


def stop(port: int) -> list[Running]:
    """End the cluster at this port: its daemons here, and by the master all workers elsewhere."""
    daemons = sorted(running(port), key=lambda daemon: daemon.role)
    for daemon in daemons:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, signal.SIGTERM)
    deadline = time.monotonic() + 2 * END_S
    while time.monotonic() < deadline and running(port):
        psutil.wait_procs([psutil.Process(d.pid) for d in running(port)], timeout=0.1)
    for daemon in running(port):
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, signal.SIGKILL)
    running(port)
    return daemons


def worker_config(
    address: str,
    key: MemberKey,
    tcp_host: str,
    folder: Path,
    cpus: float | None,
    gpus: int | None,
    lifeline: bool,
) -> WorkerConfig:
    return WorkerConfig(
        worker=secrets.token_hex(8),
        master=address,
        key=key.to_dict(),
        tcp_host=tcp_host,
        folder=str(folder),
        cpus=host.cores() if cpus is None else cpus,
        gpus=host.gpus() if gpus is None else gpus,
        lifeline=lifeline,
    )


def _new_folder() -> Path:
    """Return a folder of mode 0700 with a short path: an ipc socket's is at most 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="remotely-"))


def _log_file(port: int, role: str) -> Path:
    folder = run_folder(port)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / f"{role}.log"


def _start(module: str, config: msgspec.Struct, stderr: int | None, lifeline: bool) -> Daemon:
    """Start a daemon in a session of its own, where the terminal's Ctrl-C does not reach it."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if module == "remotely.master" else subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    assert daemon.stdin is not None
    daemon.stdin.write(msgspec.json.encode(config) + b"\n")
    daemon.stdin.flush()
    if not lifeline:
        daemon.stdin.close()
    return daemon


def _let_go(daemon: Daemon) -> None:
    if daemon.stdin:
        with contextlib.suppress(OSError):
            daemon.stdin.close()


def _await_ready(master: Daemon) -> None:
    assert master.stdout is not None
    line = master.stdout.readline().decode().strip()
    if line != "READY":
        raise RemotelyError(line or "the master ended before it was ready; see its log")


def _remember(role: str, address: str, pid: int, port: int, log: Path) -> Running:
    started = psutil.Process(pid).create_time()
    daemon = Running(role=role, address=address, pid=pid, started=started, log=str(log))
    (run_folder(port) / f"{role}.json").write_bytes(msgspec.json.encode(daemon))
    return daemon
