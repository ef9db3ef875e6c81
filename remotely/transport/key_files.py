"""Key files: created once, written atomically, and read only if no other user can read them.

`remotely start` creates all four, once.  `remotely keys` creates more for other people or machines,
and revokes them.

A secret is written to a file that no other user can ever read, whatever the umask.  A file that
others can read is refused, as ssh does, because its secret is no longer one.  pyzmq's own
`create_certificates` does neither.
"""

import contextlib
import dataclasses
import errno
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from remotely.errors import NotAllowed
from remotely.machine import file_lock, folders
from remotely.transport.keys import ROLES, MasterKey, MemberKey, Role, fresh_pair

_MAX_FILE_BYTES = 1 << 20
_ENDED = "ended"  # the folder beside the keys
# Windows has no such flags; a client there relies on its user's folder.
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a named pipe would wait for its writer


def make_keys(folder: Path) -> None:
    """Create master.key and a key for each role, if missing.

    Only a key that this master does not admit any more is overwritten: it was revoked.
    Of several processes that start at once, one creates the keys and the others find them.  The
    master's list is written before the member's file: a crash in between leaves an admitted key
    without a secret, and the next start creates another.
    """
    for ours in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            ours.mkdir(mode=0o700, parents=True)
            ours.chmod(0o700)  # a umask may have taken our own rights away
    _check_folder(folder)
    with file_lock.locked(folder / ".lock"):
        master_file = folder / "master.key"
        if not master_file.exists():
            for role in ROLES:
                _refuse_to_replace(folder / f"{role}.key")
            _write(master_file, MasterKey(fresh_pair()).to_dict())
            _note(folder, "new")
        master = load_master(master_file)
        for role in ROLES:
            file = folder / f"{role}.key"
            if file.exists():
                member = load_member(file, role)
                if member.master_public != master.pair.public:
                    _refuse_to_replace(file)
                if member.pair.public in master.keys_of(role):
                    continue
            pair = fresh_pair()
            master = master.listing(role, (*master.keys_of(role), pair.public))
            _write(master_file, master.to_dict())
            _write(file, MemberKey(role, pair, master.pair.public).to_dict())


# --- whether a master has left workers ------------------------------------------------------------
#
#     keys/ended/new    no master has used these keys yet
#     keys/ended/PORT   the last one at this port was stopped, and all of its workers had left
#
# A master that finds neither may have had a predecessor, whose actors live on elsewhere: it learns
# of them first.  This is a fact of the cluster, so it is kept with what makes the cluster: keys may
# be copied to another disk or host, as into a container.  It lies in a folder of its own, so that a
# Secret that is made of the files of `keys/` has none of it.


def note_ended(master_file: Path, port: int) -> None:
    """Record that the master at this port has ended, and left no worker."""
    _note(master_file.parent, str(port))


def take_ended(folder: Path, port: int) -> bool:
    """Return whether no earlier master with these keys can have left workers; forget that: one
    starts now."""
    taken = False
    for name in ("new", str(port)):
        with contextlib.suppress(OSError):  # it is not there, or nothing can be changed here
            (folder / _ENDED / name).unlink()
            taken = True
    return taken


def _note(folder: Path, name: str) -> None:
    with contextlib.suppress(OSError):  # else the next master learns for nothing
        (folder / _ENDED).mkdir(mode=0o700, exist_ok=True)
        (folder / _ENDED / name).touch(mode=0o600)


def add_key(folder: Path, role: Role, file: Path) -> MemberKey:
    """Create another key that the master of this folder admits, and write it to `file`.

    Raises NotAllowed if that file exists, or if there is no master.key here.
    """
    load_master(folder / "master.key")  # its error says what to do
    with file_lock.locked(folder / ".lock"):
        master = load_master(folder / "master.key")
        if file.exists():
            raise NotAllowed(f"{file} exists and is not overwritten; name another file")
        member = MemberKey(role, fresh_pair(), master.pair.public)
        listed = master.listing(role, (*master.keys_of(role), member.pair.public))
        _write(folder / "master.key", listed.to_dict())
        _write(file, member.to_dict())
    return member


def revoke_key(folder: Path, public: bytes) -> Role:
    """Remove a key from the master's list; return its role.

    A running master notices within a second.  Raises NotAllowed if the key is not listed.
    """
    load_master(folder / "master.key")  # its error says what to do
    with file_lock.locked(folder / ".lock"):
        master = load_master(folder / "master.key")
        role = master.role_of(public)
        if role is None:
            raise NotAllowed(
                f"{public.decode()} is neither a key that the master of {folder} admits nor a key "
                "file; `remotely keys list` shows those that are"
            )
        left = tuple(key for key in master.keys_of(role) if key != public)
        _write(folder / "master.key", master.listing(role, left).to_dict())
    return role


def load_master(path: Path) -> MasterKey:
    """Read master.key.  Raises NotAllowed, with advice, if it is missing or not safe to use."""
    return master_of(read_master(path), path)


def read_master(path: Path) -> bytes:
    """Return the content of master.key.  Raises NotAllowed like `load_master`."""
    return read_private(path, "master")


def master_of(content: bytes, path: Path) -> MasterKey:
    """Parse the content of master.key.  Raises NotAllowed like `load_master`."""
    with _parsing(path):
        values = msgspec.json.decode(content, type=dict[str, Any])
    if values.get("role") != "master":
        raise NotAllowed(f"{path} is a {values.get('role')}'s key; the master needs master.key")
    with _parsing(path):
        return MasterKey.from_dict(values)


def load_member(path: Path, role: Role | None = None) -> MemberKey:
    """Read a member's key.  Raises NotAllowed, also if it is not a key of `role`."""
    member = _parse_member(read_private(path, role or "client"), str(path), role)
    return dataclasses.replace(member, file=str(path))


def member_of(content: bytes, source: str, role: Role) -> MemberKey:
    """Parse the content of a member's key file, from `source`; like `load_member`."""
    if not content.strip():
        raise NotAllowed(f"{source} has no key; send {role}.key there")
    return _parse_member(content, source, role)


def _parse_member(content: bytes, source: str, role: Role | None) -> MemberKey:
    with _parsing(source):
        values = msgspec.json.decode(content, type=dict[str, Any])
    if values.get("role") == "master":
        needed = f"{role or 'client'}.key, which lies beside it"
        raise NotAllowed(f"{source} is the master's own key and stays on its machine; use {needed}")
    with _parsing(source):
        member = MemberKey.from_dict(values)
    if role is not None and member.role != role:
        raise NotAllowed(
            f"{source} is a {member.role}'s key; a {role} needs {role}.key from the master's "
            "machine"
        )
    return member


# --- reading and writing --------------------------------------------------------------------------


@contextlib.contextmanager
def _parsing(path: Path | str) -> Iterator[None]:
    """Raise NotAllowed for a damaged file, without the cause, which could show a secret."""
    try:
        yield
    except Exception:  # of msgspec, Z85 or libzmq: none of them helps the user
        pass
    else:
        return
    raise NotAllowed(f"{path} is damaged; copy it from the master's machine again")


def _write(path: Path, values: dict[str, Any]) -> None:
    """Write a file atomically; it has mode 0600 before it holds a byte."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600)
        with open(fd, "wb") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(fd, 0o600)  # a umask of 0777 takes away even our own rights
            file.write(msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n")
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _missing(path: Path, role: str) -> str:
    """Return the error for a missing file: what named it, and where to get it."""
    which = f"there is no key file {path}"
    if os.environ.get("REMOTELY_KEY") == str(path):
        which = f"REMOTELY_KEY names {path}, and there is no such file"
    elif path.parent == folders.key_folder() and (home := os.environ.get("REMOTELY_HOME")):
        which += f" (REMOTELY_HOME is {home})"
    if role == "master":
        return f"{which}; `remotely start` makes it, on the master's machine"
    return f"{which}; copy {role}.key from the master's machine, where {WHERE_KEYS_ARE}"


WHERE_KEYS_ARE = (
    "`remotely start` makes the keys of a cluster, in ~/.remotely/keys, or in REMOTELY_HOME/keys "
    "if that is set there"
)


def read_private(path: Path, role: str) -> bytes:
    """Return the content of a file that only this user can read.  Raises NotAllowed, with advice
    for the holder of a key of this role, if it is missing or others can."""
    try:
        fd = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_WAIT)
    except FileNotFoundError:
        raise NotAllowed(_missing(path, role)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAllowed(
                f"the key file {path} is a symbolic link; put the file itself there: "
                f"`cp --remove-destination {_quoted(Path(os.path.realpath(path)))} {_quoted(path)}`"
            ) from None
        raise NotAllowed(f"cannot read the key file {path}: {error.strerror}") from None
    try:
        _check_file(path, os.fstat(fd))
        return os.read(fd, _MAX_FILE_BYTES)
    finally:
        os.close(fd)


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotAllowed(f"{path} is not a file; name a key file such as client.key")
    if os.name != "posix":
        return
    if status.st_uid != os.geteuid():
        raise NotAllowed(
            f"the key file {path} belongs to another user, who could replace it; make a copy of "
            f"your own, or: `sudo chown {os.geteuid()} {_quoted(path)}`"
        )
    if status.st_mode & 0o077:
        raise NotAllowed(
            f"the key file {path} may be read or written by other users; close it with "
            f"`chmod 600 {_quoted(path)}`, and if others use this machine make new keys"
        )


def _check_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise NotAllowed(
            f"the key folder {folder} belongs to another user; set REMOTELY_HOME to one of yours, "
            f"or: `sudo chown {os.geteuid()} {_quoted(folder)}`"
        )
    if status.st_mode & 0o022:
        raise NotAllowed(
            f"other users may write to the key folder {folder}; close it with "
            f"`chmod 700 {_quoted(folder)}`"
        )


def _refuse_to_replace(file: Path) -> None:
    if file.exists():
        raise NotAllowed(
            f"{file} is the key to another master and is not overwritten; move it away "
            f"(`mv {_quoted(file)} ELSEWHERE`), or set REMOTELY_HOME to a folder for this cluster"
        )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
