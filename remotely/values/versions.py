"""Versions of a value in shared memory: one process writes, any number read, and nobody waits.

    page 0       receipts (shared_memory.py)
    HEADER       LATEST: version and slot, one word | BELL and WANTED: futexes | FOLLOWS |
                 the table of slots
    regions      memory of the slots in use: pieces of a value, as `payload.lay_out` arranges them

A slot holds one version.  Who uses it is a lock of the kernel on the byte with its number
(byte_lock.py), so whatever is killed, at whatever moment, has left nothing to clean up:

    the writer   locks a slot exclusively while it writes there.  It has also locked WRITER, as long
                 as it lives, so there is one writer, and readers see that it is gone
    a version    that a process holds locks its slot, shared with others that hold it, by an open
                 file of its own, which the memory of its arrays keeps.  The lock is never taken
                 back: it ends when the last descriptor of that file is closed, by this process and
                 by all that were forked meanwhile and have the arrays too

The writer, step by step:

    1  lock a slot exclusively, that is not the latest, without waiting; else begin a new slot
    2  the slot has version 0: no reader takes it
    3  write its region; a new one, if the value does not fit
    4  the slot has version n
    5  unlock it
    6  LATEST is n in this slot: one aligned word.  From here on the version is published
    7  ring BELL
    8  return the memory of slots that nobody holds and that were not needed for arena.IDLE_S

A reader:

    a  read LATEST: version n is in slot s
    b  lock s, shared.  Refused: back to a
    c  read the version of s.  Not n: close the file, back to a
    d  hold it.  Until the file is closed, 1 does not choose s, so nothing changes there

Each slot goes through these states; transitions that are not in the table cannot occur:

    state     event                                        next
    EMPTY     1                                            WRITING
    FREE      1                                            WRITING
    WRITING   2 to 5                                       FREE, and unlocked
    WRITING   the writer is killed                         FREE, of version 0 or n, and never latest
    FREE      6                                            LATEST
    FREE      8                                            EMPTY
    FREE      a reader that was late at b locks it         FREE, and passed over until c lets go
    LATEST    6, in another slot                           HELD if a reader has it, else FREE
    HELD      its last holder lets go, or is killed        FREE

A reader goes back to a only if LATEST has changed since: the writer locks only what is not LATEST,
and unlocks (5) before it publishes (6).  So it is the writer's progress that sends a reader back,
and a writer that stops or is killed anywhere leaves one that is complete.

If the memory FOLLOWS versions of another machine (following.py), its writer copies them from there.
A reader that looks at version n sets WANTED to n, once, and so asks for the next; and it has the
byte USER locked, shared, as long as it has the memory open, so that the writer can end with the
last of them.

Readers map the regions copy-on-write, because torch has no read-only tensors: what a reader writes
there reaches nobody, and is discarded when the version is let go.

Refused: a table of readers with their processes, in the header (it must be cleaned up after each
kill, by someone who is alive); a lock that readers wait for; a file for each version (a descriptor
to pass for each); a call that says that a version is new.
"""

import ctypes
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from remotely.machine import byte_lock, futex, this_machine
from remotely.machine.living import Living
from remotely.machine.owned_fd import OwnedFd
from remotely.machine.shield import RLock, shield
from remotely.protocol.resources import format_bytes
from remotely.testing import faults
from remotely.values import arena, payload, shared_memory
from remotely.values.blocks import GRANULE, Blocks
from remotely.values.codec import Encoded
from remotely.values.forks import MAP_NORESERVE
from remotely.values.layout import behind
from remotely.values.payload import Unpacked
from remotely.values.shared_memory import MemoryAddress, SharedMemory

SLOTS = 1000  # versions that are held at a time
WRITER, USER = SLOTS, SLOTS + 1  # bytes that are locked
SLICE_S = 0.1  # of sleep, after which the writer's end is noticed

_LATEST, _BELL, _WANTED, _FOLLOWS, _TABLE = 0, 8, 12, 16, 64  # offsets in the header
_SLOT = 4  # words: version, offset and length of its region, number of its layout
HEADER_BYTES = _TABLE + SLOTS * _SLOT * 8
_SPACE = 1 << 46  # that regions may be in; the file is as long as the last of them needs
_WORD = struct.Struct("@Q")
_MASK = 0xFFFFFFFF


class Version(NamedTuple):
    """One version, as long as its memory is in use.

    number   counts from 1
    layout   differs from that of the version before if the structure has changed
    pieces   start and length of the pickle and of each buffer, from `begin` on
    region   the memory: at first where the pieces are, as `_written_pieces` returns it
    """

    number: int
    layout: int
    pieces: list[tuple[int, int]]
    begin: int
    region: memoryview

    @property
    def nbytes(self) -> int:
        """The bytes of the region that are used."""
        start, nbytes = self.pieces[-1]
        return self.begin + start + nbytes

    def unpacked(self, region: memoryview | None = None) -> Unpacked:
        """Return the pickle and its buffers: read-only views; or writable ones of a copy."""
        memory = (self.region.toreadonly() if region is None else region)[self.begin :]
        pickled, *buffers = (memory[start : start + nbytes] for start, nbytes in self.pieces)
        return bytes(pickled), buffers


class Versions(Protocol):
    """The versions of one value, for its writer and its readers."""

    @property
    def number(self) -> int:
        """The number of the latest version."""

    @property
    def held_bytes(self) -> int:
        """The memory of all versions."""

    def has_writer(self) -> bool:
        """Tell whether the process that writes is alive."""

    def is_writer(self) -> bool:
        """Tell whether this process writes."""

    def write(self, encoded: Encoded) -> int:
        """Publish a value, and return its number.  Only for the writer."""

    def read(self) -> Version:
        """Hold the latest version."""

    def sleep(self, seen: int, seconds: float) -> None:
        """Sleep until there may be a newer version than `seen`, for at most SLICE_S."""


# --- the memory -----------------------------------------------------------------------------------


class _Header:
    """The header of the memory, in this process."""

    def __init__(self, memory: SharedMemory) -> None:
        view = memoryview(memory.map)[shared_memory.BEGIN :][:HEADER_BYTES]
        self.words = view.cast("Q")
        word, begin = ctypes.c_uint32.from_buffer, shared_memory.BEGIN
        self.bell = word(memory.map, begin + _BELL)
        self.wanted = word(memory.map, begin + _WANTED)
        self.follows = word(memory.map, begin + _FOLLOWS)

    @property
    def latest(self) -> tuple[int, int]:
        """The latest version, and its slot; (0, 0) before the first."""
        return divmod(self.words[_LATEST], SLOTS)

    def publish(self, number: int, slot: int) -> None:
        self.words[_LATEST] = number * SLOTS + slot  # one aligned word

    def slot(self, slot: int) -> list[int]:
        """Return version, offset, length and layout of a slot."""
        at = _TABLE // 8 + slot * _SLOT
        return self.words[at : at + _SLOT].tolist()

    def region_bytes(self) -> int:
        return sum(self.words[_TABLE // 8 + 2 :: _SLOT].tolist())

    def set_version(self, slot: int, number: int) -> None:
        self.words[_TABLE // 8 + slot * _SLOT] = number

    def set_region(self, slot: int, offset: int, nbytes: int, layout: int) -> None:
        at = _TABLE // 8 + slot * _SLOT + 1
        self.words[at], self.words[at + 1], self.words[at + 2] = offset, nbytes, layout


class MappedVersions:
    """Versions in shared memory; see the module's docstring.  Any thread may use them."""

    def __init__(self, memory: SharedMemory, writes: bool) -> None:
        assert memory.file is not None
        self._memory = memory
        self._file = memory.file
        self._header = _Header(memory)
        self._regions: dict[int, tuple[int, int, mmap.mmap]] = {}  # by slot: offset, length
        self._writer = _Writer(memory.file, self._header) if writes else None
        self._user: OwnedFd | None = None
        if self._header.follows.value and not writes:
            self._user = OwnedFd(_open_again(memory.file))
            byte_lock.try_lock(self._user.fd, USER, exclusive=False)

    @property
    def number(self) -> int:
        number = self._header.latest[0]
        self._ask_after(number)
        return number

    def _ask_after(self, number: int) -> None:
        """Have the next version cross from another machine, as a reader has looked at this one."""
        ahead = (number - self._header.wanted.value) & _MASK
        if self._user is not None and 0 < ahead <= _MASK // 2:  # else another has seen a later one
            self._header.wanted.value = number & _MASK
            futex.wake(self._header.wanted)

    @property
    def held_bytes(self) -> int:
        return self._header.region_bytes()

    def has_writer(self) -> bool:
        return byte_lock.is_locked(self._file.fd, WRITER)

    def is_writer(self) -> bool:
        return self._writer is not None and self._writer.is_here()

    def write(self, encoded: Encoded) -> int:
        assert self._writer is not None
        return self._writer.write(encoded)

    def read(self) -> Version:
        while True:
            number, slot = self._header.latest  # a
            _pass("a")
            lock = OwnedFd(_open_again(self._file))
            if not byte_lock.try_lock(lock.fd, slot, exclusive=False):  # b
                continue
            _pass("b")
            version, offset, nbytes, layout = self._header.slot(slot)
            if version == number:  # c
                break
        self._ask_after(number)
        _pass("c")
        region = self._region(slot, offset, nbytes)  # d
        owner = (ctypes.c_ubyte * nbytes).from_buffer(region)
        owner.copied_on_write = _Held(lock, region)  # type: ignore[attr-defined]
        memory = memoryview(owner).cast("B")
        pieces, begin = _read_pieces(memory)
        _pass("d")
        return Version(number, layout, pieces, begin, memory)

    def sleep(self, seen: int, seconds: float) -> None:
        bell = self._header.bell.value
        if self.number <= seen and seconds > 0:
            futex.wait(self._header.bell, bell, min(seconds, SLICE_S))

    def follow(self) -> "FollowedMemory":
        """Return the writer's side of memory that follows that of another machine."""
        assert self._writer is not None
        self._header.follows.value = 1
        return FollowedMemory(self._file, self._header, self._writer)

    def _region(self, slot: int, offset: int, nbytes: int) -> mmap.mmap:
        """Return the mapping of a slot's region.  Its memory is copied when it is written."""
        found = self._regions.get(slot)
        if found is None or found[:2] != (offset, nbytes):
            flags = mmap.MAP_PRIVATE | MAP_NORESERVE
            mapped = mmap.mmap(self._file.fd, nbytes, flags, offset=offset)
            found = self._regions[slot] = offset, nbytes, mapped
        return found[2]


class _Held:
    """A version that this process holds, until the memory that has this object is gone.

    `is_writable` is set by who makes something writable of it (picklers.py).
    """

    def __init__(self, lock: OwnedFd, region: mmap.mmap) -> None:
        self._lock = lock
        self._region = region
        self.is_writable = False

    def __del__(self, forget: int = getattr(mmap, "MADV_DONTNEED", 0)) -> None:
        if self.is_writable:  # what was written must not hide the next version
            self._region.madvise(forget)
        del self._lock


def _open_again(file: OwnedFd) -> int:
    """Return a descriptor of a description of its own."""
    return os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR | os.O_CLOEXEC)


def _pass(step: object) -> None:
    """Pass a step of the docstring: here tests kill the process."""
    if faults.ON:
        faults.at(f"published.{step}")


# --- the writer -----------------------------------------------------------------------------------


class _Slot:
    """A slot, for the writer.  `region` is None if it has no memory."""

    def __init__(self) -> None:
        self.offset = 0
        self.region: mmap.mmap | None = None
        self.needed_at = 0.0
        self.travelling: object = None  # what the pickle needs (in_transit.py)


class _Writer:
    """What only the writer has.  The lock of WRITER belongs to `_locks`."""

    def __init__(self, file: OwnedFd, header: _Header) -> None:
        self._file = file
        self._header = header
        self._locks: OwnedFd | None = OwnedFd(_open_again(file))
        byte_lock.try_lock(self._locks.fd, WRITER, exclusive=True)
        self._begin = -(-(shared_memory.BEGIN + HEADER_BYTES) // GRANULE) * GRANULE
        self._end = self._begin  # of the file
        self._blocks = Blocks(_SPACE)
        self._slots: list[_Slot] = []
        self._layout: tuple[bytes, list[int]] | None = None  # the pickle and the buffers' lengths
        self._layouts = 0
        self._lock = RLock()
        _writers.add(self)

    def is_here(self) -> bool:
        return self._locks is not None

    def leave(self) -> None:
        """In a forked child: the parent alone writes."""
        if self._locks is not None:
            os.close(self._locks.take())
            self._locks = None

    def write(self, encoded: Encoded) -> int:
        pieces, nbytes = payload.pieces_of(encoded)
        head = _written_pieces(pieces)

        def fill(memory: memoryview) -> None:
            memory[: len(head)] = head
            payload.lay_out(encoded, memory[len(head) :])

        with self._lock:
            number, layout = self._header.latest[0] + 1, self._layout_of(encoded)
            self.publish(number, layout, len(head) + nbytes, fill, encoded.travelling)
            return number

    def publish(
        self,
        number: int,
        layout: int,
        nbytes: int,
        fill: Callable[[memoryview], None],
        travelling: object = None,
    ) -> None:
        """Publish a version whose region `fill` writes.  What it raises publishes nothing."""
        with self._lock:
            before, latest = self._header.latest
            locks = self._locks
            assert locks is not None
            at = self._take(locks.fd, latest if before else None)  # 1
            _pass(1)
            self._header.set_version(at, 0)  # 2
            _pass(2)
            region = self._room(at, nbytes, layout)
            _pass(3)
            with memoryview(region)[:nbytes] as memory:
                fill(memory)  # 3
            slot = self._slots[at]
            slot.travelling, slot.needed_at = travelling, time.monotonic()
            self._header.set_version(at, number)  # 4
            _pass(4)
            byte_lock.unlock(locks.fd, at)  # 5
            _pass(5)
            self._header.publish(number, at)  # 6
            _pass(6)
            self._header.bell.value = number & _MASK  # 7
            futex.wake(self._header.bell)
            _pass(7)
            self._trim(locks.fd, keeps=(at, latest))  # 8
            _pass(8)

    def _layout_of(self, encoded: Encoded) -> int:
        layout = bytes(encoded.payload), [buffer.nbytes for buffer in encoded.buffers]
        if layout != self._layout:
            self._layout = layout
            self._layouts += 1
        return self._layouts

    def _take(self, fd: int, latest: int | None) -> int:
        """Lock a slot that nobody holds: the lowest, so that the others become idle."""
        for at in range(len(self._slots)):
            if at != latest and byte_lock.try_lock(fd, at, exclusive=True):
                return at
        if len(self._slots) == SLOTS:
            raise MemoryError(
                f"{SLOTS} versions are held by readers, and there is no room for another: drop the "
                "arrays of old versions, or read with `latest(copy=True)`"
            )
        self._slots.append(_Slot())
        byte_lock.try_lock(fd, len(self._slots) - 1, exclusive=True)
        return len(self._slots) - 1

    def _room(self, at: int, nbytes: int, layout: int) -> mmap.mmap:
        """Return the region of a locked slot; a new one unless the value fits."""
        slot = self._slots[at]
        if slot.region is None or not nbytes <= len(slot.region) <= 2 * nbytes + GRANULE:
            self._empty(at)
            if nbytes > this_machine.memory():
                raise MemoryError(
                    f"the value takes {format_bytes(nbytes)}, and this machine has "
                    f"{format_bytes(this_machine.memory())}"
                )
            whole = -(-nbytes // GRANULE) * GRANULE
            with shield:  # memory that is taken belongs to a slot
                free = self._blocks.allocate(whole)
                assert free is not None
                try:
                    slot.region = self._map(self._begin + free, whole)
                except OSError:
                    self._blocks.free(free)
                    raise
                slot.offset = self._begin + free
        self._header.set_region(at, slot.offset, len(slot.region), layout)
        return slot.region

    def _map(self, offset: int, nbytes: int) -> mmap.mmap:
        if offset + nbytes > self._end:
            os.ftruncate(self._file.fd, offset + nbytes)
            self._end = offset + nbytes
        return mmap.mmap(self._file.fd, nbytes, offset=offset)

    def _empty(self, at: int) -> None:
        """Return the memory of a locked slot to the operating system."""
        slot = self._slots[at]
        if slot.region is not None:
            with shield:
                self._header.set_region(at, 0, 0, 0)
                slot.region.madvise(mmap.MADV_REMOVE)
                self._blocks.free(slot.offset - self._begin)
                slot.region = slot.travelling = None

    def _trim(self, fd: int, keeps: tuple[int, int]) -> None:
        before = time.monotonic() - arena.IDLE_S
        for at, slot in enumerate(self._slots):
            is_idle = slot.region is not None and slot.needed_at < before and at not in keeps
            if is_idle and byte_lock.try_lock(fd, at, exclusive=True):
                self._header.set_version(at, 0)
                self._empty(at)
                byte_lock.unlock(fd, at)


class FollowedMemory:
    """Memory that follows versions of another machine, for who brings them."""

    def __init__(self, file: OwnedFd, header: _Header, writer: _Writer) -> None:
        self._file = file
        self._header = header
        self.publish = writer.publish
        self.end = writer.leave  # there will be no newer version: readers see no writer

    @property
    def number(self) -> int:
        return self._header.latest[0]

    def has_users(self) -> bool:
        """Tell whether a process has the memory open to read it."""
        return byte_lock.is_locked(self._file.fd, USER, exclusively=False)

    def is_wanted(self, seconds: float) -> bool:
        """Tell whether a reader has looked at the latest version; sleep until one does."""
        if (seen := self._header.wanted.value) != (number := self.number & _MASK):
            futex.wait(self._header.wanted, seen, seconds)
        return self._header.wanted.value == number


def _leave() -> None:
    for writer in _writers.all():
        writer.leave()


os.register_at_fork(after_in_child=_leave)  # before the hook of `Living`, which forgets them
_writers: Living[_Writer] = Living()


# --- where a version is in its region -------------------------------------------------------------


def _written_pieces(pieces: list[tuple[int, int]]) -> bytes:
    """Return the beginning of a region, padded: how many pieces, and where each is."""
    words = struct.pack(
        f"@{1 + 2 * len(pieces)}Q", len(pieces), *(n for pair in pieces for n in pair)
    )
    return words.ljust(behind(len(words), pieces), b"\0")


def _read_pieces(memory: memoryview) -> tuple[list[tuple[int, int]], int]:
    """Return the pieces of a region, and where the first begins."""
    (count,) = _WORD.unpack_from(memory)
    words = struct.unpack_from(f"@{2 * count}Q", memory, _WORD.size)
    pieces = list(zip(words[::2], words[1::2], strict=True))
    return pieces, behind(_WORD.size * (1 + 2 * count), pieces)


# --- without shared memory ------------------------------------------------------------------------


class ProcessVersions:
    """Versions in a process that has no shared memory: macOS and Windows.  They cannot leave it."""

    def __init__(self) -> None:
        self._latest = Version(0, 0, [], 0, memoryview(b""))
        self._newer = threading.Condition()
        self._pid = os.getpid()

    @property
    def number(self) -> int:
        return self._latest.number

    @property
    def held_bytes(self) -> int:
        return self._latest.region.nbytes

    def has_writer(self) -> bool:
        return self.is_writer()

    def is_writer(self) -> bool:
        return self._pid == os.getpid()

    def write(self, encoded: Encoded) -> int:
        pieces, nbytes = payload.pieces_of(encoded)
        memory = memoryview(bytearray(nbytes))
        payload.lay_out(encoded, memory)
        with self._newer:
            before = self._latest
            layout = before.layout + (pieces != before.pieces)
            self._latest = Version(before.number + 1, layout, pieces, 0, memory)
            self._newer.notify_all()
        return self._latest.number

    def read(self) -> Version:
        return self._latest

    def sleep(self, seen: int, seconds: float) -> None:
        with self._newer:
            if self.number <= seen and seconds > 0:
                self._newer.wait(min(seconds, SLICE_S))


KIND = "published"


def new_memory() -> SharedMemory:
    """Return new memory for versions."""
    return SharedMemory(KIND, HEADER_BYTES, grows=True)


def open_memory(address: MemoryAddress) -> SharedMemory:
    """Open memory of versions that another process of this machine has.  Raises NotShared."""
    return SharedMemory.opened(KIND, HEADER_BYTES, address, "a Published")


def new_versions(memory: SharedMemory) -> Versions:
    """Return versions for their writer, in new memory."""
    return ProcessVersions() if memory.file is None else MappedVersions(memory, writes=True)
