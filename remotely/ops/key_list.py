"""Changes of the list of keys, and whether they are in force.

The list is a file, master.key.  Each master of its cluster watches it (key_watch.py), so a change
is in force within a second.  But who revokes a key has to know that it is.  So the command asks
every master that uses this list, with the list's own key, which nobody can revoke: until the master
has read the change, and each machine has confirmed that its actors refuse the key.

The pid files of this home name those masters, also on other machines that share the home.  If one
cannot be asked, a revocation fails: that master may read a copy of the list.  So it does if they
name none: one may have been started from another home.
"""

import time
from pathlib import Path
from typing import NamedTuple

from remotely.client.viewer import Viewer
from remotely.errors import MasterLost, RemotelyError
from remotely.machine import folders, interfaces, pid_file
from remotely.machine.pid_file import Running
from remotely.protocol.address import join_address, parse_address
from remotely.protocol.lease import LEASE_S
from remotely.transport import key_files
from remotely.transport.keys import MasterKey, Role
from remotely.transport.listening import reach

ASK_KEY_EVERY_S = 0.02
CONFIRM_S = 10.0  # a machine that is busy answers within this; a lost one has no lease much later


NO_MASTER = (
    "no master that uses this list is known here, so none was asked. If one runs, name its address "
    "by --master; the next to start goes by the list"
)


class MasterToAsk(NamedTuple):
    """A master to ask: where it is, and what to say if it does not answer."""

    address: str
    if_silent: str


class Unconfirmed(RemotelyError):
    """The list was changed, but not everybody has said that the change is in force."""


def add(role: Role, file: Path, address: str | None = None) -> tuple[bytes, list[str]]:
    """Create a key and write it to `file`; return its public half, and the addresses of the masters
    that admit it.  Raises Unconfirmed if one does not say so; the key is listed even then."""
    folder = folders.key_folder()
    public = key_files.add_key(folder, role, file).pair.public
    try:
        return public, _confirm(folder, public, role, address)
    except Unconfirmed as error:
        raise Unconfirmed(f"{file} is the key of a {role}, but {error}") from None


def revoke(key: str, address: str | None = None) -> tuple[bytes, list[str]]:
    """Remove a key, a file or a public half, from the list; return its public half, and the
    addresses of the masters by which the key is refused everywhere.

    Raises Unconfirmed if one does not say so; the key is not listed even then.  Of a file whose key
    is not listed any more, only ask.
    """
    folder, public, is_revoked = folders.key_folder(), key.encode(), False
    if Path(key).exists():
        member = key_files.load_member(Path(key))
        public, master = member.pair.public, key_files.load_master(folder / "master.key")
        is_ours = member.master_public == master.pair.public
        is_revoked = is_ours and master.role_of(public) is None
    if not is_revoked:
        key_files.revoke_key(folder, public)
    try:
        return public, _confirm(folder, public, "", address)
    except Unconfirmed as error:
        raise Unconfirmed(f"{public.decode()} is not on the list any more, but {error}") from None


def _confirm(folder: Path, public: bytes, role: str, address: str | None) -> list[str]:
    """Return the addresses of the masters that confirm the role of a key."""
    keys = key_files.load_master(folder / "master.key")
    masters = [MasterToAsk(address, "")] if address else _recorded(keys)
    problems = []
    for master in masters:
        try:
            _ask(master.address, keys, public, role)
        except RemotelyError as error:
            problems.append(f"{error}{master.if_silent if isinstance(error, MasterLost) else ''}")
    if problems:
        raise Unconfirmed("; ".join(problems))
    if not masters and not role:
        raise Unconfirmed(NO_MASTER)
    return [master.address for master in masters]


def _recorded(keys: MasterKey) -> list[MasterToAsk]:
    """Return the masters that the pid files of this home name."""
    found = []
    for file, daemon, is_ours in pid_file.masters(keys.pair.public.decode()):
        where = daemon.address if is_ours else _from_elsewhere(daemon)
        found.append(
            MasterToAsk(
                where,
                ""
                if is_ours
                else f". It was started on {daemon.machine or 'another machine'}: run the command "
                f"there, or name its address by --master; if it has ended, remove {file}",
            )
        )
    return found


def _from_elsewhere(daemon: Running) -> str:
    """Return the address at which other machines may reach a master."""
    host, port = parse_address(daemon.listens)
    return (
        join_address(daemon.machine or host, port)
        if host in interfaces.EVERYWHERE
        else daemon.listens
    )


def _ask(address: str, keys: MasterKey, public: bytes, role: str) -> None:
    """Return when this master, and each of its machines, goes by the list."""
    host, port = parse_address(address)
    viewer = Viewer(f"tcp://{reach(host, port, or_else='')}", keys.operator)
    try:
        deadline = time.monotonic() + CONFIRM_S
        while True:
            state = viewer.ask_key(public).result(CONFIRM_S)
            if state.role == role and (role or not state.unheard):
                return
            if time.monotonic() > deadline:
                break
            time.sleep(ASK_KEY_EVERY_S)
    finally:
        viewer.close()
    if state.role != role:
        raise Unconfirmed(
            f"the master at {address} does not go by this list: it may read a copy of master.key"
        )
    raise Unconfirmed(
        f"at {address} some have not confirmed within {CONFIRM_S:g} s that they refuse the key: "
        f"{', '.join(state.unheard)}. They are told again when they are back; actors of a machine "
        f"that stays away end with its lease, after {LEASE_S:g} s"
    )
