"""The rendezvous of the ranks of a job: a folder on a disk that all their machines share.

    DIR/JOB/               0700; created and removed by rank 0
        master.key         the keys of this job alone
        client.key
        worker.key
        viewer.key
        address.json       the process of rank 0, and its addresses once it has started
        rank-3.json        the state of rank 3, and why it has not joined

Each file is moved into place by a rename, so that no reader sees half of it.  So is the folder, so
that it always names its owner: only that process removes it when it ends.  If rank 0 of an earlier
run of the same job could not remove its folder, its address does not answer, or CURVE refuses the
keys; so the ranks read the folder again until they time out.
"""

import contextlib
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Literal

import msgspec

from remotely.errors import RemotelyError
from remotely.machine import folders, processes, this_machine
from remotely.ops.launchers import names_of
from remotely.protocol.address import parse_address
from remotely.transport import key_files
from remotely.transport.port_probe import PortProbe

RANK_ANSWER_S = 2.0  # for an address of rank 0 to answer
FOLDER_LOOK_S = 0.05
FOLDER_LOOK_MOST_S = 0.8  # a thousand ranks read this often from one disk


class JoinInvitation(msgspec.Struct, frozen=True, kw_only=True):
    """The process of rank 0 and its addresses."""

    addresses: list[str]  # "host:port", in the order to try them; empty until it has started
    machine: str
    pid: int
    started: float


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a rank, as it reports it."""

    rank: int
    machine: str
    state: Literal["came", "joined", "failed"]  # came: it retries; failed: it has given up
    why: str = ""  # why it has not joined


class Rendezvous:
    """The folder of one job, as one rank sees it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self._rank = rank
        self._invitation = folder / "address.json"
        self._unpublished = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        pid = os.getpid()
        self._me = JoinInvitation(
            addresses=[],
            machine=this_machine.machine_name(),
            pid=pid,
            started=processes.birth(pid) or 0.0,
        )

    # --- rank 0 -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise RemotelyError if a job of this name already runs, on this machine or another."""
        if (old := self._read()) is None:
            return
        is_here = old.machine == self._me.machine
        if is_here and not processes.is_alive(old.pid, old.started):
            return
        if not is_here and old.addresses and not answering(old.addresses):
            return
        raise self._name_taken(old)

    def open(self) -> None:
        """Create the folder and the keys, in place of those that an earlier run left."""
        remove(self.folder)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        key_files.make_keys(self._unpublished)
        self._write(self._unpublished / self._invitation.name, self._me)
        try:
            self._unpublished.rename(self.folder)
        except OSError:
            if (other := self._read()) is None:
                raise
            raise self._name_taken(other) from None

    def invite(self, addresses: list[str]) -> None:
        """Publish the addresses of this rank for the others."""
        self._write(self._invitation, msgspec.structs.replace(self._me, addresses=addresses))

    def close(self) -> None:
        """Remove the folder, unless another run owns it by now.

        It does not raise if the disk fails, so that the rest of the shutdown goes on.
        """
        shutil.rmtree(self._unpublished, ignore_errors=True)
        owner = self._read()
        if owner is None or msgspec.structs.replace(owner, addresses=[]) != self._me:
            return
        try:
            remove(self.folder)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _name_taken(self, owner: JoinInvitation) -> RemotelyError:
        return RemotelyError(
            f"a job of this name runs already: {self.folder} belongs to pid {owner.pid} on "
            f"{owner.machine}. Give one of them another name: --job. If that process has ended, "
            "remove the folder"
        )

    def notes(self, known: dict[int, Note] | None = None) -> dict[int, Note]:
        """Return what the other ranks have written, by rank.

        Of those that are known to have joined nothing is read again.
        """
        found = {rank: note for rank, note in (known or {}).items() if note.state == "joined"}
        read = {f"rank-{rank}.json" for rank in found}
        for file in self.folder.glob("rank-*.json"):
            if file.name in read:
                continue
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(file.read_bytes(), type=Note)
                found[note.rank] = note
        return found

    # --- other ranks ------------------------------------------------------------------------------

    def invitation(self) -> JoinInvitation | None:
        """Return the invitation of rank 0 once it has addresses."""
        found = self._read()
        return found if found and found.addresses else None

    def is_open(self) -> bool:
        """Return whether the folder exists: rank 0 of this run or an earlier one created it."""
        return self.folder.exists()

    def note(self, state: Literal["came", "joined", "failed"], why: str = "") -> None:
        """Report the state of this rank, if rank 0 has created the folder.

        The write also makes an NFS client of this machine reread the folder.
        """
        note = Note(rank=self._rank, machine=this_machine.machine_name(), state=state, why=why)
        with contextlib.suppress(OSError):
            self._write(self.folder / f"rank-{self._rank}.json", note)

    def _read(self) -> JoinInvitation | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._invitation.read_bytes(), type=JoinInvitation)
        return None

    def _write(self, file: Path, content: msgspec.Struct) -> None:
        temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        temporary.write_bytes(msgspec.json.encode(content))
        temporary.replace(file)


class Pause:
    """The pauses between looks at a folder, on a disk that all ranks share: each is twice as long
    as the last, until something is new."""

    def __init__(self) -> None:
        self._next_s = FOLDER_LOOK_S

    def wait(self, is_new: bool = False) -> None:
        """Sleep; `is_new`: the last look has shown something."""
        if is_new:
            self._next_s = FOLDER_LOOK_S
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, FOLDER_LOOK_MOST_S)


def jobs_folder(named: Path | None) -> Path:
    """Return the folder that holds the folders of jobs: the one named, or ~/.remotely/jobs.

    Raises RemotelyError if the parent of the one named does not exist: the path may be mistyped, or
    its disk not mounted here.
    """
    if named is None:
        return (folders.home() / "jobs").absolute()
    place = named.expanduser().absolute()
    if not place.parent.is_dir():
        raise RemotelyError(
            f"--rendezvous {named}: there is no folder {place.parent} on this machine. Name a "
            "folder on a disk that all machines share; only the last part of its path is created"
        )
    return place


def remove(folder: Path) -> None:
    """Remove the folder of a job, even while other ranks write into it."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def answering(addresses: list[str]) -> str | None:
    """Return the first of these addresses to accept a connection, or None after RANK_ANSWER_S."""
    deadline = time.monotonic() + RANK_ANSWER_S
    probes = {address: PortProbe(*parse_address(address)) for address in addresses}
    while True:
        for address, probe in probes.items():
            if probe.answers():
                return address
        if time.monotonic() > deadline:
            return None
        time.sleep(FOLDER_LOOK_S)


def missing(size: int, notes: dict[int, Note], folder: Path, timeout_s: float, by: str) -> str:
    """Describe the ranks that have not joined, with the reasons that rank 0 can know.

    If some ranks have failed, `timeout_s` is not over yet for the others.
    """
    absent = [rank for rank in range(1, size) if rank not in notes]
    waiting = [note for rank, note in sorted(notes.items()) if note.state != "joined"]
    if failed := [note.rank for note in waiting if note.state == "failed"]:
        parts = [f"{names_of(failed)} of {size} could not join"]
    else:
        late = sorted(absent + [note.rank for note in waiting])
        parts = [f"{names_of(late)} of {size} did not join within {timeout_s:.0f} s"]
    if absent and failed:
        parts.append(f"{names_of(absent)} left no note so far")
    elif absent:
        parts.append(
            f"{names_of(absent)} left no note: {by} has not started them, or "
            f"{folder.parent} is not on a disk that their machines share (name a folder that is: "
            "--rendezvous DIR)"
        )
    parts += [
        f"rank {note.rank} is on {note.machine}" + (f", but {note.why}" if note.why else "")
        for note in waiting
    ]
    return "; ".join(parts)
