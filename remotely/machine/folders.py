"""The folders in which remotely keeps its files on this machine."""

import contextlib
import logging
import os
import stat
import tempfile
from functools import cache
from pathlib import Path

from remotely.errors import RemotelyError

log = logging.getLogger("remotely")

# The path of a socket has at most 107 bytes (man 7 unix).  In the temporary folder remotely needs
# 44: a folder of its own, `s`, the actor, a number.
LONGEST_BYTES = 107 - 44
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")  # Slurm's TMPDIR is often longer


def home() -> Path:
    """Return `~/.remotely`, or REMOTELY_HOME if that is set.

    A user without a home, such as the random one of a container, gets a folder for temporary files.
    """
    try:
        return Path(os.environ.get("REMOTELY_HOME") or "~/.remotely").expanduser()
    except RuntimeError:  # neither HOME nor an entry in the list of users
        return _without_home()


@cache
def _without_home() -> Path:
    folder = temporary() / f"remotely-home-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RemotelyError(
            f"this user has no home, and {folder} is not a folder of its own alone. Set "
            "REMOTELY_HOME to one"
        )
    log.warning("this user has no home: keys are kept in %s; REMOTELY_HOME names another", folder)
    return folder


def key_folder() -> Path:
    """Return the default folder of keys."""
    return home() / "keys"


def temporary() -> Path:
    """Return the folder for folders of sockets: TMPDIR, or one of ELSEWHERE if that is too long, or
    cannot be written to."""
    try:
        named = tempfile.gettempdir()
    except FileNotFoundError:  # all that Python knows are read-only
        named = os.environ.get("TMPDIR") or ELSEWHERE[0]
    for place in (named, *ELSEWHERE):
        if len(os.fsencode(place)) <= LONGEST_BYTES and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise RemotelyError(
        f"TMPDIR is {named}, which is read-only or where the path of a socket would be too long, "
        f"and none of {', '.join(ELSEWHERE)} is writable. Set TMPDIR to a folder whose path has at "
        f"most {LONGEST_BYTES} bytes"
    )


def new_temporary(prefix: str) -> Path:
    """Create a folder for sockets, with mode 0700."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary()))
