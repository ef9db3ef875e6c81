"""One cluster for the length of one job: `remotely run`, the same line on every machine.

    rank 0         creates the folder of the job (rendezvous.py), starts the master and a worker,
                   waits for the others, runs the command (guarded_command.py), ends the cluster
    other ranks    look for rank 0 in that folder, join it, and end with it

The daemons and the command of a rank end with it, even if it is killed: each holds the end of a
pipe or socket from it.  If rank 0 is lost with its machine, the others leave after FENCE_S, by when
they have lost their actors.
"""

import signal
import time
from pathlib import Path

from remotely.errors import MasterLost, NotAllowed, RemotelyError
from remotely.machine import interfaces
from remotely.machine.gpus import OfferedResources
from remotely.ops import cluster
from remotely.ops.cluster import Network
from remotely.ops.foreground import (
    Foreground,
    drained_at_sigterm,
    exiting_on_signals,
    is_ignored,
)
from remotely.ops.guarded_command import GuardedCommand
from remotely.ops.launchers import JobRank
from remotely.ops.rendezvous import Note, Pause, Rendezvous, answering, missing
from remotely.protocol.address import join_address, parse_address
from remotely.protocol.lease import FENCE_S, LEAVE_GRACE_S
from remotely.transport import key_files

JOB_NOTE_EVERY_S = 2.0
RUN_AGAIN_S = 0.5
FOLDER_GONE_S = 3.0  # a restarted rank 0 removes and recreates the folder within this time
PORTS_TRIED = 5  # another job may take the port first


def lead(
    rank: JobRank,
    folder: Path,
    network: Network,
    offer: OfferedResources,
    patience_s: float,
    words: list[str],
) -> int:
    """Run rank 0; return the exit code of the command.

    Raises RemotelyError, which names the ranks, if others cannot join or do not appear in time.
    """
    rendezvous, keeper = Rendezvous(folder, 0), Foreground()
    command: GuardedCommand | None = None
    with exiting_on_signals():
        try:
            rendezvous.check()
            command = GuardedCommand(rendezvous.close)  # the guard removes the folder
            rendezvous.open()
            port, local_address = _start(network, offer, keeper, folder)
            rendezvous.invite(_addresses(network, port))
            _await_ranks(rendezvous, keeper, command, rank, patience_s)
            _ignore_ctrl_c()
            key = str(folder / "client.key")
            command.start(words, {"REMOTELY_ADDRESS": local_address, "REMOTELY_KEY": key})
            keeper.wait(command.process)
            has_lost_daemon = keeper.any_ended()
            code = command.end()
        finally:
            if command is not None:
                command.end()
                rendezvous.close()  # if the guard was killed
            keeper.close()
    if has_lost_daemon:
        raise RemotelyError("the master or the worker of rank 0 ended before the command did")
    return code


def follow(
    rank: JobRank,
    folder: Path,
    network: Network,
    offer: OfferedResources,
    patience_s: float,
    grace_s: float = LEAVE_GRACE_S,
) -> None:
    """Run another rank: join rank 0, and return when the cluster has ended.

    After SIGTERM its machine is drained for `grace_s`.

    Raises RemotelyError if rank 0 cannot be found; the message says what was seen of it.
    """
    rendezvous, keeper = Rendezvous(folder, rank.rank), Foreground()
    with exiting_on_signals():
        try:
            with drained_at_sigterm(keeper, grace_s):
                _join(rendezvous, network, offer, patience_s, keeper, grace_s)
                rendezvous.note("joined")
                _ignore_ctrl_c()
                keeper.wait()
        finally:
            ended_well = keeper.close()
    if not ended_well:
        raise RemotelyError(f"the worker of rank {rank.rank} did not end gracefully")


def _ignore_ctrl_c() -> None:
    """Leave Ctrl-C to the command, which gets the signal too; all ranks end when it does."""
    if not is_ignored(signal.SIGINT):
        signal.signal(signal.SIGINT, lambda *_: None)


def _start(
    network: Network, offer: OfferedResources, keeper: Foreground, folder: Path
) -> tuple[int, str]:
    """Start the cluster at a free port; return the port, and its address on this machine."""
    ip = interfaces.ip_of(network.host or "127.0.0.1")
    for attempt in range(1, PORTS_TRIED + 1):
        port = interfaces.free_port(ip, network.ports.low, network.ports.high)
        try:
            return port, cluster.start(network, port, offer, keeper, folder)[0].address
        except RemotelyError:
            if attempt == PORTS_TRIED or not interfaces.is_taken(ip, port):
                raise
    raise AssertionError("unreachable")


def _addresses(network: Network, port: int) -> list[str]:
    """Return the addresses at which other ranks may reach rank 0, the likeliest first."""
    hosts = list(network.announced) or [network.host or "127.0.0.1"]
    if hosts[0] in interfaces.EVERYWHERE:
        hosts = list(dict.fromkeys([interfaces.own_address(), *interfaces.addresses_here()]))
    return [join_address(host, port) for host in hosts]


def _await_ranks(
    rendezvous: Rendezvous,
    keeper: Foreground,
    command: GuardedCommand,
    rank: JobRank,
    patience_s: float,
) -> None:
    deadline = time.monotonic() + patience_s
    others = set(range(1, rank.size))
    pause, notes = Pause(), dict[int, Note]()
    while True:
        before, notes = notes, rendezvous.notes(notes)
        if others <= {note.rank for note in notes.values() if note.state == "joined"}:
            return
        if keeper.any_ended() or command.has_ended():
            raise RemotelyError("a process of rank 0 ended before the command was started")
        has_failed = any(note.state == "failed" for note in notes.values())
        if has_failed or time.monotonic() > deadline:
            raise RemotelyError(
                missing(rank.size, notes, rendezvous.folder, patience_s, rank.launcher.by)
            )
        pause.wait(is_new=notes != before)


def _join(
    rendezvous: Rendezvous,
    network: Network,
    offer: OfferedResources,
    patience_s: float,
    keeper: Foreground,
    grace_s: float,
) -> None:
    """Look for rank 0 until it is found, and join it; leave a note with the reason on failure."""
    deadline = time.monotonic() + patience_s
    why, noted = "", 0.0
    seen = 0.0  # when the folder of rank 0 last existed
    pause = Pause()
    while True:
        if invitation := rendezvous.invitation():
            rendezvous.note("came", why)
            try:
                addresses = invitation.addresses
                where = answering(addresses) or addresses[0]
                _join_at(where, rendezvous, network, offer, keeper, grace_s)
                return
            except (MasterLost, NotAllowed) as error:  # an earlier run's, or not ready: retry
                why = str(error)
                time.sleep(RUN_AGAIN_S)
                seen = time.monotonic()
            except (RemotelyError, ValueError, OSError) as error:  # a retry would fail too
                rendezvous.note("failed", str(error))
                raise
        now = time.monotonic()
        if now > deadline:
            rendezvous.note("came", why)  # rank 0 reports it: it waits no longer than this rank
            raise RemotelyError(why or _nothing_in(rendezvous.folder, patience_s))
        if rendezvous.is_open():
            seen = now
        elif seen and now > seen + FOLDER_GONE_S:
            raise RemotelyError("rank 0 ended before this rank had joined it")
        if now > noted + JOB_NOTE_EVERY_S:
            rendezvous.note("came", why)
            noted = now
        pause.wait()


def _join_at(
    address: str,
    rendezvous: Rendezvous,
    network: Network,
    offer: OfferedResources,
    keeper: Foreground,
    grace_s: float,
) -> None:
    host, port = parse_address(address)
    key = key_files.load_member(rendezvous.folder / "worker.key", "worker")
    cluster.join(
        host,
        port,
        key,
        network,
        offer,
        end_without_master_s=FENCE_S,
        keeper=keeper,
        grace_s=grace_s,
        is_of_job=True,
    )


def _nothing_in(folder: Path, patience_s: float) -> str:
    return (
        f"rank 0 has written nothing to {folder} within {patience_s:.0f} s: it has not started, or "
        f"{folder.parent} is not on a disk shared by its machine and this one (name a folder that "
        "is: --rendezvous DIR)"
    )
