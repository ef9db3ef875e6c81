"""The folders in which remotely keeps its files on this machine."""

import os
import tempfile
from pathlib import Path

from remotely.errors import RemotelyError

# A socket's path has 107 bytes at most (man 7 unix), of which ours use 44: a folder in the
# temporary one, `s`, the actor, a number.
LONGEST_BYTES = 107 - 44
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")  # Slurm's TMPDIR is often longer


def home() -> Path:
    """Return `~/.remotely`, or REMOTELY_HOME if that is set."""
    return Path(os.environ.get("REMOTELY_HOME") or "~/.remotely").expanduser()


def key_folder() -> Path:
    """Return the folder in which keys are made and looked for."""
    return home() / "keys"


def temporary() -> Path:
    """Return where to make folders for sockets: TMPDIR, or if that is too long, elsewhere."""
    for place in (tempfile.gettempdir(), *ELSEWHERE):
        if len(os.fsencode(place)) <= LONGEST_BYTES and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    raise RemotelyError(
        f"TMPDIR is {tempfile.gettempdir()}, in which the path of a socket would be too long, and "
        f"none of {', '.join(ELSEWHERE)} can be written to. Set TMPDIR to a folder whose path has "
        f"{LONGEST_BYTES} bytes at most"
    )


def new_temporary(prefix: str) -> Path:
    """Make a folder for sockets, of mode 0700."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary()))
