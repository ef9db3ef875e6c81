"""The clusters that scripts run for themselves, as the commands of the same user find them.

Such a cluster has no port and no pid file.  Its script writes a record into the cluster's folder,
which is removed with the cluster, and starts nothing for whoever may look later:

    TMPDIR/remotely-ID/            0700, the cluster's own
        script.json                0600: the script, and the keys of a client and of a viewer
        master                     the master's socket

The kernel lists the sockets that are listened at, and drops them with their processes.  So a record
is found whatever TMPDIR its script had, and not if all processes of the cluster were killed.  Where
the kernel has no such list, records are searched in the temporary folder of this process.

A record counts if this user alone can read it, and if the script runs with the REMOTELY_HOME of
this process, which separates clusters.  Its pid is checked with its start time, as pids are reused.
"""

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from remotely.errors import NotAllowed
from remotely.machine import folders, processes, this_machine
from remotely.protocol.numbers import Pid
from remotely.transport import key_files
from remotely.transport.keys import MemberKey

RECORD = "script.json"
PREFIX = "remotely-"  # of the folder
_SOCKETS = Path("/proc/net/unix")
_SOCKET = re.compile(rf" (/\S.*/{PREFIX}[0-9a-f]+)/master$", re.MULTILINE)
_ENDED = "{} has ended, and its cluster with it"


class ScriptCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of one script."""

    pid: Pid
    started: float
    script: str
    home: str  # its REMOTELY_HOME
    address: str
    client: dict[str, Any]  # keys
    viewer: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.script} (pid {self.pid})"

    @property
    def ended(self) -> str:
        """Return what to say when the script has ended."""
        return _ENDED.format(self)

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.started)

    @property
    def client_key(self) -> MemberKey:
        return MemberKey.from_dict(self.client)

    @property
    def viewer_key(self) -> MemberKey:
        return MemberKey.from_dict(self.viewer)


def write(folder: Path, address: str, client: MemberKey, viewer: MemberKey) -> None:
    """Record the cluster of this process in its folder."""
    record = ScriptCluster(
        pid=os.getpid(),
        started=processes.birth(os.getpid()) or 0.0,
        script=this_machine.script_name(),
        home=os.environ.get("REMOTELY_HOME", ""),
        address=address,
        client=client.to_dict(),
        viewer=viewer.to_dict(),
    )
    fd = os.open(folder / RECORD, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(msgspec.json.encode(record))


def running() -> list[ScriptCluster]:
    """Return the clusters of this user's scripts, by pid."""
    found = []
    for folder in _folders():
        try:
            content = key_files.read_private(folder / RECORD, "client")
            record = msgspec.json.decode(content, type=ScriptCluster)
        except (NotAllowed, msgspec.DecodeError):  # of another user, of none, or being removed
            continue
        if record.home == os.environ.get("REMOTELY_HOME", "") and record.alive:
            found.append(record)
    return sorted(found, key=lambda record: record.pid)


def _folders() -> list[Path]:
    try:
        sockets = _SOCKETS.read_text(errors="surrogateescape")
    except OSError:  # not Linux
        return [*folders.temporary().glob(f"{PREFIX}*")]
    return [Path(name) for name in {*_SOCKET.findall(sockets)}]
