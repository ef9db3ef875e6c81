"""Writable memory shared by processes of one host: an array that is pickled as its address.

How the memory travels, and how long it lives, is in shared_memory.py.
"""

import math
import operator
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remotely.errors import NotShared
from remotely.machine import this_machine
from remotely.protocol.resources import format_bytes
from remotely.values import shared_memory
from remotely.values.shared_memory import MemoryAddress, SharedMemory

if TYPE_CHECKING:
    import numpy as np

KIND = "shared"


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
        self._hold(SharedMemory(KIND, nbytes), lengths, kind)

    def _hold(self, memory: SharedMemory, shape: tuple[int, ...], dtype: Any) -> None:
        """Use this memory, which is mapped."""
        import numpy as np  # noqa: PLC0415 - only processes with arrays import numpy

        self._memory = memory
        self.array = np.ndarray(shape, dtype, memory.map, shared_memory.BEGIN)
        self.shape, self.dtype, self.nbytes = self.array.shape, self.array.dtype, self.array.nbytes
        self._made_of = shape, dtype
        _held[memory.token] = self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "np.ndarray[Any, Any]":
        if dtype is not None and self.dtype != dtype:
            if copy is False:
                raise ValueError(f"a {self.dtype} array cannot be seen as {dtype} without a copy")
            return self.array.astype(dtype)
        return self.array.copy() if copy else self.array

    def __repr__(self) -> str:
        return f"SharedArray({self.shape}, {str(self.dtype)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self._memory.address(), *self._made_of)


def _receive(address: MemoryAddress, shape: tuple[int, ...], dtype: Any) -> SharedArray:
    """Unpickle: open the memory, unless this process holds it already."""
    if not address.is_here():
        raise NotShared(
            f"a SharedArray cannot leave its machine: this one is memory of {address.machine}, and "
            f"arrived in a process of {this_machine.machine_name()} that cannot open it. "
            "Pass a copy of its array, or place the actor there"
        )
    if (shared := _held.get(address.token)) is None:
        nbytes = math.prod(shape) * dtype.itemsize
        what = f"a SharedArray of shape {shape}"
        shared = SharedArray.__new__(SharedArray)
        shared._hold(SharedMemory.opened(KIND, nbytes, address, what), shape, dtype)
    shared._memory.acknowledge(address)
    return shared


_held: weakref.WeakValueDictionary[str, SharedArray] = weakref.WeakValueDictionary()  # by token


# --- new memory -----------------------------------------------------------------------------------


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
