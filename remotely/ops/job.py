"""One cluster for the length of one job: `remotely run`, the same line on every machine.

    rank 0        makes the folder of the job (rendezvous.py), starts the master and a worker, waits
                  for the others, runs the command (guarded_command.py), and ends the cluster
    the others    look for rank 0 in that folder, join it, and end with it

Whoever is killed takes along what is its own: its daemons and its command hold the end of a pipe
from it.  If rank 0 is lost with its machine, the others leave after FENCE_S: they have lost their
actors by then.
"""

import signal
import time
from pathlib import Path

from remotely.errors import MasterLost, NotAllowed, RemotelyError
from remotely.machine import interfaces
from remotely.machine.gpus import Offer
from remotely.ops import cluster
from remotely.ops.cluster import Network
from remotely.ops.foreground import Foreground, exiting_on_signals, is_ignored
from remotely.ops.guarded_command import GuardedCommand
from remotely.ops.launchers import Rank
from remotely.ops.rendezvous import LOOK_EVERY_S, Rendezvous, answering, missing
from remotely.protocol.address import join_address, parse_address
from remotely.protocol.lease import FENCE_S
from remotely.transport import key_files

NOTE_EVERY_S = 2.0
RETRY_S = 0.5
GONE_S = 3.0  # a rank 0 that is started again removes its folder for a moment
PORTS_TRIED = 5  # another job may take one before our master does


def lead(
    rank: Rank, folder: Path, network: Network, offer: Offer, patience_s: float, words: list[str]
) -> int:
    """Be rank 0; return the exit code of the command.

    Raises RemotelyError if other ranks cannot join, or do not come, and names them.
    """
    meeting, keeper = Rendezvous(folder, 0), Foreground()
    command: GuardedCommand | None = None
    with exiting_on_signals():
        try:
            meeting.check()
            command = GuardedCommand(meeting.close)  # whatever happens now, the folder goes
            meeting.open()
            port, near = _start(network, offer, keeper, folder)
            meeting.invite(_addresses(network, port))
            _await_ranks(meeting, keeper, command, rank, patience_s)
            _outlive_ctrl_c()
            key = str(folder / "client.key")
            command.start(words, {"REMOTELY_ADDRESS": near, "REMOTELY_KEY": key})
            keeper.wait(command.pidfd)
            broken = keeper.any_ended()
            code = command.end()
        finally:
            if command is not None:
                command.end()
                meeting.close()  # if the guard was killed
            keeper.close()
    if broken:
        raise RemotelyError("the master or the worker of rank 0 ended before the command did")
    return code


def follow(rank: Rank, folder: Path, network: Network, offer: Offer, patience_s: float) -> None:
    """Be another rank: join rank 0, and return when the cluster has ended.

    Raises RemotelyError if rank 0 cannot be found, and says what was seen of it.
    """
    meeting, keeper = Rendezvous(folder, rank.rank), Foreground()
    with exiting_on_signals():
        try:
            _join(meeting, network, offer, patience_s, keeper)
            meeting.note("joined")
            _outlive_ctrl_c()
            keeper.wait()
        finally:
            ended_well = keeper.close()
    if not ended_well:
        raise RemotelyError(f"the worker of rank {rank.rank} has not ended in good order")


def _outlive_ctrl_c() -> None:
    """Go on after Ctrl-C: it reaches the command by itself, and all ranks end when that does."""
    if not is_ignored(signal.SIGINT):
        signal.signal(signal.SIGINT, lambda *_: None)


def _start(network: Network, offer: Offer, keeper: Foreground, folder: Path) -> tuple[int, str]:
    """Start the cluster at a port that is free; return that, and its address for this machine."""
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
    """Return where the others may find rank 0, the likeliest first."""
    hosts = list(network.announced) or [network.host or "127.0.0.1"]
    if hosts[0] in interfaces.EVERYWHERE:
        hosts = list(dict.fromkeys([interfaces.own_address(), *interfaces.addresses_here()]))
    return [join_address(host, port) for host in hosts]


def _await_ranks(
    meeting: Rendezvous,
    keeper: Foreground,
    command: GuardedCommand,
    rank: Rank,
    patience_s: float,
) -> None:
    deadline = time.monotonic() + patience_s
    wanted = set(range(1, rank.size))
    while True:
        notes = meeting.notes()
        if wanted <= {note.rank for note in notes.values() if note.state == "joined"}:
            return
        if keeper.any_ended() or command.has_ended():
            raise RemotelyError("a process of rank 0 was ended before the command began")
        has_failed = any(note.state == "failed" for note in notes.values())
        if has_failed or time.monotonic() > deadline:
            raise RemotelyError(
                missing(rank.size, notes, meeting.folder, patience_s, rank.launcher.by)
            )
        time.sleep(LOOK_EVERY_S)


def _join(
    meeting: Rendezvous, network: Network, offer: Offer, patience_s: float, keeper: Foreground
) -> None:
    """Look for rank 0 until it is found, and join it; note why if that cannot be."""
    deadline = time.monotonic() + patience_s
    why, noted = "", 0.0
    seen = 0.0  # when rank 0 had made its folder, at the last look
    while True:
        if invitation := meeting.invitation():
            meeting.note("came", why)
            try:
                addresses = invitation.addresses
                _join_at(answering(addresses) or addresses[0], meeting, network, offer, keeper)
                return
            except (MasterLost, NotAllowed) as error:  # of an earlier run, it may be; or not yet
                why = str(error)
                time.sleep(RETRY_S)
                seen = time.monotonic()
            except (RemotelyError, ValueError, OSError) as error:  # this rank's own: it would last
                meeting.note("failed", str(error))
                raise
        now = time.monotonic()
        if now > deadline:
            meeting.note("came", why)  # rank 0 waits no longer than this, and names all then
            raise RemotelyError(why or _nothing_in(meeting.folder, patience_s))
        if meeting.is_open():
            seen = now
        elif seen and now > seen + GONE_S:
            raise RemotelyError("rank 0 ended before this rank had joined it")
        if now > noted + NOTE_EVERY_S:
            meeting.note("came", why)
            noted = now
        time.sleep(LOOK_EVERY_S)


def _join_at(
    address: str, meeting: Rendezvous, network: Network, offer: Offer, keeper: Foreground
) -> None:
    host, port = parse_address(address)
    key = key_files.load_member(meeting.folder / "worker.key", "worker")
    cluster.join(host, port, key, network, offer, end_without_master_s=FENCE_S, keeper=keeper)


def _nothing_in(folder: Path, patience_s: float) -> str:
    return (
        f"rank 0 has written nothing to {folder} within {patience_s:.0f} s: it has not started, or "
        f"{folder.parent} is not on a disk that its machine shares with this one (name one that "
        "is: --rendezvous DIR)"
    )
