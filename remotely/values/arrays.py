"""How NumPy arrays and PyTorch tensors are pickled: their memory travels out of band, uncopied.

Neither numpy nor torch is imported here, except by a tensor that arrives.
"""

import pickle
import sys
from collections.abc import Callable
from typing import Any

# A smaller buffer is copied into the payload.  A frame of its own costs 6 microseconds more on its
# way (its encryption, its bookkeeping); the copies cost as much only from 16 KiB up.
SMALL_BUFFER_BYTES = 8192

REDUCERS: dict[type, Callable[[Any], Any]] = {}


def learn_types() -> None:
    """Enter the exact types of arrays and tensors, once their modules are loaded."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if (array := getattr(numpy, "ndarray", None)) is not None:
        REDUCERS[array] = _reduce_array
    # Another thread may be in the middle of importing torch.
    if (parameter := getattr(getattr(torch, "nn", None), "Parameter", None)) is not None:
        REDUCERS[sys.modules["torch"].Tensor] = REDUCERS[parameter] = _reduce_tensor


_NUMBERS = "biufc"  # kinds whose memory may be had as a buffer, and whose name says all


class _Writable:
    """The memory of a read-only array as if it were writable; nobody here writes to it.

    Pickle marks a read-only buffer as such, and it would arrive as a read-only array.  What was
    read-only here is no business of the copy over there.
    """

    def __init__(self, array: Any) -> None:
        self.array = array  # keeps the memory
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (array.nbytes,),
            "data": (address, False),
        }


def _reduce_array(array: Any) -> Any:
    """Send numbers as their memory and shape; leave what else there is to numpy.

    numpy itself would rebuild each array by four Python calls, send strided ones in band, and
    read-only ones as such.
    """
    flags = array.flags
    if array.dtype.hasobject:
        return NotImplemented
    if not flags.forc or (not flags.writeable and array.nbytes < SMALL_BUFFER_BYTES):
        array = array.copy("A")  # in its order, if it has one
        flags = array.flags
    numpy = sys.modules["numpy"]
    order = "C" if flags.c_contiguous else "F"
    if not flags.writeable:
        array = numpy.asarray(_Writable(array)).view(array.dtype).reshape(array.shape, order=order)
    if array.dtype.kind not in _NUMBERS:
        return array.__reduce_ex__(5)
    buffer = pickle.PickleBuffer(array)
    return numpy.ndarray, (array.shape, array.dtype.str, buffer, 0, None, order)


def _reduce_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.__dict__  # attributes of the user's
        or tensor._backward_hooks
    ):
        return NotImplemented
    values = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # As bytes, because numpy knows no bfloat16; flat, because a scalar has no bytes to view.
    flat = values.reshape(-1).view(torch.uint8).numpy()
    is_parameter = type(tensor) is torch.nn.Parameter
    shape = tuple(tensor.shape)
    arguments = (pickle.PickleBuffer(flat), tensor.dtype, shape, tensor.requires_grad, is_parameter)
    return _tensor_from, arguments


def _tensor_from(
    buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool
) -> Any:
    """Rebuild a tensor on its buffer.

    It is copied if the buffer is read-only, since torch knows no read-only tensors and a write
    would reach every other reader; and if it starts between two elements, which torch's kernels
    do not expect.
    """
    import numpy  # noqa: ICN001, PLC0415 - not needed by who never meets a tensor
    import torch  # noqa: PLC0415 - `remotely` never imports torch unless a tensor arrives

    array = numpy.frombuffer(buffer, numpy.uint8)
    address, read_only = array.__array_interface__["data"]
    if read_only or address % 8:
        array = array.copy()
    tensor = torch.from_numpy(array).view(dtype).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)
