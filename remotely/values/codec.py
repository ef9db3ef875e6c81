"""Values to bytes and back: pickle protocol 5, buffers out of band.

`decode` is the only place of the code base that unpickles.  It runs whatever the pickle says, so
it is reached by authenticated peers alone, and never in the master.

Two picklers are tried:

    plain       pickle itself, in C; most calls need no more.  It gives up at the first class or
                function that goes by value (see by_value.py)
    by value    cloudpickle: lambdas, local classes, `__main__`

What is local to a module that can be imported over there (a lambda, a class within a function)
goes by value too, but its globals are those of the module, as they are here.  What is local to
one that cannot takes along the globals that it uses.  Locks and their like among these are made
anew over there, once for each that is here, as running the module again would make them.

    value                          arrives
    numpy array                    equal, with its dtype and order; writable, unless the buffers
                                   that `decode` is given are read-only
    torch tensor, CPU and dense    equal, contiguous; two that share storage arrive as copies,
                                   though the same tensor twice (tied weights) stays one
    any other tensor               as torch itself pickles it
    an exception                   as itself, whatever its class's `__init__` takes (error_copy.py)
    a module made by hand          a copy, with its classes, functions and globals

Neither numpy nor torch is imported here, but by the values themselves where they arrive.
"""

import pickle
import sys
import uuid
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, NewType, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import cloudpickle.cloudpickle

from remotely.errors import NotPicklable
from remotely.values.by_value import Way, way_of
from remotely.values.error_copy import reduce_error
from remotely.values.unpicklable import (
    Pickling,
    UnpicklablePart,
    find_unpicklable_part,
    not_picklable_message,
)

# A smaller buffer is copied into the payload.  A frame of its own costs 6 microseconds more on its
# way (its encryption, its bookkeeping); the copies cost as much only from 16 KiB up.
SMALL_BUFFER_BYTES = 8192

# A message has a bound of frames; buffers beyond it are copied into the payload too.
MAX_BUFFERS = 4000


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
    try:
        return _encode(_PlainPickler, value, in_band)
    except Exception:  # a user's __reduce__ may raise anything; the next pickler tells
        pass
    try:
        return _encode(_ByValuePickler, value, in_band)
    except Exception as error:
        raise NotPicklable(not_picklable_message(value, what, error, _BY_VALUE)) from error


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


_LOOKED_AT = (type, FunctionType, BaseException)
_VALUE = Way.VALUE  # to look a member up takes ten times as long, and is done for each class


class _PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for all but the plainest objects."""
        reducer = _REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        if isinstance(obj, _LOOKED_AT):
            if isinstance(obj, BaseException):
                return reduce_error(obj)
            module: object = obj.__module__
            if not isinstance(module, str) or way_of(module) is _VALUE:
                raise _ByValue
        return NotImplemented


class _ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    """Decides itself what goes by value: what others register with cloudpickle is theirs.

    cloudpickle takes whatever can be imported here for importable over there.
    """

    def reducer_override(self, obj: Any) -> Any:
        reducer = _REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        if isinstance(obj, ModuleType):
            if way_of(obj.__name__) is Way.VALUE:
                return _reduce_module(obj)
            return import_module, (obj.__name__,)
        if isinstance(obj, type):
            return self._reduce_class(obj)
        if isinstance(obj, FunctionType):
            return self._reduce_function(obj)
        if isinstance(obj, BaseException):
            return reduce_error(obj)
        if type(obj) in _TYPING and way_of(obj.__module__) is Way.VALUE:
            return _TYPING[type(obj)](obj)
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        if _goes_by_name(cls):
            return NotImplemented
        if _way_of(cls) is not Way.VALUE:
            reduced = super().reducer_override(cls)  # it knows those of the interpreter
        else:
            reduced = _c._dynamic_class_reduce(cls)
        if reduced is NotImplemented or len(reduced) < 3:
            return reduced
        make, args, (members, slots), *rest = reduced
        return make, args, (_with_anew(members), slots), *rest

    def _reduce_function(self, function: FunctionType) -> Any:
        if _goes_by_name(function):
            return NotImplemented
        make, args, (attributes, slots), *rest = self._dynamic_function_reduce(function)
        if home := _home_of(function):
            code, _, _, _, closure = args
            make, args = _function_in, (home, code, closure)
            slots["__globals__"] = {}
        else:
            slots["__globals__"] = _with_anew(slots["__globals__"])
        return make, args, (attributes, slots), *rest


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


def find_unpicklable(value: object, path: str) -> UnpicklablePart | None:
    """Return the innermost part of a value that cannot be sent; None if all of it can."""
    return find_unpicklable_part(value, path, _BY_VALUE)


def _error_of(value: object) -> Exception | None:
    try:
        _encode(_ByValuePickler, value)
    except Exception as error:
        return error
    return None


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the globals that a function takes along."""
    if _home_of(function):
        return {}
    held = function.__globals__
    used = {name: held[name] for name in function.__code__.co_names if name in held}
    return {name: value for name, value in used.items() if type(value) not in _made_anew()}


_BY_VALUE = Pickling(_error_of, _globals_of)


# --- classes and functions ------------------------------------------------------------------------

_c = cloudpickle.cloudpickle


def _way_of(obj: type | FunctionType) -> Way:
    module: object = obj.__module__
    return way_of(module) if isinstance(module, str) else Way.VALUE


def _goes_by_name(obj: type | FunctionType) -> bool:
    """Return whether its module can be imported over there, and has it under its name."""
    if _way_of(obj) is Way.VALUE:
        return False
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _home_of(function: FunctionType) -> str | None:
    """Return the module whose globals a function uses, if it can be imported over there."""
    name = function.__globals__.get("__name__")
    if not isinstance(name, str) or way_of(name) is Way.VALUE:
        return None
    return (
        name if getattr(sys.modules.get(name), "__dict__", None) is function.__globals__ else None
    )


def _function_in(home: str, code: Any, closure: Any) -> FunctionType:
    return FunctionType(code, vars(import_module(home)), None, None, closure)


# What typing makes of a module that goes by value; pickle would send its name.
_TYPING: dict[type, Callable[[Any], Any]] = {
    TypeVar: lambda made: (_c._make_typevar, _c._decompose_typevar(made)),
    ParamSpec: lambda made: (_made_in, (made.__module__, ParamSpec, made.__name__)),
    NewType: lambda m: (_made_in, (m.__module__, NewType, m.__name__, m.__supertype__)),
}


def _made_in(module: str, kind: Callable[..., Any], *args: Any) -> Any:
    made = kind(*args)
    made.__module__ = module
    return made


# --- locks and their like, made anew --------------------------------------------------------------

_id_of: WeakKeyDictionary[object, str] = WeakKeyDictionary()
_sent: WeakValueDictionary[str, object] = WeakValueDictionary()
_made: dict[str, object] = {}  # for good: what is held must not be made once more
_MADE_ANEW: dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {}


def _made_anew() -> dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]]:
    """Return what is made anew over there: its type, its maker in `threading`, the arguments."""
    if not _MADE_ANEW:
        threading: Any = sys.modules["threading"]  # whose locks these are; nothing locks here
        for name in ("Lock", "RLock", "local", "Condition", "Event"):
            _MADE_ANEW[type(getattr(threading, name)())] = name, lambda made: ()
        _MADE_ANEW[threading.Semaphore] = "Semaphore", lambda made: (made._value,)
        bounded = threading.BoundedSemaphore
        _MADE_ANEW[bounded] = "BoundedSemaphore", lambda made: (made._initial_value,)
    return _MADE_ANEW


class _Anew:
    """Stands in for a lock where it is pickled."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __reduce__(self) -> tuple[Any, ...]:
        name, arguments_of = _made_anew()[type(self.lock)]
        made_id = _id_of.setdefault(self.lock, uuid.uuid4().hex)
        _sent.setdefault(made_id, self.lock)
        return _make_anew, (name, arguments_of(self.lock), made_id)


def _make_anew(name: str, args: tuple[Any, ...], made_id: str) -> object:
    """Return the lock of this process for one of another, the same each time."""
    found = _sent.get(made_id)
    if found is None:
        found = _made.get(made_id)
    if found is None:
        made = getattr(sys.modules["threading"], name)(*args)
        found = _made.setdefault(made_id, made)
        _id_of[found] = made_id
    return found


def _with_anew(members: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a function, or the members of a class, as they are to be sent."""
    kinds = _made_anew()
    return {k: _Anew(v) if type(v) in kinds else v for k, v in members.items()}


# --- modules by value -----------------------------------------------------------------------------

# How a module was found here means nothing over there.
_MODULE_FINDING = ("__builtins__", "__cached__", "__loader__", "__spec__")


def _reduce_module(module: ModuleType) -> tuple[Any, ...]:
    """As cloudpickle does, but in two steps, so that a module may refer to itself."""
    state = {k: v for k, v in vars(module).items() if k not in _MODULE_FINDING}
    return ModuleType, (module.__name__,), _with_anew(state)


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
