"""Values that other processes of this machine lend to this one: they arrive without a copy.

A block is released when the last view of it is gone, by one byte in the lender's table (arena.py).
That may happen at any moment, on any thread, inside the garbage collector: so it takes no lock and
sends no message.

A fork copies views, and nobody can tell when both copies are gone.  So the lender keeps what is
borrowed at the moment of a fork until this process ends.
"""

import ctypes
import mmap
import os
import weakref
from typing import Any

from remotely.machine.owned_fd import OwnedFd
from remotely.values.arena import LET_GO, ArenaAddress, Loan

_MAP_NORESERVE = 0x4000  # Linux; named in Python from 3.11 on

_forks = 0
_outstanding: dict[tuple[int, int], "_Borrowed"] = {}  # by lender and slot


class _Borrowed(weakref.ref[Any]):
    """Watches the owner of a block's views; it keeps the lender's arena mapped meanwhile."""

    __slots__ = ("forks", "lender", "private", "slot")

    forks: int
    lender: "Lender"
    private: tuple[int, int] | None  # where in the lender's private map, if there
    slot: int


class Lender:
    """Another process's arena, opened.  Raises OSError if it cannot be."""

    def __init__(self, address: ArenaAddress) -> None:
        path = f"/proc/{address.pid}/fd/{address.fd}"
        self._file = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        if os.fstat(self._file.fd).st_size != address.nbytes:
            raise OSError(f"{path} is another file by now")
        self._map = mmap.mmap(self._file.fd, address.nbytes)
        self._copy_on_write: mmap.mmap | None = None
        self._in_private: dict[int, int] = {}  # by offset: the slot whose block is read there
        self.address = address

    def open(self, loan: Loan) -> tuple[memoryview | None, list[memoryview]]:
        """Return the payload, if it was lent, and the buffers; their views own the loan."""
        blocks = []
        for slot, offset, nbytes, private in loan.blocks:
            place = None
            try:
                owner: Any
                if not private:
                    owner = (ctypes.c_ubyte * nbytes).from_buffer(self._map, offset)
                elif self._in_private.setdefault(offset, slot) == slot:  # at once, for threads
                    place = offset, nbytes
                    owner = (ctypes.c_ubyte * nbytes).from_buffer(self._map_privately(), offset)
                else:  # twice at a time: each is its own
                    owner = mmap.mmap(self._file.fd, nbytes, mmap.MAP_PRIVATE, offset=offset)
            except BaseException:
                if place is not None:
                    self._in_private.pop(offset, None)
                self._map[slot] = LET_GO
                raise
            borrowed = _Borrowed(owner, _let_go)
            borrowed.forks, borrowed.lender = _forks, self
            borrowed.private, borrowed.slot = place, slot
            _outstanding[self.address.lender, slot] = borrowed
            blocks.append(memoryview(owner).cast("B"))
        pieces = [blocks[i][start : start + nbytes] for i, start, nbytes in loan.pieces]
        return (pieces[0], pieces[1:]) if loan.has_payload else (None, pieces)

    def _map_privately(self) -> mmap.mmap:
        """Return the arena as it is, where what is written stays here."""
        if self._copy_on_write is None:
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", _MAP_NORESERVE)
            self._copy_on_write = mmap.mmap(self._file.fd, self.address.nbytes, flags)
        return self._copy_on_write

    def decline(self, loan: Loan) -> None:
        """Release a value that nobody here wants."""
        for slot, *_ in loan.blocks:
            self._map[slot] = LET_GO


def _let_go(borrowed: _Borrowed) -> None:
    lender, slot = borrowed.lender, borrowed.slot
    del _outstanding[lender.address.lender, slot]  # first: after the byte it may be lent anew
    if borrowed.forks != _forks:
        return
    if borrowed.private and lender._copy_on_write is not None:
        offset, nbytes = borrowed.private
        pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        lender._copy_on_write.madvise(mmap.MADV_DONTNEED, offset, pages)  # what was written here
        lender._in_private.pop(offset, None)
    lender._map[slot] = LET_GO


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork)
