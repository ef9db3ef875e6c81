"""Starts the daemons: a cluster inside of a script's life, or one that stays.

A daemon is told what it is by one line on its standard input, so that no key is ever in an
argument list, where every user of the machine could read it.  An embedded cluster's daemons keep
that input open: its end is the end of the script, however the script ended.

A daemon that stays answers with one line on its standard output: the master that it takes calls,
the worker that the master has taken it, or why not.  So `remotely start` returns when there is a
cluster, and `remotely join` when there is a larger one; if either fails, nothing is left of it.
"""

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import msgspec

from remotely import errors
from remotely.errors import MasterLost, RemotelyError
from remotely.machine import daemons, folders, pid_file, processes, this_machine
from remotely.machine.gpus import Gpus, choose
from remotely.machine.interfaces import EVERYWHERE, check_port, ip_of, own_address
from remotely.machine.pid_file import Running
from remotely.master.master import LEAVE_S
from remotely.protocol.address import unknown_host
from remotely.protocol.configs import MasterConfig, WorkerConfig
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import CONNECT_S
from remotely.transport import keys
from remotely.transport.keys import MasterKey, MemberKey

START_S = 10.0  # for the first word of a daemon; a slow disk's first import takes seconds
END_S = 3.0

Daemon = subprocess.Popen[bytes]


# --- a cluster inside of a script's life ----------------------------------------------------------


class Embedded:
    """A master and a worker of this process alone, on ipc sockets in a private folder.

    Made, it is nothing yet: `start` may be interrupted at any moment, and `close` still knows what
    there may be.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir(), f"remotely-{secrets.token_hex(4)}")
        self.address = f"ipc://{self.folder}/master"
        self._master_key, self.key, self._worker_key = keys.fresh_keys()
        self._daemons: list[Daemon] = []

    def start(self, cpus: float | None = None, gpus: Gpus | None = None) -> None:
        """Return when the master takes calls; then `close` is the caller's duty, before too."""
        self.folder.mkdir(mode=0o700)
        config = MasterConfig(address=self.address, key=self._master_key.to_dict(), lifeline=True)
        master = _launch("remotely.master", subprocess.PIPE, None)
        self._daemons.append(master)
        # Beside the master, not after it: its socket retries until the master is there.
        worker = _launch("remotely.worker", subprocess.DEVNULL, None)
        self._daemons.append(worker)
        _tell(master, config)
        key = self._worker_key
        _tell(worker, _worker_config(self.address, key, "", self.folder, cpus, gpus))
        if (word := _first_word(master)) != "READY":
            raise RemotelyError(word or "the master of an embedded cluster did not start")

    def close(self) -> None:
        """End both daemons, and with them everything that they started."""
        try:
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
        finally:  # interrupted again, it leaves the daemons to end by themselves
            shutil.rmtree(self.folder, ignore_errors=True)

    def forget(self) -> None:
        """In a forked child: do not keep the daemons alive when the parent is gone."""
        for daemon in self._daemons:
            _let_go(daemon)
            daemon.returncode = 0  # not a child of this process


# --- a cluster that stays -------------------------------------------------------------------------


def start(bind_host: str, port: int, cpus: int | None, gpus: Gpus | None) -> list[Running]:
    """Start a master and a worker here; return both when the cluster takes calls.

    A worker whose master was killed is taken over with its actors by the new master, if that has
    the same keys.  Raises RemotelyError if a cluster or somebody else has the port.
    """
    ip = ip_of(bind_host)
    with pid_file.starting(port):
        left = pid_file.running(port)
        for daemon in left:
            if daemon.role == "master":
                raise RemotelyError(
                    f"a cluster runs at {daemon.address} already (its master has pid "
                    f"{daemon.pid}); 'remotely stop --port {port}' ends it, --port starts another"
                )
        check_port(bind_host, ip, port)
        folder = folders.key_folder()
        keys.make_keys(folder)
        key = keys.load_master(folder / "master.key")
        orphans = [daemon for daemon in left if daemon.role == "worker"]
        near = f"{'127.0.0.1' if ip == EVERYWHERE else ip}:{port}"
        with contextlib.ExitStack() as stack:
            master = stack.enter_context(_Staying("master", port))
            if orphans:
                _check_orphan(orphans[0], key, port)
                master.begin_master(f"tcp://{ip}:{port}", near, key, learns=True)
                _await_return(near, folder, orphans[0], port)
            else:
                worker = stack.enter_context(_Staying("worker", port))
                learns = pid_file.was_killed(port)
                master.begin_master(f"tcp://{ip}:{port}", near, key, learns)
                member = keys.load_member(folder / "worker.key", "worker")
                tcp_host = own_address() if ip == EVERYWHERE else ip
                worker.begin_worker("worker", near, member, tcp_host, cpus, gpus)
    return pid_file.running(port)


def join(
    host_name: str,
    port: int,
    key: MemberKey,
    tcp_host: str | None = None,
    cpus: int | None = None,
    gpus: Gpus | None = None,
) -> Running:
    """Start a worker here that joins the master there; return when the master has taken it.

    Its actors are reached at `tcp_host`, by default this machine's address on the way to there.
    """
    try:
        socket.create_connection((host_name, port), CONNECT_S).close()
    except (socket.gaierror, UnicodeError) as error:
        raise MasterLost(unknown_host(host_name, error)) from None
    except OSError as error:
        raise MasterLost(
            f"no master at {host_name}:{port}: {error}. Start one there with "
            f"'remotely start --host {host_name} --port {port}'; if it runs, a firewall may be "
            f"in the way, or it was started with a --host of its own machine alone"
        ) from None
    _check_joined(port, key, cpus)
    ip = this_machine.address_towards(host_name, port) if tcp_host is None else ip_of(tcp_host)
    check_port(tcp_host or ip, ip, 0)
    pid_file.make_folder(port)
    with _Staying(f"joined-{secrets.token_hex(4)}", port) as worker:
        return worker.begin_worker("joined", f"{host_name}:{port}", key, ip, cpus, gpus)


def stop(port: int) -> list[Running]:
    """End the cluster of this port; return its daemons on this machine that were ended.

    Workers elsewhere are told by the master.  On a machine that has only joined, its workers
    leave, and the cluster goes on.
    """
    daemons = pid_file.running(port)
    own = [daemon for daemon in daemons if daemon.role != "joined"]
    if own:  # a worker here may have joined another machine's cluster of the same port
        daemons = [daemon for daemon in daemons if daemon.cluster == own[0].cluster]
    masters = [daemon for daemon in daemons if daemon.role == "master"]
    workers = [daemon for daemon in daemons if daemon.role != "master"]
    _end(masters, signal.SIGTERM, LEAVE_S + 1.0)  # sees its workers off
    _end(workers, signal.SIGTERM, END_S)
    for worker in _end(workers + masters, signal.SIGKILL, END_S):
        processes.kill_tagged(worker.worker or "nobody")
        _await(lambda worker=worker: not Path(worker.folder).exists(), END_S)  # type: ignore[misc]
    pid_file.tidy(pid_file.folder_of(port))
    return daemons


def read_keys_again() -> bool:
    """Have the masters of this machine that use its keys read them again; true if there is one."""
    cluster = keys.load_master(folders.key_folder() / "master.key").pair.public.decode()
    told = False
    for port in pid_file.ports():
        for daemon in pid_file.running(port):
            if daemon.role == "master" and daemon.cluster == cluster:
                os.kill(daemon.pid, signal.SIGHUP)
                told = True
    return told


# --- how a daemon that stays is started -----------------------------------------------------------


class _Staying:
    """A daemon that outlives us if the block of this context ends well, and else does not.

    It is started before it is told what it is: what it needs is imported meanwhile.
    """

    def __init__(self, stem: str, port: int) -> None:
        folder = pid_file.make_folder(port)
        self._file = folder / f"{stem}.json"
        self._log = folder / ("master.log" if stem == "master" else "worker.log")
        self._folder: Path | None = None

    def __enter__(self) -> "_Staying":
        module = "remotely.master" if self._log.stem == "master" else "remotely.worker"
        with self._log.open("ab") as log:
            self._daemon = _launch(module, subprocess.PIPE, log.fileno())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        daemon = self._daemon
        if kind is not None:
            daemon.terminate()
            try:
                daemon.wait(END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            pid_file.leave(self._file)
        daemon.returncode = 0  # no child of ours any more
        _let_go(daemon)
        assert daemon.stdout is not None
        daemon.stdout.close()

    def begin_master(self, bind: str, address: str, key: MasterKey, learns: bool) -> None:
        """Make it the master.  Raises RemotelyError if it does not take calls."""
        self._write("master", address, key.pair.public)
        self._hear_of(
            MasterConfig(
                address=bind,
                key=key.to_dict(),
                lifeline=False,
                key_file=str(folders.key_folder() / "master.key"),
                pid_file=str(self._file),
                learns=learns,
            ),
            "READY",
        )

    def begin_worker(
        self,
        role: str,
        address: str,
        key: MemberKey,
        tcp_host: str,
        cpus: int | None,
        gpus: Gpus | None,
    ) -> Running:
        """Make it a worker of the master there.  Raises what the master has against it."""
        self._folder = _new_folder()
        config = _worker_config(
            f"tcp://{address}", key, tcp_host, self._folder, cpus, gpus, str(self._file)
        )
        written = self._write(role, address, key.master_public, config.worker)
        self._hear_of(config, "REGISTERED")
        return written

    def _write(self, role: str, address: str, cluster: bytes, worker: str = "") -> Running:
        daemon = msgspec.convert(
            {
                "role": role,
                "address": address,
                "cluster": cluster.decode(),
                "pid": self._daemon.pid,
                "started": processes.birth(self._daemon.pid) or 0.0,
                "log": str(self._log),
                "worker": worker,
                "folder": str(self._folder or ""),
            },
            Running,
        )
        pid_file.write(self._file, daemon)
        return daemon

    def _hear_of(self, config: msgspec.Struct, expected: str) -> None:
        _tell(self._daemon, config)
        _let_go(self._daemon)
        word = _first_word(self._daemon)
        if word == expected:
            return
        if not word:
            what = "ended at once" if self._daemon.poll() is not None else "does not answer"
            raise RemotelyError(f"the {self._log.stem} {what}; its log is {self._log}")
        kind, _, why = word.partition(" ")
        error = getattr(errors, kind, None)
        raise error(why) if error else RemotelyError(word)


def _check_joined(port: int, key: MemberKey, cpus: int | None) -> None:
    """Raise RemotelyError if this machine would be counted twice."""
    cluster = key.master_public.decode()
    for daemon in pid_file.running(port):
        if daemon.role != "master" and daemon.cluster == cluster and cpus is None:
            raise RemotelyError(
                f"this machine is on that cluster already (worker pid {daemon.pid}), with all its "
                "cores: a second worker would give them away once more. If it is to have workers "
                "that share them, say how many each has: --cpus"
            )


def _check_orphan(worker: Running, key: MasterKey, port: int) -> None:
    if worker.cluster != key.pair.public.decode():
        raise RemotelyError(
            f"a worker (pid {worker.pid}) of another cluster at port {port} has lost its master; "
            f"'remotely stop --port {port}' ends it"
        )


def _await_return(address: str, folder: Path, worker: Running, port: int) -> None:
    """Wait until a worker has found its new master."""
    from remotely.client.client import client_of  # noqa: PLC0415 - rarely needed

    client = client_of(address, folder / "client.key")
    try:
        there = lambda: worker.worker in {w.worker for w in client.status().workers}
        if not _await(there, START_S):
            raise RemotelyError(
                f"the worker (pid {worker.pid}) of the master that was killed does not come back; "
                f"'remotely stop --port {port}' ends it"
            )
    finally:
        client.shutdown()


# --- how a daemon is ended ------------------------------------------------------------------------


def _end(daemons: list[Running], number: signal.Signals, within_s: float) -> list[Running]:
    """Send a signal to those that live, and wait for them; return whom it was sent to."""
    living = [daemon for daemon in daemons if daemon.alive]
    for daemon in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, number)
    _await(lambda: not any(daemon.alive for daemon in living), within_s)
    return living


def _await(fact: Callable[[], bool], within_s: float) -> bool:
    """Wait for something that nobody will tell us of."""
    deadline = time.monotonic() + within_s
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- processes ------------------------------------------------------------------------------------


def _launch(module: str, stdout: int, stderr: int | None) -> Daemon:
    """Start a daemon in a session of its own, where the terminal's Ctrl-C does not reach it."""
    return subprocess.Popen(
        daemons.module_command(module),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,  # None is ours, whatever sys.stderr is now
        start_new_session=True,
    )


def _tell(daemon: Daemon, config: msgspec.Struct) -> None:
    assert daemon.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended: its first word, which is none, shows it
        daemon.stdin.write(msgspec.json.encode(config) + b"\n")
        daemon.stdin.flush()


def _let_go(daemon: Daemon) -> None:
    if daemon.stdin:
        with contextlib.suppress(OSError):
            daemon.stdin.close()


def _first_word(daemon: Daemon) -> str:
    """Return the line by which a daemon says that it is ready; nothing if it says none in time."""
    assert daemon.stdout is not None
    fd, line = daemon.stdout.fileno(), b""
    deadline = time.monotonic() + START_S
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            break
        if not (data := os.read(fd, 4096)):
            break
        line += data
    return line.decode(errors="replace").strip()


def _worker_config(
    address: str,
    key: MemberKey,
    tcp_host: str,
    folder: Path,
    cpus: float | None,
    gpus: Gpus | None,
    file: str = "",
) -> WorkerConfig:
    nonce = secrets.token_hex(16)
    return WorkerConfig(
        worker=bound_id("worker", key.pair.public, nonce),
        nonce=nonce,
        master=address,
        key=key.to_dict(),
        tcp_host=tcp_host,
        folder=str(folder),
        cpus=this_machine.cores() if cpus is None else cpus,
        gpus=choose(gpus),
        lifeline=not file,
        pid_file=file,
    )


def _new_folder() -> Path:
    """Return a folder of mode 0700 with a short path: an ipc socket's is at most 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="remotely-"))
