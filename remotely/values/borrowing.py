"""Borrowed values: views of memory that other processes of this machine lend to this one.

When the last view of a block is gone, one byte in the lender's table releases it (arena.py).  That
may happen at any moment, on any thread, inside the garbage collector, so it takes no lock and sends
no message.

A fork copies views, so the parent and the child each have their own:

    1. before the fork, each borrowed block is remapped copy-on-write, at the same address.  So each
       process sees only its own writes, as with any other memory
    2. pages that neither has written are still the lender's, which must not change them.  So when
       the last view in the parent is gone, the block waits in `_dropped`
    3. the block is released when all children that were forked while it was borrowed have ended,
       and all of their children.  `tidy` checks this by a memory file, the witness: the kernel
       allows a seal on it once none of them has it mapped any more

A child never releases a block: its parent's frames usually live on in it.
"""

import contextlib
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections import deque
from functools import cache
from typing import Any

from remotely.machine import memory_file
from remotely.machine.owned_fd import OwnedFd
from remotely.values.arena import RELEASED, ArenaAddress, Loan

_MAP_NORESERVE = 0x4000  # Linux; the mmap of Python 3.11 has no name for it
_MAP_FIXED = 0x10  # Linux
_FAILED = ctypes.c_void_p(-1).value

_outstanding: dict[tuple[int, int], "_Borrowed"] = {}  # by lender and slot
_dropped: deque["_Borrowed"] = deque()  # here, while forked children may still read them


class _Borrowed(weakref.ref[Any]):
    """A weak reference to the owner of a block's views; it keeps the lender's arena mapped."""

    __slots__ = ("forks", "is_isolated", "lender", "map", "nbytes", "offset", "slot")

    forks: int  # how many forks had finished when it arrived
    is_isolated: bool  # remapped copy-on-write within the shared map
    lender: "Lender"
    map: mmap.mmap | None  # the lender's map that contains it; None if it has a map of its own
    nbytes: int
    offset: int
    slot: int

    def isolate(self) -> None:
        """Hide later writes from a process that is about to be forked."""
        owner = self()  # keeps the block alive meanwhile
        if owner is not None and self.map is self.lender.shared and not self.is_isolated:
            self.is_isolated = self._remap(mmap.MAP_PRIVATE)

    def is_read_by_forks(self) -> bool:
        return any(fork.number >= self.forks for fork in list(_forks))

    def release(self) -> None:
        """Return the block to the lender."""
        # Unless it is shared again, a later loan of the block would read this process's own pages.
        if not self.is_isolated or self._remap(mmap.MAP_SHARED):
            self.lender.shared[self.slot] = RELEASED

    def _remap(self, flags: int) -> bool:
        """Map the block again at its address; return whether that worked."""
        address = self.lender.start + self.offset
        with contextlib.suppress(OSError):  # too many maps
            _mmap(address, self.nbytes, flags | _MAP_FIXED, self.lender.file.fd, self.offset)
            return True
        return False


class Lender:
    """Another process's arena, opened.  Raises OSError if it cannot be."""

    def __init__(self, address: ArenaAddress) -> None:
        path = f"/proc/{address.pid}/fd/{address.fd}"
        self.file = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        if os.fstat(self.file.fd).st_size != address.nbytes:
            raise OSError(f"{path} is another file now")
        self.shared = mmap.mmap(self.file.fd, address.nbytes)
        self.start = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.shared))
        self._copy_on_write: mmap.mmap | None = None
        self._in_private: dict[int, int] = {}  # the slot of the block that is read there, by offset
        self.address = address

    def open(self, loan: Loan) -> tuple[memoryview | None, list[memoryview]]:
        """Return the payload, if it was lent, and the buffers; their views own the loan."""
        blocks = []
        for slot, offset, nbytes, private in loan.blocks:
            map_: mmap.mmap | None = None
            is_first = private and self._in_private.setdefault(offset, slot) == slot  # atomic
            try:
                owner: Any
                if private and not is_first:  # borrowed twice at a time: each has its own copy
                    owner = mmap.mmap(self.file.fd, nbytes, mmap.MAP_PRIVATE, offset=offset)
                else:
                    map_ = self._map_privately() if private else self.shared
                    owner = (ctypes.c_ubyte * nbytes).from_buffer(map_, offset)
            except BaseException:
                if is_first:
                    self._in_private.pop(offset, None)
                self.shared[slot] = RELEASED
                raise
            borrowed = _Borrowed(owner, self.drop)
            borrowed.lender, borrowed.slot, borrowed.map = self, slot, map_
            borrowed.offset, borrowed.nbytes = offset, nbytes
            borrowed.forks, borrowed.is_isolated = _Fork.finished, False
            _outstanding[self.address.lender, slot] = borrowed
            blocks.append(memoryview(owner).cast("B"))
        pieces = [blocks[i][start : start + nbytes] for i, start, nbytes in loan.pieces]
        return (pieces[0], pieces[1:]) if loan.has_payload else (None, pieces)

    def _map_privately(self) -> mmap.mmap:
        """Return a copy-on-write map of the arena."""
        if self._copy_on_write is None:
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            self._copy_on_write = mmap.mmap(self.file.fd, self.address.nbytes, flags)
        return self._copy_on_write

    def drop(self, borrowed: _Borrowed) -> None:
        """Release a block, or defer that: its last view is gone."""
        del _outstanding[self.address.lender, borrowed.slot]  # first: once released, it is reused
        if borrowed.map is not None and borrowed.map is self._copy_on_write:
            pages = -(-borrowed.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            borrowed.map.madvise(mmap.MADV_DONTNEED, borrowed.offset, pages)  # discard our writes
            self._in_private.pop(borrowed.offset, None)
        if _forks and borrowed.is_read_by_forks():
            _dropped.append(borrowed)  # 2
        else:
            borrowed.release()

    def decline(self, loan: Loan) -> None:
        """Release a value without opening it."""
        for slot, *_ in loan.blocks:
            self.shared[slot] = RELEASED


def tidy() -> None:
    """Release blocks that forked children no longer read; called regularly, and before a fork."""
    for fork in list(_forks):
        if fork.is_over():
            _forks.discard(fork)
    with contextlib.suppress(IndexError):  # another thread may do the same
        for _ in range(len(_dropped)):
            borrowed = _dropped.popleft()
            if borrowed.is_read_by_forks():
                _dropped.append(borrowed)
            else:
                borrowed.release()  # 3


class _Fork:
    """A fork of this process, until its child and all of the child's descendants have ended.

    They inherit the map of the witness, and lose it when they end or execute another program,
    whatever descriptors they close.  The kernel seals a file against writing only if no process has
    it mapped for writing (man 2 fcntl, F_SEAL_WRITE).

    number     how many forks had finished before it; unknown until it has finished itself, since
               until then other threads may receive blocks that the child inherits
    finished   how many forks of this process have finished
    """

    finished = 0

    def __init__(self) -> None:
        self.number = math.inf
        self._witness: OwnedFd | None = None
        self._address: int | None = None
        with contextlib.suppress(OSError):  # no room: keep borrowed blocks until this process ends
            fd = os.memfd_create("remotely-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._witness = OwnedFd(fd)
            os.ftruncate(fd, mmap.PAGESIZE)
            self._address = _mmap(None, mmap.PAGESIZE, mmap.MAP_SHARED, fd, 0)

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


def _before_fork() -> None:
    tidy()
    for borrowed in list(_outstanding.values()):
        borrowed.isolate()  # 1
    _forking[threading.get_ident()] = fork = _Fork()
    _forks.add(fork)


def _after_in_parent() -> None:
    fork = _forking.pop(threading.get_ident())
    fork.finish()
    if not _outstanding and not _dropped:
        _forks.discard(fork)  # its child has inherited no block


def _after_in_child() -> None:
    """Forget what was borrowed: the parent releases it."""
    for inherited in (_outstanding, _dropped, _forks, _forking):
        inherited.clear()


if memory_file.SUPPORTED:
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = (ctypes.c_void_p, size)
    return libc


def _mmap(address: int | None, nbytes: int, flags: int, fd: int, offset: int) -> int:
    """Map a file, writable, as Python's mmap cannot: at an address, or without an owning object."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found: int = _libc().mmap(address, nbytes, access, flags, fd, offset)
    if found == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
