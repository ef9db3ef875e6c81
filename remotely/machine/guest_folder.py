"""The folder of a process that serves an object, and its removal after the process was killed.

The folder contains the socket for calls.  No daemon on the machine watches such a process, so none
removes its folder.  But the process holds the lock of the folder, which the kernel releases when it
ends.  The next process that serves, and a worker that has lost one, remove the folders without a
holder.  A folder gets the name by which they find it once it is locked.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from remotely.machine import file_lock, folders

PREFIX = "remotely-guest-"


@contextlib.contextmanager
def guest_folder() -> Iterator[Path]:
    """Yield a new folder with mode 0700 and a short path, and remove it."""
    sweep()
    new = folders.new_temporary("remotely-new-")
    folder = new.with_name(new.name.replace("new", "guest"))
    lock = file_lock.hold(new)
    try:
        new.rename(folder)
        yield folder
    finally:
        for each in (new, folder):
            shutil.rmtree(each, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove the folders of processes that have ended."""
    for folder in folders.temporary().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or locked
            lock = file_lock.hold(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
