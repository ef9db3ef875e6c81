"""Memory files (memfd): shared memory without a name in any file system.

The kernel frees it with its last holder, so a killed process leaves nothing behind, and the size of
/dev/shm is no limit.  Processes of the same machine and user open it as `/proc/<pid>/fd/<fd>`.
"""

import contextlib
import errno
import mmap
import os

from remotely.machine.owned_fd import OwnedFd

SUPPORTED = hasattr(os, "memfd_create")
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def create(name: str, nbytes: int, *, grows: bool = False) -> int:
    """Return a descriptor of new memory, zeroed, and sealed so that its size cannot change.

    With `grows` it can be extended, but not shrunk either.
    """
    import fcntl  # noqa: PLC0415 - Windows has none

    made = OwnedFd(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.ftruncate(made.fd, nbytes)
    # If a process could shrink it, SIGBUS would kill others that read beyond the new end.
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | (0 if grows else fcntl.F_SEAL_GROW)
    fcntl.fcntl(made.fd, fcntl.F_ADD_SEALS, seals)
    return made.take()


def map_all(memory: OwnedFd) -> mmap.mmap:
    """Map all of the memory of a descriptor, which is closed."""
    fd = memory.take()
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def is_memory_file(fd: int) -> bool:
    """Return whether a descriptor received from another process is of a memory file."""
    import fcntl  # noqa: PLC0415 - Windows has none

    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0  # no other kind of file has seals
    except OSError:
        return False


def open_of(pid: int, fd: int, name: str) -> int | None:
    """Open the memory that another process has as `fd`; return None if it is no longer there.

    The number may be reused, so the name with which the memory was created is compared.
    Raises OSError if this process cannot have another descriptor.
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
