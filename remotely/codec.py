"""Values to bytes and back: pickle protocol 5, buffers out of band.

`decode` is the only place of the code base that unpickles.  It runs whatever the pickle says, so
it is reached by authenticated peers alone, and never in the master.

Three picklers are tried, each slower and more willing than the one before.

    plain          pickle itself, in C; most calls need no more.  It gives up at the first class or
                   function that must travel by value (see by_value.py)
    by value       cloudpickle: lambdas, local classes, the script and the modules around it
    by reference   the same, but of modules with a file the names alone.  For modules that hold
                   what cannot be sent (a lock, a connection) and can be imported over there after
                   all: on this machine, on a shared disk, or because `ship` sent them

    value                          arrives
    numpy array                    equal, with its dtype and order; writable, unless the buffers
                                   that `decode` is given are read-only
    torch tensor, CPU and dense    equal, contiguous; two that share storage arrive as copies,
                                   though the same tensor twice (tied weights) stays one
    any other tensor               as torch itself pickles it
    a module of the script         a copy, with its classes, functions and globals

Neither numpy nor torch is imported here, but by the values themselves where they arrive.
"""

import pickle
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from remotely.by_value import travels_by_value
from remotely.errors import NotPicklable

# A smaller buffer is copied into the payload.  A frame of its own costs 6 microseconds more on its
# way (its encryption, its bookkeeping); the copies cost as much only from 16 KiB up.
SMALL_BUFFER_BYTES = 8192

# A message has a bound of frames; buffers beyond it are copied into the payload too.
MAX_BUFFERS = 4000

# `find_unpicklable` looks no deeper (where something is nested without end, much less deep, since
# nothing in there is the culprit), and shows no longer keys.
_MAX_DEPTH = 40
_MAX_DEPTH_OF_ENDLESS = 3
_MAX_KEY_LETTERS = 40


class Encoded(NamedTuple):
    """A pickle, in pieces, and the buffers that travel beside it, flat and contiguous.

    The buffers are those of the value itself: whoever changes it before they are sent, changes
    what is sent.  So is a piece that is a large `bytes`.
    """

    pieces: Sequence[bytes]
    buffers: Sequence[memoryview]

    @property
    def payload(self) -> bytes:
        """The pickle in one piece."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    @property
    def nbytes(self) -> int:
        if not self.buffers and len(self.pieces) == 1:
            return len(self.pieces[0])
        return sum(map(len, self.pieces)) + sum(buffer.nbytes for buffer in self.buffers)


NOTHING = Encoded((), ())


def encode(
    value: object, what: str | tuple[str, ...] = "the value", *, in_band: bool = False
) -> Encoded:
    """Pickle a value.  Raises NotPicklable, which names the part that cannot be.

    `what` names the value in that message; a tuple of names, the items of a tuple.  `in_band`
    puts every buffer into the payload, for where only one piece can go.
    """
    if type(value) in _ATOMS:
        return Encoded((pickle.dumps(value, 5),), ())
    for pickler in (_PlainPickler, _ByValuePickler):
        try:
            return _encode(pickler, value, in_band)
        except Exception:  # a user's __reduce__ may raise anything; the last pickler tells
            continue
    try:
        return _encode(_ByReferencePickler, value, in_band)
    except Exception as error:
        raise NotPicklable(_why_not(value, what, error)) from error


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], method: str) -> Encoded:
    """Pickle the arguments of a call, as `encode((args, kwargs))` does, most of them faster."""
    if not kwargs:
        for argument in args:
            if type(argument) not in _ATOMS:
                break
        else:
            return Encoded((pickle.dumps((args, kwargs), 5),), ())
    return encode((args, kwargs), (f"{method}: args", f"{method}: kwargs"))


def decode(payload: bytes | memoryview, buffers: Sequence[object] = ()) -> Any:
    """Unpickle what `encode` made.  The buffers are not copied: arrays are views of them."""
    return pickle.loads(payload, buffers=buffers)  # noqa: S301 - the one site; peers are authenticated


def parts(
    payload: bytes | memoryview, buffers: Sequence[memoryview]
) -> tuple[bytes | pickle.PickleBuffer, list[pickle.PickleBuffer]]:
    """Return the arguments of `decode_parts`, for something that pickles as what it encoded."""
    head = payload if isinstance(payload, bytes) else pickle.PickleBuffer(payload)
    return head, [pickle.PickleBuffer(buffer) for buffer in buffers]


def decode_parts(payload: bytes | memoryview, buffers: Sequence[object]) -> object:
    """Unpickle a value that was pickled within another one."""
    return decode(payload, buffers)


# Pickling these needs no pickler of ours: they hold nothing, and have no buffers.
_ATOMS = frozenset((type(None), bool, int, float, complex, str))


# --- the picklers --------------------------------------------------------------------------------


class _ByValue(Exception):
    """Plain pickle has met a class or function that must travel by value."""


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for all but the plainest objects."""
        reducer = _REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        if isinstance(obj, (type, FunctionType)):
            module: object = obj.__module__
            if not isinstance(module, str) or travels_by_value(module):
                raise _ByValue
        return NotImplemented


class _ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    def reducer_override(self, obj: Any) -> Any:
        reducer = _REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        if isinstance(obj, ModuleType):
            if travels_by_value(obj.__name__):
                return _reduce_module(obj)
        elif isinstance(obj, (type, FunctionType)):
            _register(obj.__module__)
        return super().reducer_override(obj)


class _ByReferencePickler(_ByValuePickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, ModuleType):
            if obj.__name__ != "__main__" and getattr(obj, "__file__", None):
                return import_module, (obj.__name__,)
        elif isinstance(obj, (type, FunctionType)) and _is_importable(obj):
            return NotImplemented
        return super().reducer_override(obj)


def _encode(pickler: type[pickle.Pickler], value: object, in_band: bool = False) -> Encoded:
    if len(_REDUCERS) < 3 and (not _REDUCERS or "torch" in sys.modules):
        _learn_types()
    pieces: list[bytes] = []
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if in_band or view.nbytes < SMALL_BUFFER_BYTES or len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(view)
        return False

    pickler(_Pieces(pieces.append), protocol=5, buffer_callback=keep).dump(value)
    return Encoded(pieces, buffers)


class _Pieces:
    """A file that keeps what is written as it is: a large `bytes` of the value is not copied."""

    __slots__ = ("write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write


def _register(module_name: object) -> None:
    """Tell cloudpickle of a module that travels by value, when it is first met."""
    if isinstance(module_name, str) and module_name != "__main__":
        module = sys.modules.get(module_name)
        if isinstance(module, ModuleType) and travels_by_value(module_name):
            cloudpickle.register_pickle_by_value(module)


def _is_importable(obj: type | FunctionType) -> bool:
    """Return whether its module is a file, and has it under its name."""
    found: Any = sys.modules.get(obj.__module__)
    if obj.__module__ == "__main__" or not getattr(found, "__file__", None):
        return False
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


# --- modules by value -----------------------------------------------------------------------------

# How a module was found here means nothing over there.
_MODULE_FINDING = ("__builtins__", "__cached__", "__loader__", "__spec__")


def _reduce_module(module: ModuleType) -> tuple[Any, ...]:
    """As cloudpickle does, but in two steps, so that a module may refer to itself."""
    state = {k: v for k, v in vars(module).items() if k not in _MODULE_FINDING}
    return ModuleType, (module.__name__,), state


# --- arrays and tensors ---------------------------------------------------------------------------

_REDUCERS: dict[type, Callable[[Any], Any]] = {}


def _learn_types() -> None:
    """Enter the exact types of arrays and tensors, once their modules are loaded."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if (array := getattr(numpy, "ndarray", None)) is not None:
        _REDUCERS[array] = _reduce_array
    # Another thread may be in the middle of importing torch.
    if (parameter := getattr(getattr(torch, "nn", None), "Parameter", None)) is not None:
        _REDUCERS[sys.modules["torch"].Tensor] = _REDUCERS[parameter] = _reduce_tensor


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
        array = array.copy()
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


# --- which part cannot be pickled -----------------------------------------------------------------


class Culprit(NamedTuple):
    path: str
    type_name: str
    error: Exception


def find_unpicklable(value: object, path: str) -> Culprit | None:
    """Return the innermost part of a value that does not pickle; None if all of it does.

    It pickles halves of halves to find the part, so its work is a few times that of pickling the
    value once, a level.
    """
    error = _error_of(value)
    if error is None:
        return None
    for _ in range(_MAX_DEPTH_OF_ENDLESS if _is_endless(error) else _MAX_DEPTH):
        try:
            found = _first_bad(_children(value, path))
        except Exception:  # a user's object may raise at the least touch
            break
        if found is None:
            break
        path, value, error = found
    return Culprit(path, _type_name(value), error)


def _why_not(value: object, what: str | tuple[str, ...], error: Exception) -> str:
    if isinstance(what, tuple) and isinstance(value, tuple) and len(what) == len(value):
        root, named = "", list(zip(what, value, strict=True))
    else:
        root = what if isinstance(what, str) else ", ".join(what)
        named = [("" if " " in root else root, value)]
    culprit = Culprit("", _type_name(value), error)
    for name, part in named:
        if (found := find_unpicklable(part, name)) is not None:
            culprit = found
            break
    reason = f"{type(culprit.error).__name__}: {_shown(culprit.error)}"
    if _is_endless(culprit.error):
        reason = "it is nested too deeply, or without end"
    if not culprit.path:
        where = root or "the value"
    elif root and " " in root:
        where = f"{culprit.path} in {root}"
    else:
        where = culprit.path
    return (
        f"{where} cannot be sent: it is a {culprit.type_name}, which does not pickle ({reason}); "
        "leave it out (`__getstate__`), or make it over there"
    )


def _is_endless(error: Exception) -> bool:
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _error_of(value: object) -> Exception | None:
    try:
        _encode(_ByReferencePickler, value)
    except Exception as error:
        return error
    return None


def _first_bad(children: list[tuple[str, Any]]) -> tuple[str, Any, Exception] | None:
    """Return the first child that does not pickle by itself, by halving."""
    low, high = 0, len(children)
    if _error_of([child for _, child in children]) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _error_of([child for _, child in children[low:middle]]) is not None:
            high = middle
        else:
            low = middle
    path, child = children[low]
    error = _error_of(child)
    return None if error is None else (path, child, error)


def _children(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts of a value that pickle would go into, each with its path."""
    if type(value) is dict:
        items = [(f"{path}[{_key(k)}]", v) for k, v in value.items()]
        return [*items, *((f"the key {_key(k)} of {path or 'it'}", k) for k in value)]
    if type(value) in (list, tuple):
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    if type(value) in (set, frozenset):
        return [(f"an item of {path or 'it'}", item) for item in value]
    if isinstance(value, FunctionType):
        return _function_children(value, path)
    if isinstance(value, type):
        members = [(k, v) for k, v in vars(value).items() if k not in ("__dict__", "__weakref__")]
        return [(f"{path}.{name}", member) for name, member in members]
    if isinstance(value, (staticmethod, classmethod)):
        return [(path, value.__func__)]
    return _state_children(value, path)


def _function_children(function: FunctionType, path: str) -> list[tuple[str, Any]]:
    """Return what a function brings along: the variables that it closes over, and its globals."""
    name = path or function.__name__
    code = function.__code__
    found: list[tuple[str, Any]] = []
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            found.append((f"{variable!r} (used in {name})", cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    names = [n for n in code.co_names if n in function.__globals__]
    found += [(f"the global {n!r} (used in {name})", function.__globals__[n]) for n in names]
    found += [(f"{path}.{n}", v) for n, v in vars(function).items()]
    defaults = function.__defaults__ or ()
    return found + [(f"a default of {name}", default) for default in defaults]


def _state_children(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts of an object as its own `__reduce_ex__` tells them."""
    try:
        reduced = value.__reduce_ex__(5)
    except Exception:
        return []
    if not isinstance(reduced, tuple):
        return []
    parts_told: list[Any] = [*reduced, None, None, None, None]
    arguments, state, items, pairs = parts_told[1:5]
    found: list[tuple[str, Any]] = []
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict):
            found += [(f"{path}.{name}", part) for name, part in attributes.items()]
        elif attributes is not None:
            found.append((f"the state of {path or 'it'}", attributes))
    if items is not None:
        found += [(f"{path}[{i}]", item) for i, item in enumerate(items)]
    if pairs is not None:
        found += [(f"{path}[{_key(k)}]", v) for k, v in pairs]
    for i, argument in enumerate(arguments or ()):
        if argument is not type(value):
            found.append((f"{path}.__reduce_ex__(5)[1][{i}]", argument))
    return found


def _key(key: object) -> str:
    """Return a dict's key as in its path.  Only plain keys: a repr may be anything."""
    if type(key) in (str, int, bool, float, bytes):
        text = repr(key)
        return text if len(text) <= _MAX_KEY_LETTERS else f"{text[:_MAX_KEY_LETTERS]}…"
    return f"<{_type_name(key)}>"


def _type_name(value: object) -> str:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name.removeprefix("builtins.")


def _shown(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:
        return "its message cannot be shown"
    return text if len(text) <= 300 else f"{text[:300]}…"
