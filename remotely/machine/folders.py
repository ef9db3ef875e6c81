"""The folders in which remotely keeps its files on this machine."""

import os
import tempfile
from pathlib import Path

from remotely.errors import RemotelyError

# The path of a socket has at most 107 bytes (man 7 unix).  In the temporary folder remotely needs
# 44: a folder of its own, `s`, the actor, a number.
LONGEST_BYTES = 107 - 44
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")  # Slurm's TMPDIR is often longer


def home() -> Path:
    """Return `~/.remotely`, or REMOTELY_HOME if that is set."""
    return Path(os.environ.get("REMOTELY_HOME") or "~/.remotely").expanduser()


def key_folder() -> Path:
    """Return the default folder of keys."""
    return home() / "keys"


def temporary() -> Path:
    """Return the folder for folders of sockets: TMPDIR, or one of ELSEWHERE if that is too long."""
    for place in (tempfile.gettempdir(), *ELSEWHERE):
        if len(os.fsencode(place)) <= LONGEST_BYTES and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise RemotelyError(
        f"TMPDIR is {tempfile.gettempdir()}, where the path of a socket would be too long, and "
        f"none of {', '.join(ELSEWHERE)} is writable. Set TMPDIR to a folder whose path has at "
        f"most {LONGEST_BYTES} bytes"
    )


def new_temporary(prefix: str) -> Path:
    """Create a folder for sockets, with mode 0700."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary()))
