"""Starting, joining and stopping clusters whose daemons run in the background or the foreground.

Pid files record the daemons of this machine (pid_file.py).

A daemon replies to its configuration with one line on its standard output: a master when it takes
calls, a worker when the master has registered it, either one with an error if it fails.  So
`remotely start` and `remotely join` return when the cluster is ready.  If they fail, they leave
nothing behind.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from remotely.errors import RemotelyError, error_class
from remotely.machine import folders, pid_file, processes, this_machine
from remotely.machine.gpus import OfferedResources
from remotely.machine.interfaces import EVERYWHERE, check_port, check_range, ip_of, own_address
from remotely.machine.pid_file import Running
from remotely.ops import daemon_process
from remotely.ops.daemon_process import END_S, START_S
from remotely.ops.foreground import Foreground
from remotely.protocol.address import RUNS_ALREADY, is_ipv6, join_address, parse_address
from remotely.protocol.configs import MasterConfig
from remotely.protocol.lease import LEAVE_GRACE_S, LEAVE_S
from remotely.protocol.listening import ANY_PORT, Listening, Ports
from remotely.transport import key_files
from remotely.transport.keys import MasterKey, MemberKey
from remotely.transport.listening import reach

# For the connections of guest processes, the announcements of large values, and their bytes.
WORKER_PORTS = 3


class Network(NamedTuple):
    """The network of a machine: the address to bind, the addresses to announce, and the ports.

    `host` is an address of this machine; None is the address from which it reaches the master.
    """

    host: str | None = None
    announced: tuple[str, ...] = ()
    ports: Ports = ANY_PORT

    def listening(self, default_ip: str) -> Listening:
        """Return where the actors of this machine listen.  Raises RemotelyError if they cannot."""
        ip = default_ip if self.host is None else ip_of(self.host)
        if self.host is None and len(self.announced) > 1:  # announced on several networks
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
    """Return the address at which a master started here with `host` listens."""
    return join_address(ip_of(host), port)


def start(
    network: Network,
    port: int,
    offer: OfferedResources,
    keeper: Foreground | None = None,
    key_folder: Path | None = None,
    grace_s: float = LEAVE_GRACE_S,
) -> list[Running]:
    """Start a master and a worker here; return both when the cluster takes calls.

    If the previous master was killed, its worker and actors register with the new one, provided
    that the keys are the same.  With a `keeper` both daemons end with this process.  Raises
    RemotelyError if the port is in use.
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
                key_files.take_ended(folder, port)
                _check_orphan(orphans[0], key, port)
                master.configure_master(near, key, key_file, learns=True)
                _await_return(near, folder, orphans[0], port)
            else:
                worker = stack.enter_context(PersistentDaemon("worker", port, keeper, listens))
                learns = not key_files.take_ended(folder, port)
                master.configure_master(near, key, key_file, learns)
                member = key_files.load_member(folder / "worker.key", "worker")
                worker.configure_worker(
                    "worker", near, near, member, listening, offer, grace_s=grace_s
                )
    return pid_file.running(port)


def join(
    host_name: str,
    port: int,
    key: MemberKey,
    network: Network,
    offer: OfferedResources,
    patience_s: float = 0.0,
    end_without_master_s: float = 0.0,
    keeper: Foreground | None = None,
    once: bool = False,
    grace_s: float = LEAVE_GRACE_S,
    is_of_job: bool = False,
) -> Running:
    """Start a worker here that joins that master; return when the master has registered it.

    Its actors listen at `network`, by default at the address from which this machine reaches the
    master.  Waits up to `patience_s` for the master to start.  With `once`, return the worker that
    this machine already has on that cluster, if there is one.  After SIGTERM the machine is drained
    for `grace_s`.  `is_of_job`: nobody types the port, so other clusters here may have it too.
    """
    where = reach(host_name, port, RUNS_ALREADY, patience_s)
    if once and (found := _worker_here(port, key)):
        return found
    _check_joined(port, key, offer.cpus)
    if not is_of_job:
        _check_port_alone(port, key)
    listening = network.listening(this_machine.address_towards(*parse_address(where)))
    address = join_address(host_name, port)
    stem = f"joined-{secrets.token_hex(4)}"
    with PersistentDaemon(stem, port, keeper) as worker:
        return worker.configure_worker(
            "joined", address, where, key, listening, offer, end_without_master_s, grace_s
        )


def stop(port: int, joined: str = "", started: str = "") -> list[Running]:
    """End the cluster of this port; return its daemons on this machine, which have been stopped.

    The master tells the workers of other machines to end.  On a machine that has only joined, the
    workers leave and the cluster goes on.  `joined`, the address of a master, restricts this to
    workers that have joined that master; `started`, the address at which a master listens, to the
    cluster of that master.
    """
    daemons = pid_file.running(port)
    if joined:
        daemons = [d for d in daemons if d.role == "joined" and d.address == joined]
    if started:
        daemons = [d for d in daemons if d.role != "joined"]  # the master is the first
        daemons = daemons if daemons and daemons[0].listens == started else []
    own = [daemon for daemon in daemons if daemon.role != "joined"]
    if own:  # other workers here may have joined another machine's cluster with the same port
        daemons = [daemon for daemon in daemons if daemon.cluster == own[0].cluster]
    masters = [daemon for daemon in daemons if daemon.role == "master"]
    workers = [daemon for daemon in daemons if daemon.role != "master"]
    _end(masters, signal.SIGTERM, LEAVE_S + 1.0)  # it ends its workers first
    _end(workers, signal.SIGINT, END_S)  # at once: SIGTERM would have them drained
    for worker in _end(workers + masters, signal.SIGKILL, END_S):
        processes.kill_tagged(worker.worker or "nobody")
        _await(lambda worker=worker: not Path(worker.folder).exists(), END_S)  # type: ignore[misc]
    pid_file.forget_all(pid_file.folder_of(port))
    return daemons


def _check_joined(port: int, key: MemberKey, cpus: float | None) -> None:
    """Raise RemotelyError if a second worker here would offer the same cores again."""
    if cpus is None and (found := _worker_here(port, key)):
        raise RemotelyError(
            f"this machine is on that cluster already (worker pid {found.pid}), with all its "
            "cores: a second worker would offer them again. To split them between workers, give "
            "each its number of cores: --cpus"
        )


def _check_port_alone(port: int, key: MemberKey) -> None:
    """Raise RemotelyError if this machine is on another cluster with this port: `--port` names a
    cluster in every command, and would name two."""
    cluster = key.master_public.decode()
    others = [daemon for daemon in pid_file.running(port) if daemon.cluster != cluster]
    if others:
        where = " and ".join(sorted({daemon.address for daemon in others}))
        raise RemotelyError(
            f"this machine is on another cluster with port {port} already, at {where}: 'remotely "
            f"stop --port {port}' leaves it. To be on both, let one of them have another port, or "
            "set REMOTELY_HOME to another folder for one"
        )


def _worker_here(port: int, key: MemberKey) -> Running | None:
    """Return a worker of that cluster on this machine, if there is one."""
    cluster = key.master_public.decode()
    workers = (daemon for daemon in pid_file.running(port) if daemon.role != "master")
    return next((worker for worker in workers if worker.cluster == cluster), None)


def _check_orphan(worker: Running, key: MasterKey, port: int) -> None:
    if worker.cluster != key.pair.public.decode():
        raise RemotelyError(
            f"port {port} has a worker (pid {worker.pid}) of another cluster, which has lost its "
            f"master; 'remotely stop --port {port}' ends it"
        )


def _await_return(address: str, folder: Path, worker: Running, port: int) -> None:
    """Wait until an orphaned worker has registered with its new master."""
    from remotely.client.carrier import client_of  # noqa: PLC0415 - rarely needed

    client = client_of(address, folder / "client.key")
    try:
        has_returned = lambda: worker.worker in {w.worker for w in client.status().workers}
        if not _await(has_returned, START_S):
            raise RemotelyError(
                f"the worker (pid {worker.pid}) of the killed master does not register with the "
                f"new one; 'remotely stop --port {port}' ends it"
            )
    finally:
        client.shutdown()


def _end(daemons: list[Running], number: signal.Signals, timeout_s: float) -> list[Running]:
    """Send a signal to the living daemons and wait for them to end; return those signalled."""
    living = [daemon for daemon in daemons if daemon.alive]
    for daemon in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, number)
    _await(lambda: not any(daemon.alive for daemon in living), timeout_s)
    return living


def _await(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until the condition holds; return False on timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class PersistentDaemon:
    """A daemon that outlives its `with` block, or is stopped if the block raises.

    It is launched before its configuration is known, so that its imports overlap with other work.
    With a `keeper` it ends with this process and logs to this process's standard error.
    `listens` is the address, "IP:port", of the master of a cluster that is started here.
    """

    def __init__(
        self, stem: str, port: int, keeper: Foreground | None = None, listens: str = ""
    ) -> None:
        self._entering = contextlib.ExitStack()  # until it is recorded
        folder = self._entering.enter_context(pid_file.entering(port))
        self._file = folder / f"{stem}.json"
        self._role = "master" if stem == "master" else "worker"
        self._log = None if keeper else folder / f"{self._role}.log"
        self._folder: Path | None = None
        self._keeper = keeper
        self._listens = listens

    def __enter__(self) -> "PersistentDaemon":
        try:
            return self._launch()
        except BaseException:
            self._entering.close()
            raise

    def _launch(self) -> "PersistentDaemon":
        module = f"remotely.{self._role}"
        if self._log is None:
            self._daemon = daemon_process.launch(module, subprocess.PIPE, None)
            return self
        with self._log.open("ab") as log:
            self._daemon = daemon_process.launch(module, subprocess.PIPE, log.fileno())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        daemon = self._daemon
        self._entering.close()
        if kind is not None:
            daemon.terminate()
            daemon_process.wait_or_kill(daemon, END_S)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            pid_file.leave(self._file)
        else:
            pid_file.forget(self._file)
        assert daemon.stdout is not None
        daemon.stdout.close()
        if self._keeper and kind is None:
            self._keeper.keep(daemon, self._file)
            return
        daemon.returncode = 0  # so that Popen does not warn: it is left running
        daemon_process.close_input(daemon)

    def configure_master(self, address: str, key: MasterKey, key_file: Path, learns: bool) -> None:
        """Configure it as the master.  Raises RemotelyError if it does not become ready."""
        self._record("master", address, key.pair.public)
        self._await_ready(
            MasterConfig(
                address=f"tcp://{self._listens}",
                key=key.to_dict(),
                lifeline=False,
                key_file=str(key_file),
                pid_file=str(self._file),
                log=str(self._log or ""),
                learns=learns,
                attached=self._keeper is not None,
            ),
            "READY",
        )

    def configure_worker(
        self,
        role: str,
        address: str,
        master: str,
        key: MemberKey,
        listening: Listening,
        offer: OfferedResources,
        end_without_master_s: float = 0.0,
        grace_s: float = 0.0,
    ) -> Running:
        """Configure it as a worker of that master.  Raises the master's error if it is refused.

        `address` is the master's as the user gave it, `master` the one to connect to.
        """
        self._folder = folders.new_temporary("remotely-")
        with pid_file.predecessors(self._file.parent, key.master_public.decode()) as killed:
            config = msgspec.structs.replace(
                daemon_process.worker_config(
                    f"tcp://{master}",
                    key,
                    listening,
                    self._folder,
                    offer,
                    str(self._file),
                    grace_s,
                ),
                attached=self._keeper is not None,
                log=str(self._log or ""),
                end_without_master_s=end_without_master_s,
                predecessors=[worker.nonce for worker in killed],
            )
            running = self._record(role, address, key.master_public, config.worker, config.nonce)
            self._await_ready(config, "REGISTERED")
        return running

    def _record(
        self, role: str, address: str, cluster: bytes, worker: str = "", nonce: str = ""
    ) -> Running:
        daemon = msgspec.convert(
            {
                "role": role,
                "address": address,
                "cluster": cluster.decode(),
                "pid": self._daemon.pid,
                "started": processes.birth(self._daemon.pid) or 0.0,
                "log": str(self._log or ""),
                "listens": self._listens,
                "machine": this_machine.machine_name(),
                "worker": worker,
                "nonce": nonce,
                "folder": str(self._folder or ""),
            },
            Running,
        )
        pid_file.write(self._file, daemon)
        self._entering.close()
        return daemon

    def _await_ready(self, config: msgspec.Struct, expected: str) -> None:
        """Send the configuration; raise the daemon's error unless it replies `expected`."""
        daemon_process.configure(self._daemon, config)
        if not self._keeper:
            daemon_process.close_input(self._daemon)
        reply = daemon_process.first_line(self._daemon)
        if reply == expected:
            return
        if not reply:
            what = "ended at once" if self._daemon.poll() is not None else "does not answer"
            log = f"; its log is {self._log}" if self._log else ""
            raise RemotelyError(f"the {self._role} {what}{log}")
        kind, _, why = reply.partition(" ")
        error = error_class(kind)
        raise error(why) if error else RemotelyError(reply)
