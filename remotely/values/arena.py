"""Shared memory that this process lends to others of its machine, for large values.

The table at its start has a byte for each loan, its slot:

    0        LENT      the lender has copied a value into a block, and sends a Loan in its place
    LENT     LET_GO    the last view of the block is gone at the borrower (borrowing.py), which
                       sends no message
    LET_GO   0         the lender looked, since it needs room or a second is over: another loan may
                       have the slot.  The block is free when no loan of it is left
    LENT     0         the borrower is seen to have ended, or never got the message

Each byte has one writer at a time: the lender until the loan is sent, then the borrower, until its
slot says that it has released it.  A block that several borrow (a group's call, a ref) is mapped by
each privately, copy on write.  So whatever arrives is writable and the borrower's own.

The memory is a memory file (memory_file.py), which other processes of this machine and user can
open.  A process that cannot open it gets everything by socket (payload.py).

Rejected: one arena per machine, owned by the worker (its bookkeeping needs a lock across processes,
which a killed process leaves locked, and a client's values would outlive the client); POSIX shared
memory (a kill leaves names in /dev/shm, and a container has 64 MiB of it).
"""

import ctypes
import logging
import mmap
import os
import secrets
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from remotely.machine import memory_file, this_machine
from remotely.machine.shield import RLock
from remotely.protocol.resources import format_bytes, parse_memory
from remotely.values.blocks import GRANULE, Blocks
from remotely.values.codec import Encoded

log = logging.getLogger("remotely")

SUPPORTED = memory_file.SUPPORTED and hasattr(os, "pidfd_open")
SHARE_FROM_BYTES = 1 << 14  # a smaller value is as fast through the socket
SLOTS = 1 << 16  # loans at a time
ALIGNMENT = 64  # of each buffer within its block, as numpy and torch like it
TIDY_EVERY_S = 1.0
IDLE_TICKS = 10  # of `tidy`, after which free memory goes back to the machine
VARIABLE = "REMOTELY_ARENA"  # bytes, or "2GiB"; 0 sends everything by socket

LENT, LET_GO = 1, 2  # see above
_LET_GO = bytes([LET_GO])


class ArenaAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where an arena can be opened, by processes of the same machine."""

    lender: int
    pid: int
    fd: int
    nbytes: int


class Loan(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """What travels in place of a large value.

    blocks       slot in the table, offset, length, and whether to map it privately
    pieces       index of the block, start within it, length
    has_payload  whether the first piece is the pickle; the others are its buffers
    """

    lender: int
    blocks: list[tuple[int, int, int, bool]]
    pieces: list[tuple[int, int, int]]
    has_payload: bool


class Borrower(Protocol):
    """The process that a value is lent to."""

    def alive(self) -> bool: ...


class Block:
    """A part of the arena.  `holders` counts its loans, and those that may still lend it."""

    __slots__ = ("holders", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.holders = 1


class StoredValue(NamedTuple):
    """A value in the arena, ready to be lent, until it is passed to `Arena.let_go`.

    blocks   its own, if it `has_own`, and those of refs among its buffers
    """

    blocks: list[Block]
    has_own: bool
    pieces: list[tuple[int, int, int]]
    has_payload: bool


class Arena:
    """The memory that one process lends.  Any thread may use it."""

    def __init__(self, nbytes: int) -> None:
        table_bytes = -(-SLOTS // GRANULE) * GRANULE
        self._nbytes = max(nbytes // GRANULE * GRANULE, table_bytes + GRANULE)
        self._fd = memory_file.create(file_name(os.getpid()), self._nbytes)
        self._map = mmap.mmap(self._fd, self._nbytes)
        self._memory = memoryview(self._map)
        self._start = table_bytes
        self._blocks = Blocks(self._nbytes - table_bytes)
        self._free_slots = list(range(SLOTS - 1, -1, -1))
        self._top = 0  # slots from here on were never used
        self._lent: dict[int, tuple[Block, Borrower]] = {}
        self._pinned: dict[int, tuple[Block, int]] = {}  # pieces of refs, by the id of their owner
        self._dropped: deque[StoredValue] = deque()
        self._lock = RLock()
        self._warned = False
        self._idle_ticks = 0
        self.address = ArenaAddress(secrets.randbits(63), os.getpid(), self._fd, self._nbytes)

    def place(self, encoded: Encoded) -> StoredValue | None:
        """Copy a value into the arena; return None if there is no room.

        What is there already, as part of a ref, is not copied again.
        """
        sizes = list(map(len, encoded.pieces))
        has_payload = sum(sizes) >= SHARE_FROM_BYTES
        with self._lock:
            self._idle_ticks = 0
            found = [self._pinned.get(id(buffer.obj)) for buffer in encoded.buffers]
            fresh = [b for b, pin in zip(encoded.buffers, found, strict=True) if pin is None]
            total = sum(aligned(buffer.nbytes) for buffer in fresh)
            total += aligned(sum(sizes)) if has_payload else 0
            blocks: list[Block] = []
            if total:
                if (block := self._take(total)) is None:
                    return None
                blocks.append(block)
            pieces = []
            at = 0
            if has_payload:
                pieces.append((0, 0, sum(sizes)))
                at = aligned(sum(sizes))
            for buffer, pin in zip(encoded.buffers, found, strict=True):
                if pin is None:
                    pieces.append((0, at, buffer.nbytes))
                    at += aligned(buffer.nbytes)
                    continue
                other, start = pin
                if other not in blocks:
                    blocks.append(other)
                    other.holders += 1
                pieces.append((blocks.index(other), start, buffer.nbytes))
        if total:
            self._write(blocks[0], encoded.pieces if has_payload else (), fresh)
        return StoredValue(blocks, total > 0, pieces, has_payload)

    def lend(self, placed: StoredValue, borrower: Borrower, private: bool) -> Loan | None:
        """Lend a value to one borrower; return None if there are too many loans.

        Without `private` the borrower writes into the block itself, so it must be the only one.
        """
        with self._lock:
            if len(self._free_slots) < len(placed.blocks):
                self._reclaim()
                if len(self._free_slots) < len(placed.blocks):
                    return None
            lent = []
            for i, block in enumerate(placed.blocks):
                slot = self._free_slots.pop()
                self._top = max(self._top, slot + 1)
                self._map[slot] = LENT
                self._lent[slot] = block, borrower
                block.holders += 1
                own = i == 0 and placed.has_own and not private
                lent.append((slot, self._start + block.offset, block.nbytes, not own))
        return Loan(self.address.lender, lent, placed.pieces, placed.has_payload)

    def reserve(self, nbytes: int) -> StoredValue | None:
        """Return room for a value in one piece, to be written; None if there is none.

        It can be lent like any stored value, as one buffer.
        """
        with self._lock:
            self._idle_ticks = 0
            block = self._take(nbytes)
        return StoredValue([block], True, [(0, 0, nbytes)], False) if block else None

    def memory_of(self, placed: StoredValue) -> memoryview:
        """Return the memory of a reserved value, for as long as the value is not let go."""
        (block,) = placed.blocks
        begin = self._start + block.offset
        return self._memory[begin : begin + block.nbytes]

    def keep(self, placed: StoredValue) -> memoryview:
        """Return the memory of a reserved value, which is let go with the last view of it."""
        (block,) = placed.blocks
        owner = self._part(block, 0, block.nbytes)
        weakref.finalize(owner, self.let_go, placed).atexit = False
        return memoryview(owner).cast("B")

    def is_lent(self, placed: StoredValue, loan: Loan) -> bool:
        """Tell whether the borrower of a reserved value still has it."""
        (slot, *_), *_ = loan.blocks
        with self._lock:
            lent = self._lent.get(slot)  # another loan may have the slot by now
            return lent is not None and lent[0] in placed.blocks and self._map[slot] == LENT

    def take_back(self, loan: Loan) -> None:
        """Undo a loan that never reached its borrower."""
        with self._lock:
            for slot, offset, *_ in loan.blocks:
                lent = self._lent.get(slot)  # another loan may have the slot by now
                if lent is not None and self._start + lent[0].offset == offset:
                    self._end_loan(slot)

    def let_go(self, placed: StoredValue) -> None:
        """The value will not be lent any more.

        It takes no lock, because the garbage collector may call it, at any point.
        """
        self._dropped.append(placed)

    def pin(self, placed: StoredValue) -> list[memoryview]:
        """Return the pieces of a stored value as buffers that `place` recognizes.

        The value is released when the last of them is gone.  A buffer that is being sent, or that a
        repeatable call holds, outlives the ref.
        """
        views = []
        for which, start, nbytes in placed.pieces:
            block = placed.blocks[which]
            owner = self._part(block, start, nbytes)
            self._pinned[id(owner)] = block, start
            views.append(memoryview(owner).cast("B"))
        left = [id(view.obj) for view in views]

        def unpin(key: int) -> None:
            del self._pinned[key]
            left.remove(key)
            if not left:
                self.let_go(placed)

        for view in views:
            weakref.finalize(view.obj, unpin, id(view.obj)).atexit = False
        return views

    def tidy(self) -> None:
        """Called each second: take back what dead borrowers held, and trim when idle."""
        with self._lock:
            self._reclaim()
            if self._lent:
                self._end_loans_of_the_dead()
            self._idle_ticks += 1
            trim = self._idle_ticks == IDLE_TICKS
        if trim:
            self.trim()

    def trim(self) -> None:
        """Return memory that is not lent to the operating system."""
        with self._lock:
            self._reclaim()
            self._end_loans_of_the_dead()
            for start, end in self._blocks.gaps():
                self._map.madvise(mmap.MADV_REMOVE, self._start + start, end - start)

    @property
    def lent_bytes(self) -> int:
        """How much of the arena is in use, after taking back what was released."""
        with self._lock:
            self._reclaim()
            return self._blocks.taken_bytes

    def _part(self, block: Block, start: int, nbytes: int) -> Any:
        """Return an object that is part of a block, and can be referred to weakly."""
        begin = self._start + block.offset + start
        return (ctypes.c_ubyte * nbytes).from_buffer(self._map, begin)

    def _take(self, nbytes: int) -> Block | None:
        """Return a new block; None if there is no room, which is said once."""
        self._reclaim()
        offset = self._blocks.take(nbytes)
        if offset is None:
            self._end_loans_of_the_dead()
            offset = self._blocks.take(nbytes)
        if offset is None:
            self._warn()
            return None
        return Block(offset, nbytes)

    def _write(
        self, block: Block, pieces: Sequence[bytes | memoryview], buffers: list[memoryview]
    ) -> None:
        begin = at = self._start + block.offset
        for piece in pieces:
            self._memory[at : at + len(piece)] = piece
            at += len(piece)
        at = begin + aligned(at - begin)
        for buffer in buffers:
            self._memory[at : at + buffer.nbytes] = buffer
            at += aligned(buffer.nbytes)

    def _reclaim(self) -> None:
        """Take back what borrowers have released, and what will not be lent any more."""
        while self._dropped:
            placed = self._dropped.popleft()
            for block in placed.blocks:
                self._drop(block)
        slot = -1
        while (slot := self._map.find(_LET_GO, slot + 1, self._top)) >= 0:
            self._end_loan(slot)

    def _end_loan(self, slot: int) -> None:
        self._map[slot] = 0
        if (lent := self._lent.pop(slot, None)) is not None:
            self._free_slots.append(slot)
            self._drop(lent[0])

    def _end_loans_of_the_dead(self) -> None:
        borrowers = {id(borrower): borrower for _, borrower in self._lent.values()}
        dead = {key for key, borrower in borrowers.items() if not borrower.alive()}
        for slot in [slot for slot, (_, borrower) in self._lent.items() if id(borrower) in dead]:
            self._end_loan(slot)

    def _drop(self, block: Block) -> None:
        block.holders -= 1
        if block.holders == 0:
            self._blocks.give(block.offset)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the memory for large values is full (%s, lent to processes that keep what "
                "they got): values travel by socket now, which is slower. Copy what you keep for "
                "long (array.copy()), or allow more: %s=%dGiB",
                format_bytes(self._nbytes),
                VARIABLE,
                max(1, self._nbytes >> 29),
            )


_ours: Arena | None = None
_making = RLock()


def ours() -> Arena | None:
    """Return the arena of this process; None where large values go by socket."""
    global _ours
    if _ours is None and SUPPORTED:
        with _making:
            try:
                nbytes = size_wanted()
            except ValueError as error:
                nbytes = this_machine.memory() // 2
                if _ours is None:
                    log.warning("%s; half of this machine's memory is used", error)
            if nbytes and _ours is None:
                try:
                    _ours = Arena(nbytes)
                except OSError as error:  # no descriptors left, or a kernel that does not allow it
                    log.warning("no memory for large values (%s): they travel by socket", error)
    return _ours


def size_wanted() -> int:
    """Return how much memory a process may lend.  Raises ValueError if VARIABLE is wrong."""
    text = os.environ.get(VARIABLE, "")
    try:
        return parse_memory(text or this_machine.memory() // 2)
    except ValueError:
        raise ValueError(
            f'{VARIABLE}={text!r} is no amount of memory: write bytes, or "512MB" or "2GiB", or 0 '
            "for none"
        ) from None


def file_name(pid: int) -> str:
    """Return the name of a process's arena in /proc, its own and that of its borrowers."""
    return f"remotely-{pid}"


def tidy() -> None:
    """Called each second by a process that may have an arena."""
    if _ours is not None:
        _ours.tidy()


def trim() -> None:
    """Called by a process that will not send for a while."""
    if _ours is not None:
        _ours.trim()


def _after_fork() -> None:
    """In a child: the arena is the parent's."""
    global _ours, _making
    _ours, _making = None, RLock()


os.register_at_fork(after_in_child=_after_fork)


def aligned(nbytes: int) -> int:
    """Return how far from the start of a buffer the next one starts."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
