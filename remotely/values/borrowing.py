"""Borrowed values: views of an arena, in the process that reads them.

All large values that a user holds are borrowed, wherever they come from:

    a loan            another process of this machine lends the value: the sender, or the store to
                      which it came from another machine (`Lender.open`)
    any other way     the value comes through a socket of ours: this process lends itself the memory
                      for it (`new_memory`)

When the last view of a block is gone, one byte in the lender's table releases it (arena.py).  That
takes no lock and sends no message.  What a fork does to views, and when their blocks are released
then, is in forks.py.

Values arrive in a mapping of the lender's whole arena: in a shared one if they are lent to this
process alone, so that writing costs no copy, else in a copy-on-write one.  A fork makes the shared
mapping copy-on-write, for the values that are in it; later ones arrive in a new shared mapping.
"""

import contextlib
import ctypes
import logging
import mmap
import os
from functools import partial
from typing import Any

from remotely.machine.living import Living
from remotely.machine.owned_fd import OwnedFd
from remotely.values import arena, forks
from remotely.values.arena import (
    OPENED,
    RELEASED,
    SHARE_FROM_BYTES,
    TABLE_BYTES,
    ArenaAddress,
    Lendable,
    Loan,
)
from remotely.values.forks import MAP_NORESERVE

log = logging.getLogger("remotely")

_SHARED, _PRIVATE = False, True


class Lender:
    """The arena of another process, or of this one, opened.  Raises OSError if it cannot be."""

    def __init__(self, address: ArenaAddress) -> None:
        path = f"/proc/{address.pid}/fd/{address.fd}"
        self._file = OwnedFd(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        if os.fstat(self._file.fd).st_size != address.nbytes:
            raise OSError(f"{path} is another file now")
        self._table = mmap.mmap(self._file.fd, TABLE_BYTES)
        self._maps: dict[bool, mmap.mmap] = {}  # of the whole arena
        self._in_private: dict[int, int] = {}  # the slot of the block that is read there, by offset
        self.address = address
        _lenders.add(self)

    def open(self, loan: Loan) -> tuple[memoryview | None, list[memoryview]]:
        """Return the payload, if it was lent, and the buffers; their views own the loan."""
        blocks = []
        for i, (slot, offset, nbytes, private) in enumerate(loan.blocks):
            try:
                owner, map_ = self._map(slot, offset, nbytes, private or forks.is_under_way())
            except BaseException:  # an interrupt too: nobody else returns the loan
                for unread, *_ in loan.blocks[i:]:
                    self._table[unread] = RELEASED
                raise
            self._table[slot] = OPENED
            forks.hold(owner, partial(self._release, slot, offset, nbytes, map_))
            blocks.append(memoryview(owner).cast("B"))
        pieces = [blocks[i][start : start + nbytes] for i, start, nbytes in loan.pieces]
        return (pieces[0], pieces[1:]) if loan.has_payload else (None, pieces)

    def decline(self, loan: Loan) -> None:
        """Release a value without opening it."""
        for slot, *_ in loan.blocks:
            self._table[slot] = RELEASED

    def isolate(self) -> None:
        """Before a fork: hide later writes to the values that are here from the child."""
        if (map_ := self._maps.pop(_SHARED, None)) is not None:
            try:
                forks.make_private(map_, self._file.fd)
            except OSError as error:
                log.warning(
                    "this process forks while it holds large values that it received, and the "
                    "kernel refuses to make their memory private (%s): what one of both processes "
                    "writes into them, the other one sees. Copy them before you fork "
                    "(array.copy())",
                    error,
                )

    def _map(
        self, slot: int, offset: int, nbytes: int, private: bool
    ) -> tuple[Any, mmap.mmap | None]:
        """Return the owner of a block's views, and the mapping of the whole arena that it is in."""
        map_ = self._whole(_PRIVATE if private else _SHARED)
        if private and self._in_private.setdefault(offset, slot) != slot:  # atomic
            # Borrowed twice at a time: each has its own copy.
            return mmap.mmap(self._file.fd, nbytes, mmap.MAP_PRIVATE, offset=offset), None
        return (ctypes.c_ubyte * nbytes).from_buffer(map_, offset), map_

    def _whole(self, private: bool) -> mmap.mmap:
        """Return a mapping of the whole arena."""
        found = self._maps.get(private)
        if found is None:  # several threads may come here: the first one's remains
            flags = mmap.MAP_PRIVATE | MAP_NORESERVE if private else mmap.MAP_SHARED
            found = mmap.mmap(self._file.fd, self.address.nbytes, flags)
            found = self._maps.setdefault(private, found)
        return found

    def _release(self, slot: int, offset: int, nbytes: int, map_: mmap.mmap | None) -> None:
        """Return a block to the lender.

        First discard what was written to a copy-on-write mapping: it must not hide the block's next
        value.
        """
        if map_ is not None and map_ is not self._maps.get(_SHARED):
            pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            map_.madvise(mmap.MADV_DONTNEED, offset, pages)
            if map_ is self._maps.get(_PRIVATE):
                del self._in_private[offset]
        self._table[slot] = RELEASED


_lenders: Living[Lender] = Living()


def _isolate() -> None:
    for lender in _lenders.all():
        lender.isolate()


forks.isolate_with(_isolate)


# --- values that are not lent to this process -----------------------------------------------------


class _ThisProcess:
    """This process, as a borrower."""

    def alive(self) -> bool:
        return True


_this_process = _ThisProcess()
_own: Lender | None = None  # the arena of this process, opened


def new_memory(nbytes: int) -> memoryview:
    """Return unwritten memory for a value that a user will hold.

    It is in the arena if there is room: its pages were used before, and the first touch of a page
    costs ten times the copy into it.
    """
    ours = arena.ours() if nbytes >= SHARE_FROM_BYTES else None
    placed = None if ours is None else ours.reserve(nbytes)
    borrowed = None if placed is None else borrow_own(placed)
    return memoryview(bytearray(nbytes)) if borrowed is None else borrowed


def borrow_own(value: Lendable) -> memoryview | None:
    """Return the memory of a reserved value, which stays as long as a view of it.

    Return None if no descriptor, mapping or loan is left.
    """
    global _own
    with contextlib.suppress(OSError):
        lender = _own
        if lender is None or lender.address != value.address:  # also in a forked child
            lender = _own = Lender(value.address)
        if (loan := value.lend(_this_process, private=False)) is not None:
            _, (memory,) = lender.open(loan)
            return memory
    return None
