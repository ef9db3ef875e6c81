"""Writable memory shared by processes of one host: an array that is pickled as its address.

The memory is a memfd, like the arena (arena.py): it has no name in any file system, and is freed
with the last process that holds it, even if processes are killed.  A SharedArray is pickled as its
address in the sender, `/proc/<pid>/fd/<fd>`.  The receiver opens that once, holds the memory itself
from then on, and sends its own address if it passes the array on.  So its creator may end.

Between sending and opening, the sender keeps the memory (in_transit.py).  The receiver acknowledges
the opening without a message: it writes the receipt of the pickle into the last page of the memory.
If the sender is killed in between, the memory is lost, and the receiver raises NotShared.
"""

import math
import mmap
import operator
import os
import secrets
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from remotely.errors import NotShared
from remotely.machine import memory_file, this_machine
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol.resources import format_bytes
from remotely.values import in_transit

if TYPE_CHECKING:
    import numpy as np

_RECEIPT = struct.Struct("@Q")
_RECEIPTS = mmap.PAGESIZE // _RECEIPT.size  # in the last page of the memory
_NAME = "remotely-shared-"


class _Address(NamedTuple):
    """The address at which the memory can be opened, and its contents.

    token    identifies the memory, since the descriptor may belong to another file by now
    receipt  identifies this pickle
    """

    host: str
    machine: str
    pid: int
    fd: int
    token: str
    receipt: int
    shape: tuple[int, ...]
    dtype: Any


class SharedArray:
    """Memory that processes of one machine read and write together, as a NumPy array.

    Pass it in calls, constructors and results: the receiver gets the same memory, not a copy.  It
    starts as zeros, and is freed with its last holder.  Writes of two processes are not ordered:
    use a call's reply to signal that a part is written.

    array                 the memory, as a NumPy array; np.asarray(shared) is the same.  Pickled on
                          its own it is copied, like any array
    shape, dtype, nbytes  those of the array

    Raises ValueError or TypeError for a shape or dtype that cannot be shared, and MemoryError for
    more than this machine has.  On another machine, or if the sender was killed before the array
    arrived, the receiver raises NotShared.
    """

    array: "np.ndarray[Any, Any]"

    def __init__(self, shape: int | Sequence[int], dtype: Any = float) -> None:
        kind = _dtype_of(dtype)
        lengths = _shape_of(shape)
        nbytes = math.prod(lengths) * kind.itemsize
        if nbytes > this_machine.memory():
            raise MemoryError(
                f"a SharedArray of shape {lengths} and dtype {kind} takes {format_bytes(nbytes)}, "
                f"and this machine has {format_bytes(this_machine.memory())}"
            )
        token = secrets.token_hex(16)
        fd = memory_file.create(_NAME + token, _room(nbytes)) if memory_file.SUPPORTED else -1
        self._hold(fd, token, lengths, kind)

    def _hold(self, fd: int, token: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Map memory that is open as `fd`; if that is -1, map new private memory."""
        import numpy as np  # noqa: PLC0415 - only processes with arrays import numpy

        self._file = OwnedFd(fd) if fd >= 0 else None
        self._token = token
        self._map = mmap.mmap(fd, _room(math.prod(shape) * dtype.itemsize))
        self.array = np.ndarray(shape, dtype, buffer=self._map)
        self.shape, self.dtype, self.nbytes = self.array.shape, self.array.dtype, self.array.nbytes
        self._made_of = shape, dtype
        _held[token] = self
        in_transit.is_used = True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "np.ndarray[Any, Any]":
        if dtype is not None and self.dtype != dtype:
            if copy is False:
                raise ValueError(f"a {self.dtype} array cannot be seen as {dtype} without a copy")
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __repr__(self) -> str:
        return f"SharedArray({self.shape}, {str(self.dtype)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            raise NotShared("this system does not support memory shared by file descriptor (memfd)")
        receipt = secrets.randbits(63) | 1
        in_transit.note([_Sent(self, receipt)])
        host, machine = this_machine.identity(), this_machine.machine_name()
        address = _Address(
            host, machine, os.getpid(), self._file.fd, self._token, receipt, *self._made_of
        )
        return _receive, tuple(address)


class _Sent:
    """An array in one pickle.  If another receipt overwrites its own, it is only kept longer."""

    def __init__(self, shared: SharedArray, receipt: int) -> None:
        self._shared = shared
        self._receipt = receipt
        self._at = len(shared._map) - mmap.PAGESIZE + receipt % _RECEIPTS * _RECEIPT.size

    def has_arrived(self) -> bool:
        found: int = _RECEIPT.unpack_from(self._shared._map, self._at)[0]
        return found == self._receipt

    def acknowledge(self) -> None:
        _RECEIPT.pack_into(self._shared._map, self._at, self._receipt)


def _receive(*fields: Any) -> SharedArray:
    """Unpickle: open the memory, unless this process holds it already."""
    address = _Address(*fields)
    if address.host != this_machine.identity():
        raise NotShared(
            f"a SharedArray cannot leave its machine: this one is memory of {address.machine}, and "
            f"arrived in a process of {this_machine.machine_name()} that cannot open it. "
            "Pass a copy of its array, or place the actor there"
        )
    if (shared := _held.get(address.token)) is None:
        shared = SharedArray.__new__(SharedArray)
        shared._hold(_open(address), address.token, address.shape, address.dtype)
    _Sent(shared, address.receipt).acknowledge()
    return shared


def _open(address: _Address) -> int:
    fd = memory_file.open_of(address.pid, address.fd, _NAME + address.token)
    if fd is None:
        raise NotShared(
            f"the memory of a SharedArray of shape {address.shape} is gone: process {address.pid} "
            f"of {address.machine}, which sent it, ended or released it before it arrived. Keep "
            "it in the sending process until the receiver has it"
        )
    return fd


_held: weakref.WeakValueDictionary[str, SharedArray] = weakref.WeakValueDictionary()  # by token

os.register_at_fork(after_in_child=in_transit.forget)


# --- new memory -----------------------------------------------------------------------------------


def _room(nbytes: int) -> int:
    """Return the size of the memory: whole pages, and one for the receipts."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE


def _dtype_of(dtype: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - as above

    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise TypeError(f"dtype={dtype!r} is not a NumPy dtype ({error})") from None
    if kind.hasobject:
        raise TypeError(
            f"dtype={dtype!r}: a SharedArray cannot hold Python objects, which belong to one "
            "process. Choose a dtype without objects"
        )
    return kind


def _shape_of(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        lengths = tuple(operator.index(length) for length in lengths)
    except TypeError:
        raise TypeError(f"shape={shape!r} must be an integer or a tuple of integers") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape={shape!r}: lengths must not be negative")
    return lengths
