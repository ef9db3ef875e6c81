"""A lock between processes of one machine."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

# Windows lacks both; a client there takes no such lock.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file; wait for another process that holds it.

    The file is created if it is missing, and stays.  If the holder is killed, the kernel releases
    the lock.
    """
    import fcntl  # noqa: PLC0415 - Windows has none, and no daemons either

    fd = os.open(file, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
