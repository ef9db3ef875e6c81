"""The folder of a process that serves an object, and its removal after the process was killed.

The folder contains the socket for calls.  No daemon on the machine watches such a process, so none
removes its folder.  But the process holds a lock in the folder, which the kernel releases when it
ends.  The next process that serves, and a worker that has lost one, remove the folders without a
holder.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from remotely.machine import folders

PREFIX = "remotely-guest-"
LOCK = "lock"


@contextlib.contextmanager
def guest_folder() -> Iterator[Path]:
    """Yield a new folder with mode 0700 and a short path, and remove it."""
    sweep()
    folder = folders.new_temporary(PREFIX)
    lock = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / "new", folder / LOCK)  # so it never exists without a holder
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders of processes that have ended."""
    for folder in folders.temporary().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, locked, or without a lock yet
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
