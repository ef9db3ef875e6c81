"""How the code of a value travels, and the two picklers that see to it.

Classes and functions travel in one of three ways, decided for each module:

    INSTALLED   by name, and are imported over there: the standard library; `remotely` and
                `remotely_rl`; whatever lies in a site-packages or dist-packages folder; compiled
                modules; and what an editable install provides, though it lies elsewhere
    SOURCE      a module of the user's own with Python source.  Its classes and functions go by
                name too, and its source goes ahead of them, to be imported over there (sources.py)
    VALUE       what cannot be imported over there as it is here, so that its classes and functions
                go as they are: `__main__`, whose top level must not run again; modules made by
                hand; those that their loader changes as it reads them, as pytest does to tests;
                and those that have taken a name of the standard library, `statistics.py` beside
                the script, since that name may be imported already over there

A module goes one way for good, so that each of its classes is one class over there.

Editable installs are told by their files as well as by their names.  importlib.metadata's
`packages_distributions` was refused: it goes by name alone, and there are distributions that
install a top-level `tests`, while others' editable installs declare no names at all.  One case is
missed: a project whose package lies at its root under another name than the distribution's.  Its
modules go as source, which is slower but works.

The picklers:

    plain       pickle itself, in C; most calls need no more.  It gives up at the first class or
                function that goes by value
    by value    cloudpickle: lambdas, local classes, `__main__`

What is local to a module that can be imported over there (a lambda, a class within a function)
goes by value too, but its globals are those of the module over there.  What is local to a module
that cannot be imported there takes along the globals that it uses.  Locks among them, and among the
members of a class, are created anew over there.  The memory of NumPy arrays and PyTorch tensors
travels out of band, uncopied; neither library is imported here, except by a tensor that arrives.

About 700 lines: a class is pickled by asking, for each thing in it, which way that goes.
"""

import contextlib
import json
import pickle
import sys
import sysconfig
import typing
import uuid
from collections import ChainMap
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from contextvars import Context, ContextVar
from enum import Enum
from functools import (
    _lru_cache_wrapper,
    cache,
    cached_property,
    lru_cache,
    partialmethod,
)
from importlib import import_module
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef, NamedTuple, NewType, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary
from zipimport import zipimporter

import cloudpickle.cloudpickle

if TYPE_CHECKING:  # slow to import, and needed once, where there are editable installs
    from importlib.metadata import Distribution

# A smaller buffer is copied into the payload.  A frame of its own costs 6 microseconds more on its
# way (its encryption, its bookkeeping); the copies cost as much only from 16 KiB up.
SMALL_BUFFER_BYTES = 8192

REDUCERS: dict[type, Callable[[Any], Any]] = {}


# --- the way of a module --------------------------------------------------------------------------


class Way(Enum):
    INSTALLED = "by name"
    SOURCE = "as source"
    VALUE = "by value"


# What an actor has by definition.  __mp_main__ is the script in a child of multiprocessing.
_SCRIPTS = frozenset({"__main__", "__mp_main__"})
_OURS = frozenset({"remotely", "remotely_rl"})
_FOLDERS = frozenset({"site-packages", "dist-packages"})

_known: dict[str, Way] = {}


def way_of(module_name: str) -> Way:
    """Return how classes and functions of this module are sent."""
    way = _known.get(module_name)
    if way is None:
        way = _decide(module_name)
        if way is Way.INSTALLED or module_name in sys.modules:  # one not loaded may yet be
            _known[module_name] = way
    return way


def is_of_standard_library(module_name: str) -> bool:
    """Tell whether a name is one of the standard library; a user's module may have it even so."""
    return module_name.partition(".")[0] in sys.stdlib_module_names


def _decide(module_name: str) -> Way:
    if module_name in _SCRIPTS:
        return Way.VALUE
    if module_name.partition(".")[0] in _OURS:
        return Way.INSTALLED
    module = sys.modules.get(module_name)
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    if isinstance(loader, ExtensionFileLoader):
        return Way.INSTALLED
    if is_of_standard_library(module_name):
        file = None if module is None else _file_of(module)
        return Way.INSTALLED if file is None or _is_library(file) else Way.VALUE
    if module is None:  # made by hand, or unpickled here by value itself
        return Way.VALUE
    file = _file_of(module)
    if file is None and getattr(spec, "origin", None) in ("built-in", "frozen"):
        return Way.INSTALLED
    if file and (_is_library(file) or any(e.provides(module_name, file) for e in _in_place())):
        return Way.INSTALLED
    if file and _reads_plainly(loader, module_name):
        return Way.SOURCE
    package = module_name.rpartition(".")[0]
    # What an installed package makes by hand is there when the package has been imported.
    return Way.INSTALLED if package and way_of(package) is Way.INSTALLED else Way.VALUE


def _is_library(file: Path) -> bool:
    if not _FOLDERS.isdisjoint(file.parts) or str(file).startswith(_library_prefixes()):
        return True
    file = file.resolve()
    if not _FOLDERS.isdisjoint(file.parts):
        return True
    return any(file.is_relative_to(folder) for folder in _library_folders())


def _reads_plainly(loader: object, module_name: str) -> bool:
    """Tell whether a module of this loader is what Python makes of its source, or as good."""
    kind = type(loader)
    if kind.__module__ == "_pytest.assertion.rewrite":
        # It adds to asserts.  What tests share does without; but tests themselves would have each
        # actor import pytest.
        name = module_name.rpartition(".")[2]
        return not (name == "conftest" or name.startswith("test_") or name.endswith("_test"))
    if isinstance(loader, SourceFileLoader):
        return all(getattr(kind, n) is getattr(SourceFileLoader, n) for n in _READING)
    return kind is zipimporter


_READING = ("get_code", "source_to_code")


def _file_of(module: ModuleType) -> Path | None:
    """Return where a module or a package without an __init__ lies."""
    with suppress(Exception):  # a module may be any object, with any attributes
        if file := getattr(module, "__file__", None):
            return Path(file)
        for folder in getattr(module, "__path__", ()):
            return Path(folder)
    return None


@cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib")})


@cache
def _library_prefixes() -> tuple[str, ...]:
    """Return the same as text: most modules are found by it, without a look at the disk.

    And where the standard library was loaded from, which may be an archive.
    """
    paths = sysconfig.get_paths()
    folders = [*_library_folders(), Path(paths["stdlib"]), Path(contextlib.__file__).parent]
    return tuple(f"{folder}/" for folder in folders)


class _Editable(NamedTuple):
    """A distribution that lies where its author works on it."""

    names: frozenset[str]
    root: Path
    sources: tuple[Path, ...]  # folders of the project that its .pth file puts on sys.path

    def provides(self, module_name: str, file: Path) -> bool:
        file = file.resolve()
        if module_name.partition(".")[0] in self.names and file.is_relative_to(self.root):
            return True
        return any(file.is_relative_to(source) for source in self.sources)


@cache
def _in_place() -> tuple[_Editable, ...]:
    """Return them all.  Twenty milliseconds, spent at the first module that lies outside."""
    from importlib.metadata import distributions  # noqa: PLC0415 - see above

    found = []
    for distribution in distributions():
        with suppress(Exception):  # other people's metadata
            if (root := _root_of(distribution)) is not None:
                found.append(_Editable(_names(distribution), root, _sources(distribution, root)))
    return tuple(found)


def _root_of(distribution: "Distribution") -> Path | None:
    """Return the project's folder if it is installed in place, by today's way or the older one."""
    from urllib.parse import urlparse  # noqa: PLC0415 - see above
    from urllib.request import url2pathname  # noqa: PLC0415

    if text := distribution.read_text("direct_url.json"):
        described = json.loads(text)
        if described.get("dir_info", {}).get("editable"):
            return Path(url2pathname(urlparse(described["url"]).path)).resolve()
        return None
    folder = Path(str(distribution.locate_file(""))).resolve()
    if _FOLDERS.isdisjoint(folder.parts) and folder not in _library_folders():
        return folder
    return None


def _names(distribution: "Distribution") -> frozenset[str]:
    declared = (distribution.read_text("top_level.txt") or "").split()
    return frozenset(
        declared or [distribution.metadata["Name"].replace("-", "_").replace(".", "_")]
    )


def _sources(distribution: "Distribution", root: Path) -> tuple[Path, ...]:
    """Return the folders below the root, `src` as a rule; the root itself would hold tests too."""
    lines = []
    for file in distribution.files or ():
        if file.suffix == ".pth":
            lines += Path(str(file.locate())).read_text(encoding="utf-8").splitlines()
    folders = (Path(line) for line in lines if line and not line.startswith("import "))
    return tuple(f.resolve() for f in folders if root in f.resolve().parents)


# --- the picklers ---------------------------------------------------------------------------------


class GoesByValue(Exception):
    """Plain pickle has met a class or function that must travel by value."""


_LOOKED_AT = (type, FunctionType, BaseException, _lru_cache_wrapper)
_VALUE = Way.VALUE  # to look a member up takes ten times as long, and is done for each class


class PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for all but the plainest objects."""
        reducer = REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        if isinstance(obj, _LOOKED_AT):
            if isinstance(obj, BaseException):
                return reduce_error(obj)
            module: object = obj.__module__
            if not isinstance(module, str) or way_of(module) is _VALUE:
                raise GoesByValue
        return NotImplemented


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    """Decides itself what goes by value: what others register with cloudpickle is theirs.

    cloudpickle takes whatever can be imported here for importable over there.
    """

    def reducer_override(self, obj: Any) -> Any:
        reducer = REDUCERS.get(type(obj))
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
        if isinstance(obj, _lru_cache_wrapper):
            return NotImplemented if goes_by_name(obj) else _reduce_cache(obj)
        if isinstance(obj, cached_property):  # before Python 3.12 it has a lock
            reduced: Any = obj.__reduce_ex__(5)
            make, args, state, *rest = reduced
            return make, args, with_new_locks(state), *rest
        if type(obj) in _WEAK:  # holds what else the value holds
            return type(obj), (dict(obj.items()),)
        if type(obj) is _ALIAS and way_of(obj.__module__) is Way.VALUE:
            return self._reduce_alias(obj)
        if type(obj) in _TYPING and way_of(obj.__module__) is Way.VALUE:
            return _TYPING[type(obj)](obj)
        return super().reducer_override(obj)

    def _reduce_class(self, cls: type) -> Any:
        if goes_by_name(cls):
            return NotImplemented
        if _way_of(cls) is not Way.VALUE:
            reduced = super().reducer_override(cls)  # it knows those of the interpreter
        else:
            reduced = _c._dynamic_class_reduce(cls)
        if reduced is NotImplemented or len(reduced) < 3:
            return reduced
        make, args, (members, slots), *rest = reduced
        if vars(cls).get("__annotate_func__"):  # annotations that Python 3.14 has not made yet
            members = {**members, "__annotations__": _annotations_of(cls)}
        return make, args, (with_new_locks(members), slots), *rest

    def _reduce_alias(self, alias: Any) -> Any:
        """Send a type alias; one that names itself, or what is not there, goes as Any."""
        begun: set[int] = self.__dict__.setdefault("_begun", set())
        if id(alias) in begun:
            return getattr, (typing, "Any")
        begun.add(id(alias))
        value = Any
        with suppress(Exception):
            value = alias.__value__
        return _alias_in, (alias.__module__, alias.__name__, value, alias.__type_params__)

    def _reduce_function(self, function: FunctionType) -> Any:
        if goes_by_name(function):
            return NotImplemented
        reduced = self._dynamic_function_reduce(_annotated(function))
        make, args, (attributes, slots), *rest = reduced
        if home := _home_of(function):
            code, _, _, _, closure = args
            make, args = _function_in, (home, code, closure)
            slots["__globals__"] = {}
        else:
            slots["__globals__"] = with_new_locks(slots["__globals__"])
        return make, args, (attributes, slots), *rest


class SearchingPickler(ByValuePickler):
    """Takes for granted what has an id in `around`, to see whether the rest pickles."""

    def __init__(self, around: frozenset[int], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._around = around

    def persistent_id(self, obj: Any) -> str | None:
        return "" if id(obj) in self._around else None


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the globals that a function takes along."""
    if _home_of(function):
        return {}
    held = function.__globals__
    used = {name: held[name] for name in function.__code__.co_names if name in held}
    return {name: value for name, value in used.items() if type(value) not in recreated_types()}


# --- classes and functions ------------------------------------------------------------------------

_c = cloudpickle.cloudpickle


def _way_of(obj: type | FunctionType) -> Way:
    module: object = obj.__module__
    return way_of(module) if isinstance(module, str) else Way.VALUE


def goes_by_name(obj: Any) -> bool:
    """Return whether its module can be imported over there, and has it under its name."""
    if _way_of(obj) is Way.VALUE:
        return False
    found: Any = sys.modules.get(obj.__module__)
    for name in getattr(obj, "__qualname__", "").split("."):
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


def _reduce_cache(cached: Any) -> tuple[Any, ...]:
    """Send a function that `lru_cache` wraps, with an empty cache."""
    state = {k: v for k, v in vars(cached).items() if k not in ("__wrapped__", "cache_parameters")}
    return _make_cache, (cached.__wrapped__, cached.cache_parameters()), state


def _make_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def _annotations_of(obj: Any) -> Any:
    """Return the annotations of a function or a class: as text, if they name what is not there.

    They may from Python 3.14 on, which evaluates them when they are asked for.
    """
    try:
        return obj.__annotations__
    except Exception:  # whatever an expression may raise
        import annotationlib  # type: ignore[import-not-found] # noqa: PLC0415 - not before 3.14

        return annotationlib.get_annotations(obj, format=annotationlib.Format.STRING)


def _annotated(function: FunctionType) -> FunctionType:
    """Return a function that has its annotations: itself, or a copy."""
    try:
        function.__annotations__  # noqa: B018 - this makes them
    except Exception:
        parts = function.__globals__, function.__name__, function.__defaults__, function.__closure__
        copy = FunctionType(function.__code__, *parts)
        for name in ("__qualname__", "__module__", "__doc__", "__kwdefaults__"):
            setattr(copy, name, getattr(function, name))
        vars(copy).update(vars(function))
        copy.__annotations__ = _annotations_of(function)
        return copy
    return function


def _function_in(home: str, code: Any, closure: Any) -> FunctionType:
    return FunctionType(code, vars(import_module(home)), None, None, closure)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Keep the name of the file, which tracebacks and logs show; cloudpickle 3.1.3 does not."""
    make, args = _c._code_reduce(code)
    return _code_in, (code.co_filename, make, args)


def _code_in(file: str, make: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    return make(*args).replace(co_filename=file)


def _reduce_forward_ref(ref: ForwardRef) -> tuple[Any, ...]:
    """Leave out the globals in which Python 3.14 would evaluate it."""
    how = ref.__forward_is_argument__, ref.__forward_is_class__, ref.__forward_module__
    return _forward_ref, (ref.__forward_arg__, *how)


def _forward_ref(arg: str, is_argument: bool, is_class: bool, module: Any) -> ForwardRef:
    return ForwardRef(arg, is_argument=is_argument, is_class=is_class, module=module)


_KINDS: dict[type, Callable[[Any], Any]] = {
    CodeType: _reduce_code,
    ForwardRef: _reduce_forward_ref,
    # From Python 3.14 on, none can be made without a function.
    partialmethod: lambda method: (partialmethod, (method.func,), vars(method)),
}
ByValuePickler.dispatch_table = ChainMap(_KINDS, cloudpickle.Pickler.dispatch_table)

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


def _made_as(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return kind(*args, **kwargs)


def _alias_in(module: str, name: str, value: Any, params: tuple[Any, ...]) -> Any:
    """Python takes an alias for one of the module of the function that makes it."""
    make = FunctionType(_made_as.__code__, {"__name__": module})
    return make(_ALIAS, name, value, type_params=params)


_ALIAS: Any = getattr(typing, "TypeAliasType", None)  # from Python 3.12 on: the `type` statement
_WEAK = frozenset((WeakKeyDictionary, WeakValueDictionary))  # WeakSet pickles by itself


# --- modules by value -----------------------------------------------------------------------------

# How a module was found here means nothing over there.
_MODULE_FINDING = ("__builtins__", "__cached__", "__loader__", "__spec__")


def _reduce_module(module: ModuleType) -> tuple[Any, ...]:
    """As cloudpickle does, but in two steps, so that a module may refer to itself."""
    state = {k: v for k, v in vars(module).items() if k not in _MODULE_FINDING}
    return ModuleType, (module.__name__,), with_new_locks(state)


# --- arrays and tensors ---------------------------------------------------------------------------


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
    import numpy  # noqa: ICN001, PLC0415 - needed only for tensors
    import torch  # noqa: PLC0415 - `remotely` never imports torch unless a tensor arrives

    array = numpy.frombuffer(buffer, numpy.uint8)
    address, read_only = array.__array_interface__["data"]
    if read_only or address % 8:
        array = array.copy()
    tensor = torch.from_numpy(array).view(dtype).reshape(shape)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


# --- errors ---------------------------------------------------------------------------------------

# Exceptions pickle as a call of their class with `args`, which is what was passed to
# `Exception.__init__`.  A class whose own `__init__` takes something else, a code and a message and
# passes on a sentence, can so be pickled, but not unpickled.  Here they pickle as a call of
# `make_error`, wherever in a value they are: raised, passed, returned, or in an ExceptionGroup.


def reduce_error(error: BaseException) -> Any:
    """Return how an error is pickled, for a pickler's `reducer_override`."""
    if type(error).__module__ == "builtins":
        return NotImplemented
    reduced = error.__reduce_ex__(5)
    if isinstance(reduced, tuple) and reduced[0] is type(error):
        make, args, *rest = reduced
        return make_error, (make, args), *rest
    return reduced


def make_error(cls: type[BaseException], args: tuple[Any, ...]) -> Any:
    """Call the class as pickle would; if it does not take that, go without its `__init__`."""
    try:
        return cls(*args)
    except Exception:
        error = cls.__new__(cls, *args)
        built_in: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        with suppress(Exception):
            built_in.__init__(error, *args)  # an OSError's errno
        error.args = args
        return error


# --- locks and their like -------------------------------------------------------------------------

# They do not pickle.  Over there each becomes one new lock, however often it arrives, as running
# the module again would make it.  So does a ContextVar, with its default.

_Ids = MutableMapping[object, str]
_Kept = MutableMapping[str, object]

_id_of: _Ids = WeakKeyDictionary()
_sent: _Kept = WeakValueDictionary()
_made: _Kept = {}  # for good: what is held must not be made once more
_id_of_variable: _Ids = {}  # for good: Python has no weak references to them
_RECREATED: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def recreated_types() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Return what is created anew: its type, and what tells its maker and the arguments of that."""
    if not _RECREATED:
        threading: Any = sys.modules["threading"]  # whose locks these are; nothing locks here
        for name in ("Lock", "RLock", "local", "Condition", "Event"):
            make = getattr(threading, name)
            _RECREATED[type(make())] = lambda _, make=make: (make,)  # type: ignore[misc]
        _RECREATED[threading.Semaphore] = lambda made: (type(made), made._value)
        _RECREATED[threading.BoundedSemaphore] = lambda made: (type(made), made._initial_value)
        _RECREATED[ContextVar] = lambda made: (_variable, made.name, *_default_of(made))
    return _RECREATED


def _default_of(variable: ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (Context().run(variable.get),)
    except LookupError:
        return ()


def _variable(name: str, *default: Any) -> ContextVar[Any]:
    return ContextVar(name, default=default[0]) if default else ContextVar(name)


class _NewLock:
    """Stands in for a lock where it is pickled."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __reduce__(self) -> tuple[Any, ...]:
        ids, kept = _books_of(self.lock)
        made_id = ids.setdefault(self.lock, uuid.uuid4().hex)
        kept.setdefault(made_id, self.lock)
        return _new_lock, (made_id, *recreated_types()[type(self.lock)](self.lock))


def _books_of(lock: object) -> tuple[_Ids, _Kept]:
    return (_id_of_variable, _made) if isinstance(lock, ContextVar) else (_id_of, _sent)


def _new_lock(made_id: str, make: Callable[..., object], *args: object) -> object:
    """Return the lock of this process for one of another, the same each time."""
    found = _sent.get(made_id)
    if found is None:
        found = _made.get(made_id)
    if found is None:
        found = _made.setdefault(made_id, make(*args))
        ids, _ = _books_of(found)
        ids[found] = made_id
    return found


def with_new_locks(members: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a function, or the members of a class, as they are to be sent."""
    kinds = recreated_types()
    return {k: _NewLock(v) if type(v) in kinds else v for k, v in members.items()}
