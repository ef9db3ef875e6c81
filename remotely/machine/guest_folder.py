"""The folder of a process that serves an object, and how it goes when the process was killed.

It has the socket on which the object takes calls.  Nobody watches such a process on its own
machine, so nobody removes its folder for it.  But it holds a lock in it, which the kernel releases
at its end.  Whoever comes by removes what nobody holds: the next process that serves, and a worker
that has lost one.
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
    """Yield a new folder, of mode 0700 and with a short path; it goes in any case."""
    sweep()
    folder = folders.new_temporary(PREFIX)
    lock = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(folder / "new", folder / LOCK)  # so nobody finds it there and free
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders of processes that have ended."""
    for folder in folders.temporary().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is another user's, or has no lock yet
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
