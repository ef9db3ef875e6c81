"""Locks between processes of one machine: of a file, and of a folder in use."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from remotely.errors import RemotelyError

# Windows lacks these flags; a client there takes no such lock.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FLAGS |= getattr(os, "O_NONBLOCK", 0)  # another user's file may be a pipe


@contextlib.contextmanager
def locked(file: Path, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Wait for the lock of a file, and hold it; `shared`: beside others that hold it so.

    Without `wait`, raise BlockingIOError if another holds it.  The file is created if it is
    missing, and not removed.  If the holder is killed, the kernel releases the lock.  Raises
    RemotelyError if the file system has no locks.
    """
    import fcntl  # noqa: PLC0415 - Windows has none, and runs no daemons

    fd = os.open(file, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            raise RemotelyError(
                f"{file.parent} is on a file system without locks ({error.strerror}), as Lustre is "
                "if it was mounted without `flock`. Set REMOTELY_HOME to a folder on a local disk"
            ) from None
        yield
    finally:
        os.close(fd)


def hold(path: Path, shared: bool = False) -> int:
    """Lock a folder or a file as in use, and return the descriptor that holds the lock.

    What cleans temporary folders by their age passes over a locked one (man tmpfiles.d), and the
    lock tells other processes that the owner lives.  `shared`: beside others that hold it so, for
    a look at it too.  Raises BlockingIOError if another holds it.
    """
    import fcntl  # noqa: PLC0415 - as above

    # NFS locks for writing only what is open for that.
    access = os.O_RDONLY if shared or path.is_dir() else os.O_RDWR
    fd = os.open(path, access | _FLAGS)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd
