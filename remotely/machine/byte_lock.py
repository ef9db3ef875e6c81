"""Locks on single bytes of a file, between processes and between threads.

A lock belongs to an open file description (`F_OFD_...`), not to a process: the kernel releases it
once the last descriptor of that description is closed, also when its process is killed.  A forked
child has the description too, so the lock lasts until both have closed it.  Nothing is written, and
the byte need not exist.
"""

import os
import struct

_LOCK = struct.Struct("@hhqqi")  # struct flock: type, whence, start, length, pid


def try_lock(fd: int, byte: int, *, exclusive: bool) -> bool:
    """Lock a byte, exclusively or shared with others; return False if it is locked already."""
    try:
        _set(fd, "F_WRLCK" if exclusive else "F_RDLCK", byte)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int, byte: int) -> None:
    _set(fd, "F_UNLCK", byte)


def is_locked(fd: int, byte: int, *, exclusively: bool = True) -> bool:
    """Return whether another description than that of `fd` has the byte locked.

    Without `exclusively`, locks that are shared count too.
    """
    import fcntl  # noqa: PLC0415 - Windows has none

    asked = _LOCK.pack(fcntl.F_RDLCK if exclusively else fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _set(fd: int, kind: str, byte: int) -> None:
    import fcntl  # noqa: PLC0415 - as above

    lock = _LOCK.pack(getattr(fcntl, kind), os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
