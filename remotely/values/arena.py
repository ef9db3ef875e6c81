"""The arena: shared memory in which a process lends large values to others of its machine.

The table at its start has one byte for each loan, its slot:

    0         LENT      the lender has copied a value into a block, and sends a Loan in its place
    LENT      OPENED    the borrower has views of the block
    LENT,     RELEASED  the borrower does not want it, or its last view of the block is gone
     OPENED             (borrowing.py); it sends no message
    RELEASED  0         the lender has noticed, as it needed room or in its check each second.  The
                        slot is free, and the block too if no other loan of it is left
    LENT,     0         the borrower has ended
     OPENED
    LENT      0         the message was not sent, or its connection has ended before it was received

Each byte has one writer at a time: the lender until the loan is sent, then the borrower until it
writes RELEASED.  If several processes borrow a block (a group's call, a ref), each maps it
privately, copy-on-write.  So every value arrives writable, and belongs to its borrower.

The memory is a memory file (memory_file.py), which other processes of this machine and user can
open.  A process that cannot open it gets values by socket (payload.py).

Rejected: one arena per machine, owned by the worker (its bookkeeping needs a lock across processes,
which a killed process leaves locked, and a client's values would outlive the client); POSIX shared
memory (a kill leaves names in /dev/shm, and a container has 64 MiB of it).
"""

import ctypes
import logging
import mmap
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from functools import cache, partial
from typing import Protocol

import msgspec

from remotely.machine import memory_file, this_machine
from remotely.machine.shield import RLock, shield
from remotely.protocol.resources import format_bytes, parse_memory
from remotely.values import forks, layout
from remotely.values.blocks import GRANULE, Blocks
from remotely.values.codec import Encoded

log = logging.getLogger("remotely")

SUPPORTED = memory_file.SUPPORTED and hasattr(os, "pidfd_open")
SHARE_FROM_BYTES = 1 << 14  # a smaller value is as fast through the socket
SLOTS = 1 << 16  # loans at a time
TABLE_BYTES = -(-SLOTS // GRANULE) * GRANULE
TIDY_EVERY_S = 1.0
IDLE_S = 10.0  # without a new value, after which unused memory returns to the operating system
VARIABLE = "REMOTELY_ARENA"  # bytes, or "2GiB"; 0 sends all values by socket

LENT, RELEASED, OPENED = 1, 2, 3  # see above
_RELEASED = bytes([RELEASED])


class ArenaAddress(msgspec.Struct, frozen=True, array_like=True):
    """The address at which processes of the same machine open an arena."""

    lender: int
    pid: int
    fd: int
    nbytes: int


class Loan(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Sent in place of a large value.

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
    """A part of the arena.  `holders` counts its loans, and the stored values that include it."""

    __slots__ = ("holders", "nbytes", "offset")

    def __init__(self, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.holders = 1


class Arena:
    """The memory that one process lends.  Any thread may use it."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = max(nbytes // GRANULE * GRANULE, TABLE_BYTES + GRANULE)
        self._fd = memory_file.create(file_name(os.getpid()), self._nbytes)
        self._map = mmap.mmap(self._fd, self._nbytes)
        self._memory = memoryview(self._map)
        self._blocks = Blocks(self._nbytes - TABLE_BYTES)
        self._free_slots: list[int] = []  # of those that were used
        self._top = 0  # slots from here on were never used
        self._lent: dict[int, tuple[Block, Borrower]] = {}  # by slot
        self._pinned: dict[int, tuple[Block, int]] = {}  # pieces of refs, by the id of their owner
        self._released: deque[list[Block]] = deque()  # of values that are gone
        self._lock = RLock()
        self._warned = False
        self._used = time.monotonic()  # when a value was last placed
        self._has_untrimmed = False  # blocks were freed since unused memory was last returned
        self.address = ArenaAddress(secrets.randbits(63), os.getpid(), self._fd, self._nbytes)

    def place(self, encoded: Encoded) -> "Lendable | None":
        """Copy a value into the arena; return None if there is no room.

        Buffers that are already there, as part of a ref, are not copied again.
        """
        pickled = sum(map(len, encoded.pieces))
        has_payload = pickled >= SHARE_FROM_BYTES
        found = [self._pinned.get(id(buffer.obj)) for buffer in encoded.buffers]
        fresh = [b for b, pin in zip(encoded.buffers, found, strict=True) if pin is None]
        sizes = [buffer.nbytes for buffer in fresh]
        places, total = layout.laid_out([pickled, *sizes] if has_payload else sizes)
        others: dict[Block, int] = {}  # of refs, and the index of each
        pieces = []
        left = iter(places)
        if has_payload:
            pieces.append((0, *next(left)))
        for buffer, pin in zip(encoded.buffers, found, strict=True):
            if pin is None:
                pieces.append((0, *next(left)))
            else:
                block, start = pin
                which = others.setdefault(block, len(others) + (total > 0))
                pieces.append((which, start, buffer.nbytes))
        value = self._new_value(total, [*others], pieces, has_payload)
        if value is not None and total:
            parts: list[Sequence[bytes | memoryview]] = [[buffer] for buffer in fresh]
            begin = TABLE_BYTES + value.blocks[0].offset
            into = self._memory[begin : begin + total]
            layout.write(into, places, [encoded.pieces, *parts] if has_payload else parts)
        return value

    def reserve(self, nbytes: int) -> "Lendable | None":
        """Return a value of one unwritten buffer; None if there is no room."""
        return self._new_value(nbytes, [], [(0, 0, nbytes)], False)

    def _new_value(
        self,
        nbytes: int,
        others: list[Block],
        pieces: list[tuple[int, int, int]],
        has_payload: bool,
    ) -> "Lendable | None":
        """Return a value in a new block of `nbytes`, if it is not 0, and in others."""
        with shield, self._lock:  # a block that is taken belongs to a value
            self._used = time.monotonic()
            own = []
            if nbytes:
                if (block := self._take(nbytes)) is None:
                    return None
                own.append(block)
            for other in others:
                other.holders += 1
            return Lendable(self, [*own, *others], bool(own), pieces, has_payload)

    def take_slots(self, blocks: Sequence[Block], borrower: Borrower) -> list[int] | None:
        """Begin a loan of each block; return their slots, or None if there are too many loans."""
        with self._lock:
            if not self._has_slots(len(blocks)):
                self._reclaim()
                if not self._has_slots(len(blocks)):
                    return None
            slots = []
            for block in blocks:
                slot = self._free_slots.pop() if self._free_slots else self._new_slot()
                self._map[slot] = LENT
                self._lent[slot] = block, borrower
                block.holders += 1
                slots.append(slot)
            return slots

    def is_taken(self, slot: int, blocks: Sequence[Block]) -> bool:
        """Tell whether a loan of one of these blocks has the slot."""
        with self._lock:
            lent = self._lent.get(slot)  # another loan may have the slot by now
            is_same = lent is not None and lent[0] in blocks
            return is_same and self._map[slot] in (LENT, OPENED)

    def memory_of(self, block: Block) -> memoryview:
        begin = TABLE_BYTES + block.offset
        return self._memory[begin : begin + block.nbytes]

    def end_unopened(self, borrower: Borrower) -> None:
        """End the loans that a borrower has not opened, and cannot receive any more."""
        with self._lock:
            mine = [slot for slot, (_, other) in self._lent.items() if other is borrower]
            for slot in mine:
                if self._map[slot] == LENT:
                    self._end_loan(slot)

    def take_back(self, loan: Loan) -> None:
        """Undo a loan that did not reach its borrower."""
        if loan.lender != self.address.lender:  # this process has forked
            return
        with self._lock:
            for slot, offset, *_ in loan.blocks:
                lent = self._lent.get(slot)  # another loan may have the slot by now
                if lent is not None and TABLE_BYTES + lent[0].offset == offset:
                    self._end_loan(slot)

    def forget(self, blocks: list[Block]) -> None:
        """Forget a value soon.  Takes no lock."""
        self._released.append(blocks)

    def pin(self, value: "Lendable", which: int, start: int, nbytes: int) -> memoryview:
        """Return part of a value, which it keeps, as a buffer that `place` recognizes."""
        block = value.blocks[which]
        owner = (ctypes.c_ubyte * nbytes).from_buffer(self._map, TABLE_BYTES + block.offset + start)
        # In this order, whatever interrupts it: another object may have the id later.
        forks.hold(owner, partial(_let_go, value), partial(self._pinned.pop, id(owner), None))
        self._pinned[id(owner)] = block, start
        return memoryview(owner).cast("B")

    def pinned_bytes(self, encoded: Encoded) -> int:
        """Return the size of a value's buffers that are pinned."""
        return sum(b.nbytes for b in encoded.buffers if id(b.obj) in self._pinned)

    def tidy(self) -> None:
        """Called each second or so: end the loans of dead borrowers, and trim when idle.

        Borrowers may release a value long after the last one was placed.
        """
        with self._lock:
            self._reclaim()
            if self._lent:
                self._end_loans_of_dead_borrowers()
            is_idle = time.monotonic() - self._used >= IDLE_S
        if is_idle and self._has_untrimmed:
            self.trim()

    def trim(self) -> None:
        """Return unused memory to the operating system."""
        with self._lock:
            self._reclaim()
            self._end_loans_of_dead_borrowers()
            self._has_untrimmed = False
            for start, end in self._blocks.gaps():
                self._map.madvise(mmap.MADV_REMOVE, TABLE_BYTES + start, end - start)

    @property
    def lent_bytes(self) -> int:
        """How much of the arena is in use, after reclaiming what was released."""
        with self._lock:
            self._reclaim()
            return self._blocks.taken_bytes

    def _has_slots(self, count: int) -> bool:
        return SLOTS - self._top + len(self._free_slots) >= count

    def _new_slot(self) -> int:
        self._top += 1
        return self._top - 1

    def _take(self, nbytes: int) -> Block | None:
        """Return a new block; None if there is no room, which is logged once."""
        self._reclaim()
        offset = self._blocks.allocate(nbytes)
        if offset is None:
            self._end_loans_of_dead_borrowers()
            offset = self._blocks.allocate(nbytes)
        if offset is None:
            self._warn()
            return None
        return Block(offset, nbytes)

    def _reclaim(self) -> None:
        """Reclaim the loans that borrowers have released, and values that are gone."""
        while self._released:
            for block in self._released.popleft():
                self._drop(block)
        slot = -1
        while (slot := self._map.find(_RELEASED, slot + 1, self._top)) >= 0:
            self._end_loan(slot)

    def _end_loan(self, slot: int) -> None:
        self._map[slot] = 0
        if (lent := self._lent.pop(slot, None)) is not None:
            self._free_slots.append(slot)
            self._drop(lent[0])

    def _end_loans_of_dead_borrowers(self) -> None:
        borrowers = {id(borrower): borrower for _, borrower in self._lent.values()}
        dead = {key for key, borrower in borrowers.items() if not borrower.alive()}
        for slot in [slot for slot, (_, borrower) in self._lent.items() if id(borrower) in dead]:
            self._end_loan(slot)

    def _drop(self, block: Block) -> None:
        block.holders -= 1
        if block.holders == 0:
            self._blocks.free(block.offset)
            self._has_untrimmed = True

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "the memory for large values is full (%s, lent to processes that keep the arrays "
                "they received): values travel by socket now, which is slower. Copy arrays that "
                "you keep (array.copy()), or allow more memory: %s=%dGiB",
                format_bytes(self._nbytes),
                VARIABLE,
                max(1, self._nbytes >> 29),
            )


class Lendable:
    """A value in the arena of this process, as long as this object exists.

    After that it is not lent again, and its memory is free when all loans have ended.

    blocks   its own block first, if it `has_own`, then the blocks of refs among its buffers
    pieces   index of the block, start within it, length
    """

    __slots__ = ("_arena", "_has_own", "_has_payload", "_pieces", "blocks")

    def __init__(
        self,
        arena: Arena,
        blocks: list[Block],
        has_own: bool,
        pieces: list[tuple[int, int, int]],
        has_payload: bool,
    ) -> None:
        self._arena = arena
        self.blocks = blocks
        self._has_own = has_own
        self._pieces = pieces
        self._has_payload = has_payload

    def lend(self, borrower: Borrower, private: bool = True) -> Loan | None:
        """Lend it to one borrower; return None if there are too many loans.

        Without `private` the borrower writes into the block itself, so it must be the only one.
        """
        slots = self._arena.take_slots(self.blocks, borrower)
        if slots is None:
            return None
        lent = []
        for i, (slot, block) in enumerate(zip(slots, self.blocks, strict=True)):
            own = i == 0 and self._has_own and not private
            lent.append((slot, TABLE_BYTES + block.offset, block.nbytes, not own))
        return Loan(self._arena.address.lender, lent, self._pieces, self._has_payload)

    def is_lent(self, loan: Loan) -> bool:
        """Tell whether the borrower of a reserved value has it, or may receive it yet."""
        (slot, *_), *_ = loan.blocks
        return self._arena.is_taken(slot, self.blocks)

    @property
    def address(self) -> ArenaAddress:
        return self._arena.address

    @property
    def memory(self) -> memoryview:
        """The memory of a reserved value, which is valid as long as the value."""
        (block,) = self.blocks
        return self._arena.memory_of(block)

    def pin(self) -> tuple[memoryview | None, list[memoryview]]:
        """Return the pickle, if it is in the arena, and buffers that `Arena.place` recognizes.

        They keep it.  A buffer that is being sent, or that a call holds for a retry, outlives the
        ref.
        """
        views = [self._arena.pin(self, *piece) for piece in self._pieces]
        return (views[0], views[1:]) if self._has_payload else (None, views)

    def __del__(self) -> None:
        self._arena.forget(self.blocks)


def _let_go(value: Lendable) -> None:
    """Called when nobody reads a part of it: the caller drops its reference."""


_ours: Arena | None = None
_creating = RLock()


def ours() -> Arena | None:
    """Return the arena of this process; None if large values go by socket."""
    global _ours
    if _ours is None and SUPPORTED:
        with _creating:
            try:
                nbytes = size_wanted()
            except ValueError as error:
                nbytes = default_bytes()
                if _ours is None:
                    log.warning("%s. Using half of this machine's memory", error)
            if nbytes and _ours is None:
                try:
                    _ours = Arena(nbytes)
                except OSError as error:  # no descriptors left, or the kernel does not allow it
                    log.warning("no memory for large values (%s): they travel by socket", error)
    return _ours


def size_wanted() -> int:
    """Return how much memory a process may lend.  Raises ValueError if VARIABLE is wrong."""
    text = os.environ.get(VARIABLE, "")
    try:
        return parse_memory(text) if text else default_bytes()
    except ValueError:
        raise ValueError(
            f"{VARIABLE}={text!r} is not an amount of memory: write a number of bytes, "
            '"512MB", "2GiB", or 0 for none'
        ) from None


@cache
def default_bytes() -> int:
    """Return half of this machine's memory.

    It takes 0.6 ms to find out, so a zygote does that for its actors.
    """
    return this_machine.memory() // 2


def file_name(pid: int) -> str:
    """Return the name of a process's arena in its own /proc and that of its borrowers."""
    return f"remotely-{pid}"


def tidy() -> None:
    """Tidy the arena of this process, if it has one; called each second."""
    if _ours is not None:
        _ours.tidy()


def trim() -> None:
    """Trim the arena of this process, if it has one; called when it will not send for a while."""
    if _ours is not None:
        _ours.trim()


def _after_fork() -> None:
    """In a child: give up the arena, which is the parent's."""
    global _ours, _creating
    _ours, _creating = None, RLock()


os.register_at_fork(after_in_child=_after_fork)
