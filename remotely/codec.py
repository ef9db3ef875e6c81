"""Values to bytes and back.  The only place that unpickles; only admitted peers reach it.

Pickle protocol 5: the structure in one piece, large buffers beside it, so that an array is not
copied into a pickle.  Plain pickle first, since it is the fastest; cloudpickle, for the whole value,
where the value holds what plain pickle would only name: a function of the user's script, a lambda.

A torch tensor on the CPU travels as its array, without torch being imported here.  Tensors that
share storage arrive with a storage each.
"""

import io
import pickle
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle

from remotely.by_value import travels_by_value
from remotely.errors import NotPicklable

IN_BAND_BYTES = 4096  # a frame of its own costs more than copying so much
SEARCH_STEPS = 2000  # how far to look for what does not pickle
PROTOCOL = 5

Buffer = bytes | memoryview


class Encoded(NamedTuple):
    """A value as bytes: the pickle, and its large buffers, flat."""

    payload: bytes
    buffers: list[Buffer]


def encode(value: object, what: str = "the value", *, in_band: bool = False) -> Encoded:
    """Pickle a value.  Raises NotPicklable, which names the part of `what` that cannot be sent."""
    buffers: list[Buffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        flat = buffer.raw()
        if in_band or flat.nbytes < IN_BAND_BYTES:
            return True
        buffers.append(flat)
        return False

    for pickler in (_Plain, _ByValue):
        file = io.BytesIO()
        try:
            pickler(file, PROTOCOL, buffer_callback=keep).dump(value)
            return Encoded(file.getvalue(), buffers)
        except RecursionError:
            raise NotPicklable(f"{what} is nested too deeply to be sent") from None
        except Exception as error:  # whatever a user's __reduce__ may raise
            failure = error
            buffers.clear()
    path, culprit = find_unpicklable(value, what)
    raise NotPicklable(
        f"{path} cannot be sent: {type(culprit).__module__}.{type(culprit).__qualname__} does not "
        f"pickle ({failure}); leave it out, or make it over there"
    ) from None


def decode(payload: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Unpickle a value that an admitted peer sent.  This may run any code of that peer's."""
    return pickle.loads(payload, buffers=buffers)


def parts(encoded: Encoded) -> tuple[object, ...]:
    """Return an encoded value as arguments of `decode_parts`, to travel within another value."""
    return encoded.payload, *(pickle.PickleBuffer(buffer) for buffer in encoded.buffers)


def decode_parts(payload: Buffer, *buffers: Buffer) -> Any:
    """Return the value of `parts`; arrays in it may be read-only."""
    return decode(payload, buffers)


def find_unpicklable(value: object, path: str) -> tuple[str, object]:
    """Return the path and the object deepest inside of `value` that does not pickle by itself."""
    steps = SEARCH_STEPS
    seen: set[int] = set()
    descend = True
    while descend:
        descend = False
        seen.add(id(value))
        for name, inner in _inside(value):
            steps -= 1
            if steps > 0 and id(inner) not in seen and not _pickles(inner):
                path, value, descend = path + name, inner, True
                break
    return path, value


class _Plain(pickle.Pickler):
    """Fast; gives up at the first thing that has to travel by value."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            if travels_by_value(obj.__module__):
                raise pickle.PicklingError("travels by value")
            return NotImplemented
        return _reduce_tensor(obj)


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends functions and classes of the user's script with their code."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType):
            module = sys.modules.get(obj.__module__)
            if module is not None and obj.__module__ != "__main__":
                if travels_by_value(obj.__module__):
                    cloudpickle.register_pickle_by_value(module)
        reduced = _reduce_tensor(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _reduce_tensor(obj: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or type(obj) not in (torch.Tensor, torch.nn.Parameter):
        return NotImplemented
    if obj.device.type != "cpu" or obj.layout is not torch.strided or obj.is_quantized:
        return NotImplemented
    if obj._backward_hooks or (obj.grad_fn is not None):
        return NotImplemented
    flat = obj.detach().contiguous().view(-1).view(torch.uint8).numpy() if obj.numel() else None
    is_parameter = type(obj) is torch.nn.Parameter
    name = str(obj.dtype).removeprefix("torch.")
    return _tensor, (flat, name, tuple(obj.shape), obj.requires_grad, is_parameter)


def _tensor(flat: Any, dtype: str, shape: tuple[int, ...], grad: bool, is_parameter: bool) -> Any:
    import torch  # noqa: PLC0415 - the value is a tensor, so whoever wants it has torch

    kind = getattr(torch, dtype)
    if flat is None:
        tensor = torch.empty(shape, dtype=kind)
    else:
        if not flat.flags.writeable:
            flat = flat.copy()  # torch knows no read-only tensors
        tensor = torch.from_numpy(flat).view(kind).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return tensor.requires_grad_(grad)


def _pickles(value: object) -> bool:
    try:
        _ByValue(io.BytesIO(), PROTOCOL, buffer_callback=lambda _: False).dump(value)
    except Exception:
        return False
    return True


def _inside(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a value is made of, with what its name would look like in source."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (("{...}", inner) for inner in value)
    else:
        if isinstance(value, FunctionType):
            names = value.__code__.co_freevars
            cells = value.__closure__ or ()
            yield from zip((f".{name}" for name in names), map(_contents, cells), strict=False)
            used = (n for n in value.__code__.co_names if n in value.__globals__)
            yield from ((f".{name}", value.__globals__[name]) for name in used)
        members = getattr(value, "__dict__", {})
        yield from ((f".{name}", inner) for name, inner in list(members.items()))


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


