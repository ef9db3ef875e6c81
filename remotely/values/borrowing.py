"""Values that other processes of this machine lend to this one: they arrive without a copy.

A block is released when the last view of it is gone, by one byte in the lender's table (arena.py).
That may happen at any moment, on any thread, inside the garbage collector: so it takes no lock and
sends no message.

A fork copies views.  From then on the child and its parent each have their own:

    1. before it, each borrowed block is mapped copy-on-write, at the address where it is.  What
       either process writes stays with it, as with any other memory
    2. pages that neither has written are still the lender's, which must not change them.  So when
       the last view in the parent is gone, the block waits in `_dropped`
    3. it is released when all children have ended that were forked while it was borrowed, with the
       children of their own.  `tidy` looks whether they have: once all of them have lost the map
       of a memory file, the witness, the kernel allows a seal on it

A child that drops its copies releases nothing: as a rule its parent's frames live on in it.
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
from remotely.values.arena import LET_GO, ArenaAddress, Loan

_MAP_NORESERVE = 0x4000  # Linux; the mmap of Python 3.11 has no name for it
_MAP_FIXED = 0x10  # Linux
_FAILED = ctypes.c_void_p(-1).value

_outstanding: dict[tuple[int, int], "_Borrowed"] = {}  # by lender and slot
_dropped: deque["_Borrowed"] = deque()  # here, while forked children may still read them


class _Borrowed(weakref.ref[Any]):
    """Watches the owner of a block's views; it keeps the lender's arena mapped meanwhile."""

    __slots__ = ("forks", "is_isolated", "lender", "map", "nbytes", "offset", "slot")

    forks: int  # had been finished when it arrived
    is_isolated: bool  # mapped copy-on-write, within the map that is shared
    lender: "Lender"
    map: mmap.mmap | None  # the one of the lender's in which it lies; None: one of its own
    nbytes: int
    offset: int
    slot: int

    def isolate(self) -> None:
        """Keep what is written from now on from the processes that are about to be forked."""
        owner = self()  # keeps the block meanwhile
        if owner is not None and self.map is self.lender.shared and not self.is_isolated:
            self.is_isolated = self._remap(mmap.MAP_PRIVATE)

    def is_read_by_forks(self) -> bool:
        return any(fork.number >= self.forks for fork in list(_forks))

    def give_back(self) -> None:
        """Let the lender have the block.  Nobody reads it any more."""
        if not self.is_isolated or self._remap(mmap.MAP_SHARED):  # else it would read its own pages
            self.lender.shared[self.slot] = LET_GO

    def _remap(self, flags: int) -> bool:
        """Map the block again where it is; return whether that worked."""
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
            raise OSError(f"{path} is another file by now")
        self.shared = mmap.mmap(self.file.fd, address.nbytes)
        self.start = ctypes.addressof(ctypes.c_ubyte.from_buffer(self.shared))
        self._copy_on_write: mmap.mmap | None = None
        self._in_private: dict[int, int] = {}  # by offset: the slot whose block is read there
        self.address = address

    def open(self, loan: Loan) -> tuple[memoryview | None, list[memoryview]]:
        """Return the payload, if it was lent, and the buffers; their views own the loan."""
        blocks = []
        for slot, offset, nbytes, private in loan.blocks:
            map_: mmap.mmap | None = None
            is_first = private and self._in_private.setdefault(offset, slot) == slot  # at once
            try:
                owner: Any
                if private and not is_first:  # twice at a time: each is its own
                    owner = mmap.mmap(self.file.fd, nbytes, mmap.MAP_PRIVATE, offset=offset)
                else:
                    map_ = self._map_privately() if private else self.shared
                    owner = (ctypes.c_ubyte * nbytes).from_buffer(map_, offset)
            except BaseException:
                if is_first:
                    self._in_private.pop(offset, None)
                self.shared[slot] = LET_GO
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
        """Return the arena as it is, where what is written stays here."""
        if self._copy_on_write is None:
            flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
            self._copy_on_write = mmap.mmap(self.file.fd, self.address.nbytes, flags)
        return self._copy_on_write

    def drop(self, borrowed: _Borrowed) -> None:
        """The last view of a block is gone."""
        del _outstanding[self.address.lender, borrowed.slot]  # first: given back, it is lent anew
        if borrowed.map is not None and borrowed.map is self._copy_on_write:
            pages = -(-borrowed.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            borrowed.map.madvise(mmap.MADV_DONTNEED, borrowed.offset, pages)  # written here
            self._in_private.pop(borrowed.offset, None)
        if _forks and borrowed.is_read_by_forks():
            _dropped.append(borrowed)  # 2
        elif borrowed.is_isolated:
            borrowed.give_back()
        else:  # as it does, for the many
            self.shared[borrowed.slot] = LET_GO

    def decline(self, loan: Loan) -> None:
        """Release a value that nobody here wants."""
        for slot, *_ in loan.blocks:
            self.shared[slot] = LET_GO


def tidy() -> None:
    """Give back what forked children no longer read; called regularly, and before each fork."""
    for fork in list(_forks):
        if fork.is_over():
            _forks.discard(fork)
    with contextlib.suppress(IndexError):  # another thread does the same
        for _ in range(len(_dropped)):
            borrowed = _dropped.popleft()
            if borrowed.is_read_by_forks():
                _dropped.append(borrowed)
            else:
                borrowed.give_back()  # 3


class _Fork:
    """A fork of this process, until its child has ended, with all of the child's own children.

    They inherit the map of the witness, and lose it when they end or execute another program,
    whatever descriptors they close.  The kernel seals a file against writing only if no process has
    it mapped for writing (man 2 fcntl, F_SEAL_WRITE).

    number     how many forks had been finished before it; not known until it is finished itself,
               since until then other threads receive what the child may inherit
    finished   how many have been
    """

    finished = 0

    def __init__(self) -> None:
        self.number = math.inf
        self._witness: OwnedFd | None = None
        self._address: int | None = None
        with contextlib.suppress(OSError):  # no room: what is borrowed now is kept until our end
            fd = os.memfd_create("remotely-fork", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            self._witness = OwnedFd(fd)
            os.ftruncate(fd, mmap.PAGESIZE)
            self._address = _mmap(None, mmap.PAGESIZE, mmap.MAP_SHARED, fd, 0)

    def finish(self) -> None:
        """In the parent: the child has been forked."""
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


_forks: set[_Fork] = set()  # whose children may live
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
        _forks.discard(fork)  # its child has nothing of ours


def _after_in_child() -> None:
    """What was borrowed is the parent's to give back."""
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
    """Map a file, writable, as Python's mmap cannot: at an address, or beyond its object's life."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found: int = _libc().mmap(address, nbytes, access, flags, fd, offset)
    if found == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
