"""Starts, joins and stops a cluster whose daemons stay: what the command line does.

Which daemons run on this machine is written down in pid files (pid_file.py).
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from remotely.errors import RemotelyError
from remotely.machine import folders, pid_file, processes, this_machine
from remotely.machine.interfaces import EVERYWHERE, check_port, check_range, ip_of, own_address
from remotely.machine.pid_file import Running
from remotely.ops.daemon_process import END_S, START_S, Offer
from remotely.ops.foreground import Foreground
from remotely.ops.persistent_daemon import PersistentDaemon
from remotely.protocol.address import RUNS_ALREADY, is_ipv6, join_address, parse_address
from remotely.protocol.lease import LEAVE_S
from remotely.protocol.listening import ANY_PORT, Listening, Ports
from remotely.transport import key_files
from remotely.transport.keys import MasterKey, MemberKey
from remotely.transport.listening import reach

# For processes that dial in, for large values to be announced, and for their bytes.
WORKER_PORTS = 3


class Network(NamedTuple):
    """How a machine is reached: what to bind, what to announce, and which ports to use.

    `host` is an address of this machine; None is the one on the way to the master.
    """

    host: str | None = None
    announced: tuple[str, ...] = ()
    ports: Ports = ANY_PORT

    def listening(self, default_ip: str) -> Listening:
        """Return where the actors of this machine listen.  Raises RemotelyError if they cannot."""
        ip = default_ip if self.host is None else ip_of(self.host)
        if self.host is None and len(self.announced) > 1:  # of several networks
            ip = EVERYWHERE[any(map(is_ipv6, self.announced))]
        elif ip in EVERYWHERE and not self.announced:
            ip = default_ip
        check_port(self.host or ip, ip, 0)
        if self.ports.low:
            check_range(ip, self.ports.low, self.ports.high)
            if self.ports.count <= WORKER_PORTS:
                raise RemotelyError(
                    f"{self.ports} is too small a range: a worker listens at {WORKER_PORTS} ports "
                    "itself, and each actor at one more. Name a larger one by --ports"
                )
        return Listening(host=ip, announced=list(self.announced), ports=self.ports)


def listening_at(host: str, port: int) -> str:
    """Return where the master of a cluster listens that this machine starts at `host`."""
    return join_address(ip_of(host), port)


def start(
    network: Network,
    port: int,
    offer: Offer,
    keeper: Foreground | None = None,
    key_folder: Path | None = None,
) -> list[Running]:
    """Start a master and a worker here; return both when the cluster takes calls.

    If the previous master was killed, the new one takes over its worker with the actors, provided
    that the keys are the same.  With a `keeper` both end with this process.  Raises RemotelyError
    if the port is in use.
    """
    host = network.host or "127.0.0.1"
    ip = ip_of(host)
    folder = key_folder or folders.key_folder()
    with pid_file.starting(port):
        left = pid_file.running(port)
        for daemon in left:
            if daemon.role == "master":
                raise RemotelyError(
                    f"a cluster runs at {daemon.address} already (its master has pid "
                    f"{daemon.pid}); 'remotely stop --port {port}' ends it, --port starts another"
                )
        check_port(host, ip, port)
        listening = network.listening(own_address() if ip in EVERYWHERE else ip)
        key_files.make_keys(folder)
        key = key_files.load_master(folder / "master.key")
        orphans = [daemon for daemon in left if daemon.role == "worker"]
        listens = listening_at(host, port)
        near = join_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(ip, ip), port)
        with contextlib.ExitStack() as stack:
            master = stack.enter_context(PersistentDaemon("master", port, keeper, listens))
            key_file = folder / "master.key"
            if orphans:
                _check_orphan(orphans[0], key, port)
                master.begin_master(near, key, key_file, learns=True)
                _await_return(near, folder, orphans[0], port)
            else:
                worker = stack.enter_context(PersistentDaemon("worker", port, keeper, listens))
                learns = pid_file.was_killed(port)
                master.begin_master(near, key, key_file, learns)
                member = key_files.load_member(folder / "worker.key", "worker")
                worker.begin_worker("worker", near, near, member, listening, offer)
    return pid_file.running(port)


def join(
    host_name: str,
    port: int,
    key: MemberKey,
    network: Network,
    offer: Offer,
    patience_s: float = 0.0,
    end_without_master_s: float = 0.0,
    keeper: Foreground | None = None,
    once: bool = False,
) -> Running:
    """Start a worker here that joins the master there; return when the master has taken it.

    Its actors are reached at `network`, by default at the address at which the master sees this
    machine.  A master that is not there yet is waited for, for `patience_s`.  With `once`, a worker
    that is here already is returned instead.
    """
    where = reach(host_name, port, RUNS_ALREADY, patience_s)
    if once and (found := _worker_here(port, key)):
        return found
    _check_joined(port, key, offer.cpus)
    listening = network.listening(this_machine.address_towards(*parse_address(where)))
    address = join_address(host_name, port)
    pid_file.make_folder(port)
    stem = f"joined-{secrets.token_hex(4)}"
    with PersistentDaemon(stem, port, keeper) as worker:
        return worker.begin_worker(
            "joined", address, where, key, listening, offer, end_without_master_s
        )


def stop(port: int, joined: str = "", started: str = "") -> list[Running]:
    """End the cluster of this port; return its daemons on this machine that were ended.

    The master tells workers elsewhere to end.  On a machine that has only joined, its workers
    leave, and the cluster goes on.  If `joined` is the address of a master, only workers leave that
    have joined that one.  If `started` says where a master listens, only that one's cluster ends.
    """
    daemons = pid_file.running(port)
    if joined:
        daemons = [d for d in daemons if d.role == "joined" and d.address == joined]
    if started:
        daemons = [d for d in daemons if d.role != "joined"]  # the master is the first
        daemons = daemons if daemons and daemons[0].listens == started else []
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
    pid_file.forget_all(pid_file.folder_of(port))
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


def _check_joined(port: int, key: MemberKey, cpus: float | None) -> None:
    """Raise RemotelyError if this machine would be counted twice."""
    if cpus is None and (found := _worker_here(port, key)):
        raise RemotelyError(
            f"this machine is on that cluster already (worker pid {found.pid}), with all its "
            "cores: a second worker would give them away once more. If it is to have workers "
            "that share them, say how many each has: --cpus"
        )


def _worker_here(port: int, key: MemberKey) -> Running | None:
    """Return a worker of that cluster on this machine, if there is one."""
    cluster = key.master_public.decode()
    workers = (daemon for daemon in pid_file.running(port) if daemon.role != "master")
    return next((worker for worker in workers if worker.cluster == cluster), None)


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
