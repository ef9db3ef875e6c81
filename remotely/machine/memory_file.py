"""Memory files: memory without a name in any file system, which other processes can open.

It is gone with its last holder, so nothing is left behind when a process is killed, and the size of
/dev/shm does not limit it.  Processes of this machine and user open it as `/proc/<pid>/fd/<fd>`.
"""

import contextlib
import errno
import os

SUPPORTED = hasattr(os, "memfd_create")
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def create(name: str, nbytes: int) -> int:
    """Return a descriptor of new memory, all zeros; nobody can change its size."""
    import fcntl  # noqa: PLC0415 - Windows has none

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        # A process that reads beyond what another has cut off is killed.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_one(fd: int) -> bool:
    """Return whether a descriptor that another process has passed is of a memory file."""
    import fcntl  # noqa: PLC0415 - as above

    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0  # no other kind of file has seals
    except OSError:
        return False


def open_of(pid: int, fd: int, name: str) -> int | None:
    """Open the memory that another process has as `fd`; None if it has no such memory (any more).

    The number may mean another file by now, so the name that it was created with is compared.
    Raises OSError if this process has no room for another descriptor.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        found = os.open(f"/proc/{pid}/fd/{fd}", flags)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        return None
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{found}") == f"/memfd:{name} (deleted)":
            return found
    os.close(found)
    return None
