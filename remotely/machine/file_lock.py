"""A lock between processes of one machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

# Windows lacks both flags; a client there takes no such lock.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Wait for the lock of a file, and hold it.

    The file is created if it is missing, and not removed.  If the holder is killed, the kernel
    releases the lock.
    """
    import fcntl  # noqa: PLC0415 - Windows has none, and runs no daemons

    fd = os.open(file, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
