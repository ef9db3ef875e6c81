"""Shared memory that travels in values: pickled as its address, opened by whoever receives it.

The memory is a memory file (memory_file.py): it has no name in any file system, and is freed with
the last process that holds it, even if processes are killed.  Its pickle is its address in the
sender, `/proc/<pid>/fd/<fd>`.  The receiver opens that once, holds the memory itself from then on,
and sends its own address if it passes the memory on.  So its creator may end.

Between sending and opening, the sender keeps the memory (in_transit.py).  The receiver acknowledges
the opening without a message: it writes the receipt of the pickle into the first page of the
memory.  If the sender is killed in between, the memory is lost, and the receiver raises NotShared.

    page 0     the receipts
    the rest   what its owner makes of it: an array (shared_array.py), versions (versions.py)
"""

import mmap
import os
import secrets
import struct
from typing import NamedTuple

from remotely.errors import NotShared
from remotely.machine import memory_file, this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.values import in_transit

BEGIN = mmap.PAGESIZE  # of what is not receipts
_RECEIPT = struct.Struct("@Q")
_RECEIPTS = BEGIN // _RECEIPT.size


class MemoryAddress(NamedTuple):
    """The address at which the memory can be opened.

    token    identifies the memory, since the descriptor may belong to another file by now
    receipt  identifies this pickle
    """

    host: str
    machine: str
    pid: int
    fd: int
    token: str
    receipt: int

    def is_here(self) -> bool:
        """Return whether it is memory of this machine."""
        return self.host == this_machine.identity()


class SharedMemory:
    """Memory of one kind, mapped up to `nbytes` beside the page of receipts.

    `file` is None on a system without memory files: then it is memory of this process alone.
    """

    def __init__(self, kind: str, nbytes: int, *, grows: bool = False) -> None:
        """Create it, all zeros; with `grows`, its owner may extend the file."""
        self.kind, self.token = kind, secrets.token_hex(16)
        fd = -1
        if memory_file.SUPPORTED:
            fd = memory_file.create(self._name, _whole(nbytes), grows=grows)
        self._hold(fd, nbytes)

    @classmethod
    def opened(cls, kind: str, nbytes: int, address: MemoryAddress, what: str) -> "SharedMemory":
        """Open the memory at an address; `what` it is, for the error.  Raises NotShared."""
        memory = cls.__new__(cls)
        memory.kind, memory.token = kind, address.token
        fd = memory_file.open_of(address.pid, address.fd, memory._name)
        if fd is None:
            raise NotShared(
                f"the memory of {what} is gone: process {address.pid} of {address.machine}, which "
                "sent it, ended or released it before it arrived. Keep it in the sending process "
                "until the receiver has it"
            )
        memory._hold(fd, nbytes)
        return memory

    def _hold(self, fd: int, nbytes: int) -> None:
        self.file = OwnedFd(fd) if fd >= 0 else None
        self.map = mmap.mmap(fd, _whole(nbytes))
        in_transit.is_used = True

    @property
    def _name(self) -> str:
        return f"remotely-{self.kind}-{self.token}"

    def address(self) -> MemoryAddress:
        """Return an address for a pickle, which is kept in transit.  Raises NotShared."""
        if self.file is None:
            raise NotShared("this system does not support memory shared by file descriptor (memfd)")
        receipt = secrets.randbits(63) | 1
        in_transit.note([_Sent(self, receipt)])
        machine = this_machine.identity(), this_machine.machine_name()
        return MemoryAddress(*machine, os.getpid(), self.file.fd, self.token, receipt)

    def acknowledge(self, address: MemoryAddress) -> None:
        """Tell the sender that the pickle with this address has been read."""
        _Sent(self, address.receipt).acknowledge()


class _Sent:
    """The memory in one pickle.  If another receipt overwrites its own, it is only kept longer."""

    def __init__(self, memory: SharedMemory, receipt: int) -> None:
        self._memory = memory
        self._receipt = receipt
        self._at = receipt % _RECEIPTS * _RECEIPT.size

    def has_arrived(self) -> bool:
        found: int = _RECEIPT.unpack_from(self._memory.map, self._at)[0]
        return found == self._receipt

    def acknowledge(self) -> None:
        _RECEIPT.pack_into(self._memory.map, self._at, self._receipt)


os.register_at_fork(after_in_child=in_transit.forget)


def _whole(nbytes: int) -> int:
    """Return the size of the file: whole pages, and one for the receipts."""
    return BEGIN + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
