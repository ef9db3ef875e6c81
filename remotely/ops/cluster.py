"""Starts, joins and stops a cluster whose daemons stay: what the command line does.

Which daemons run on this machine is written down in pid files (pid_file.py).
"""

import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from remotely.errors import MasterLost, RemotelyError
from remotely.machine import folders, pid_file, processes, this_machine
from remotely.machine.gpus import Gpus
from remotely.machine.interfaces import EVERYWHERE, check_port, ip_of, own_address
from remotely.machine.pid_file import Running
from remotely.master.master import LEAVE_S
from remotely.ops.daemon_process import END_S, START_S
from remotely.ops.persistent_daemon import PersistentDaemon
from remotely.protocol.address import unknown_host
from remotely.protocol.lease import CONNECT_S
from remotely.transport import key_files
from remotely.transport.keys import MasterKey, MemberKey


def start(
    bind_host: str,
    port: int,
    cpus: int | None,
    gpus: Gpus | None,
    resources: Mapping[str, float] | None = None,
) -> list[Running]:
    """Start a master and a worker here; return both when the cluster takes calls.

    If the previous master was killed, the new one takes over its worker with the actors, provided
    that the keys are the same.  Raises RemotelyError if the port is in use.
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
        key_files.make_keys(folder)
        key = key_files.load_master(folder / "master.key")
        orphans = [daemon for daemon in left if daemon.role == "worker"]
        near = f"{'127.0.0.1' if ip == EVERYWHERE else ip}:{port}"
        with contextlib.ExitStack() as stack:
            master = stack.enter_context(PersistentDaemon("master", port))
            if orphans:
                _check_orphan(orphans[0], key, port)
                master.begin_master(f"tcp://{ip}:{port}", near, key, learns=True)
                _await_return(near, folder, orphans[0], port)
            else:
                worker = stack.enter_context(PersistentDaemon("worker", port))
                learns = pid_file.was_killed(port)
                master.begin_master(f"tcp://{ip}:{port}", near, key, learns)
                member = key_files.load_member(folder / "worker.key", "worker")
                tcp_host = own_address() if ip == EVERYWHERE else ip
                worker.begin_worker("worker", near, member, tcp_host, cpus, gpus, resources)
    return pid_file.running(port)


def join(
    host_name: str,
    port: int,
    key: MemberKey,
    tcp_host: str | None = None,
    cpus: int | None = None,
    gpus: Gpus | None = None,
    resources: Mapping[str, float] | None = None,
) -> Running:
    """Start a worker here that joins the master there; return when the master has taken it.

    Its actors are reached at `tcp_host`, by default the address at which the master sees this
    machine.
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
    with PersistentDaemon(f"joined-{secrets.token_hex(4)}", port) as worker:
        return worker.begin_worker("joined", f"{host_name}:{port}", key, ip, cpus, gpus, resources)


def stop(port: int) -> list[Running]:
    """End the cluster of this port; return its daemons on this machine that were ended.

    The master tells workers elsewhere to end.  On a machine that has only joined, its workers
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
    """Make the masters that use this machine's keys read them again; return if there is one."""
    cluster = key_files.load_master(folders.key_folder() / "master.key").pair.public.decode()
    told = False
    for port in pid_file.ports():
        for daemon in pid_file.running(port):
            if daemon.role == "master" and daemon.cluster == cluster:
                os.kill(daemon.pid, signal.SIGHUP)
                told = True
    return told


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


def _end(daemons: list[Running], number: signal.Signals, within_s: float) -> list[Running]:
    """Send a signal to the living ones and wait for them to end; return those it was sent to."""
    living = [daemon for daemon in daemons if daemon.alive]
    for daemon in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, number)
    _await(lambda: not any(daemon.alive for daemon in living), within_s)
    return living


def _await(fact: Callable[[], bool], within_s: float) -> bool:
    """Poll until something is true; return false if it does not happen in time."""
    deadline = time.monotonic() + within_s
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
