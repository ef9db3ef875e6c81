"""The rendezvous of the ranks of a job: a folder that all their machines see.

    DIR/JOB/               0700; made and removed by rank 0
        master.key         the keys of this job alone
        client.key
        worker.key
        viewer.key
        address.json       who rank 0 is, and soon where
        rank-3.json        rank 3 is there, or has joined, or why it has not

Each file is put in place by a rename, so that nobody reads half of it; so is the folder, so that it
always says whose it is: only that process removes it when it ends.  A folder of an earlier run of
the same job, which its rank 0 could not remove, leads nowhere: nobody answers there, or CURVE
refuses; so the ranks look at the folder again until their patience ends.
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

ANSWER_S = 2.0  # for an address of rank 0 to answer
LOOK_EVERY_S = 0.05


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of rank 0, and its process."""

    addresses: list[str]  # "host:port", the first to be tried first; none before it has started
    machine: str
    pid: int
    started: float


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a rank, as it says itself."""

    rank: int
    machine: str
    state: Literal["came", "joined", "failed"]  # failed: waiting would not help
    why: str = ""  # it has not joined


class Rendezvous:
    """The folder of one job, as one rank sees it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self._rank = rank
        self._invitation = folder / "address.json"
        self._in_the_making = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        pid = os.getpid()
        self._me = Invitation(
            addresses=[],
            machine=this_machine.machine_name(),
            pid=pid,
            started=processes.birth(pid) or 0.0,
        )

    # --- rank 0 -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise RemotelyError if such a job runs already, on this machine or another."""
        if (old := self._read()) is None:
            return
        is_here = old.machine == self._me.machine
        if is_here and not processes.is_alive(old.pid, old.started):
            return
        if not is_here and old.addresses and not answering(old.addresses):
            return
        raise self._taken(old)

    def open(self) -> None:
        """Make the folder and the keys, in place of what an earlier run has left."""
        remove(self.folder)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        key_files.make_keys(self._in_the_making)
        self._write(self._in_the_making / self._invitation.name, self._me)
        try:
            self._in_the_making.rename(self.folder)
        except OSError:
            if (other := self._read()) is None:
                raise
            raise self._taken(other) from None

    def invite(self, addresses: list[str]) -> None:
        """Tell the other ranks where this one is."""
        self._write(self._invitation, msgspec.structs.replace(self._me, addresses=addresses))

    def close(self) -> None:
        """Remove the folder, unless it is another run's by now.

        It never raises: what else there is to end has to end, though the disk does not answer.
        """
        shutil.rmtree(self._in_the_making, ignore_errors=True)
        owner = self._read()
        if owner is None or msgspec.structs.replace(owner, addresses=[]) != self._me:
            return
        try:
            remove(self.folder)
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _taken(self, by: Invitation) -> RemotelyError:
        return RemotelyError(
            f"a job of this name runs already: {self.folder} is that of pid {by.pid} on "
            f"{by.machine}. Give one of them another name: --job. If that process has ended, "
            "remove the folder"
        )

    def notes(self) -> dict[int, Note]:
        """Return what the other ranks have written, by rank."""
        found = {}
        for file in self.folder.glob("rank-*.json"):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode(file.read_bytes(), type=Note)
                found[note.rank] = note
        return found

    # --- the others -------------------------------------------------------------------------------

    def invitation(self) -> Invitation | None:
        """Return where rank 0 is, if it has said so."""
        found = self._read()
        return found if found and found.addresses else None

    def is_open(self) -> bool:
        """Return whether rank 0, of this run or an earlier one, has made the folder."""
        return self.folder.exists()

    def note(self, state: Literal["came", "joined", "failed"], why: str = "") -> None:
        """Say how far this rank is, if rank 0 has made the folder.

        It also makes a client of NFS look into the folder afresh: a change of its own does.
        """
        note = Note(rank=self._rank, machine=this_machine.machine_name(), state=state, why=why)
        with contextlib.suppress(OSError):
            self._write(self.folder / f"rank-{self._rank}.json", note)

    def _read(self) -> Invitation | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self._invitation.read_bytes(), type=Invitation)
        return None

    def _write(self, file: Path, content: msgspec.Struct) -> None:
        temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        temporary.write_bytes(msgspec.json.encode(content))
        temporary.replace(file)


def meeting_place(named: Path | None) -> Path:
    """Return the folder that holds those of the jobs: the one named, or ~/.remotely/jobs.

    Raises RemotelyError if it is named and its parent is not there: it may be mistyped, or its disk
    is not mounted here.
    """
    if named is None:
        return (folders.home() / "jobs").absolute()
    place = named.expanduser().absolute()
    if not place.parent.is_dir():
        raise RemotelyError(
            f"--rendezvous {named}: there is no folder {place.parent} on this machine. Name a "
            "folder on a disk that all machines share; only the last part of its path is made"
        )
    return place


def remove(folder: Path) -> None:
    """Remove the folder of a job, although other ranks may be writing into it."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def answering(addresses: list[str]) -> str | None:
    """Return the first of these addresses at which anything listens, if one answers in time."""
    deadline = time.monotonic() + ANSWER_S
    probes = {address: PortProbe(*parse_address(address)) for address in addresses}
    while True:
        for address, probe in probes.items():
            if probe.answers():
                return address
        if time.monotonic() > deadline:
            return None
        time.sleep(LOOK_EVERY_S)


def missing(size: int, notes: dict[int, Note], folder: Path, within_s: float, by: str) -> str:
    """Return which ranks have not joined, and why, as far as rank 0 can know.

    If some have failed, the others had less time than `within_s`.
    """
    absent = [rank for rank in range(1, size) if rank not in notes]
    stuck = [note for rank, note in sorted(notes.items()) if note.state != "joined"]
    if failed := [note.rank for note in stuck if note.state == "failed"]:
        told = [f"{names_of(failed)} of {size} could not join"]
    else:
        late = sorted(absent + [note.rank for note in stuck])
        told = [f"{names_of(late)} of {size} did not come within {within_s:.0f} s"]
    if absent and failed:
        told.append(f"nothing was heard of {names_of(absent)} so far")
    elif absent:
        told.append(
            f"nothing was heard of {names_of(absent)}: {by} has not started them, or "
            f"{folder.parent} is not on a disk that their machines share (name one that is: "
            "--rendezvous DIR)"
        )
    told += [
        f"rank {note.rank} is on {note.machine}" + (f", but {note.why}" if note.why else "")
        for note in stuck
    ]
    return "; ".join(told)
