"""Memory that forked children may still read: when it is released.

Values that a user holds may lie in shared memory: in the arena of another process, which lends them
(borrowing.py), or in the arena of this one, as refs do and values that were fetched from another
machine.  A fork copies their views, so the parent and the child each have their own:

    1. before the fork, the mappings in which values have arrived become copy-on-write, at the same
       addresses (`isolate_with`).  So each process sees only its own writes, as with any other
       memory
    2. pages that neither has written are still shared, and nobody must change them.  So when the
       last view in the parent is gone, the memory waits in `_dropped`
    3. it is released when all children that were forked while it was held have ended, and all of
       their children.  `tidy` checks this by a memory file, the witness: the kernel allows a seal
       on it once none of them has it mapped any more

A child never releases memory: its parent's frames usually live on in it.

Views may go at any moment, on any thread, inside the garbage collector.  So nothing here takes a
lock.
"""

import contextlib
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

from remotely.machine import memory_file
from remotely.machine.owned_fd import OwnedFd

MAP_NORESERVE = 0x4000  # Linux; the mmap of Python 3.11 has no name for it
_MAP_FIXED = 0x10  # Linux
_FAILED = ctypes.c_void_p(-1).value


class _Held(weakref.ref[Any]):
    """A weak reference to the object that owns the views of some memory.

    forks    how many forks had finished when it was first held
    on_gone  to be called when the object is gone here
    release  to be called once nobody reads the memory
    """

    __slots__ = ("forks", "on_gone", "release")

    forks: int
    on_gone: Callable[[], object]
    release: Callable[[], object]

    def is_read_by_forks(self) -> bool:
        return any(fork.number >= self.forks for fork in list(_forks))


_held: dict[int, _Held] = {}  # by id
_dropped: deque[_Held] = deque()  # here, while forked children may still read them


def hold(
    owner: object, release: Callable[[], object], on_gone: Callable[[], object] = lambda: None
) -> None:
    """Call `on_gone` when `owner` is gone, and `release` when it is in forked children, too.

    Neither takes a lock, because the garbage collector may call them at any point.
    """
    held = _Held(owner, _drop)
    held.forks, held.on_gone, held.release = _Fork.finished, on_gone, release
    _held[id(held)] = held


def _drop(held: _Held) -> None:
    del _held[id(held)]
    held.on_gone()
    if _forks and held.is_read_by_forks():
        _dropped.append(held)  # 2
    else:
        held.release()


def tidy() -> None:
    """Release what forked children no longer read; called regularly, and before a fork."""
    for fork in list(_forks):
        if fork.is_over():
            _forks.discard(fork)
    with contextlib.suppress(IndexError):  # another thread may do the same
        for _ in range(len(_dropped)):
            held = _dropped.popleft()
            if held.is_read_by_forks():
                _dropped.append(held)
            else:
                held.release()  # 3


class _Fork:
    """A fork of this process, until its child and all of the child's descendants have ended.

    They inherit the map of the witness, and lose it when they end or execute another program,
    whatever descriptors they close.  The kernel seals a file against writing only if no process has
    it mapped for writing (man 2 fcntl, F_SEAL_WRITE).

    number     how many forks had finished before it; unknown until it has finished itself, since
               until then other threads may receive values that the child inherits
    finished   how many forks of this process have finished
    """

    finished = 0

    def __init__(self) -> None:
        self.number = math.inf
        self._witness: OwnedFd | None = None
        self._address: int | None = None
        with contextlib.suppress(OSError):  # no room: keep what is held until this process ends
            fd = os.memfd_create("remotely-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._witness = OwnedFd(fd)
            os.ftruncate(fd, mmap.PAGESIZE)
            self._address = _mmap(None, mmap.PAGESIZE, mmap.MAP_SHARED, fd)

    def finish(self) -> None:
        """In the parent: finish the fork."""
        self.number = _Fork.finished
        _Fork.finished += 1
        if self._address is not None:
            _libc().munmap(self._address, mmap.PAGESIZE)

    def is_over(self) -> bool:
        if self._address is None or self._witness is None:
            return False
        import fcntl  # noqa: PLC0415 - Windows has none

        try:
            fcntl.fcntl(self._witness.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        except OSError:
            return False
        return True


_forks: set[_Fork] = set()  # whose children may be alive
_forking: dict[int, _Fork] = {}  # by thread
_isolate: list[Callable[[], object]] = []


def isolate_with(function: Callable[[], object]) -> None:
    """Call a function before each fork, on the forking thread: 1."""
    _isolate.append(function)


def is_under_way() -> bool:
    """Return whether another thread forks: what arrives now must be the parent's alone already."""
    return bool(_forking)


def _before_fork() -> None:
    tidy()
    _forking[threading.get_ident()] = fork = _Fork()
    _forks.add(fork)
    for function in _isolate:
        function()  # 1


def _after_in_parent() -> None:
    fork = _forking.pop(threading.get_ident())
    fork.finish()
    if not _held and not _dropped:
        _forks.discard(fork)  # its child has inherited no memory


def _after_in_child() -> None:
    """Forget what is held: the parent releases it."""
    for inherited in (_held, _dropped, _forks, _forking):
        inherited.clear()


if memory_file.SUPPORTED:
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


# --- mappings that Python's mmap cannot make ------------------------------------------------------


def make_private(memory: mmap.mmap, fd: int) -> None:
    """Make a writable mapping of a file copy-on-write, at its address.  Raises OSError.

    It is replaced as a whole, so the number of mappings stays the same.  But at its limit the
    kernel refuses that too: so there is a spare one, to be given up first.
    """
    global _spare
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))
    flags = mmap.MAP_PRIVATE | MAP_NORESERVE | _MAP_FIXED
    try:
        _mmap(address, len(memory), flags, fd)
    except OSError:
        _spare.close()
        _mmap(address, len(memory), flags, fd)
        with contextlib.suppress(OSError):
            _spare = mmap.mmap(-1, mmap.PAGESIZE)


_spare = mmap.mmap(-1, mmap.PAGESIZE)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = (ctypes.c_void_p, size)
    return libc


def _mmap(address: int | None, nbytes: int, flags: int, fd: int) -> int:
    """Map a file from its beginning, writable: at an address, or without an owning object."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found: int = _libc().mmap(address, nbytes, access, flags, fd, 0)
    if found == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
