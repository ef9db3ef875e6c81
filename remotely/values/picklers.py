"""The two picklers, and the way in which each module's classes and functions are sent.

Classes and functions are sent in one of three ways, decided for each module:

    INSTALLED   by name, and imported by the receiver: the standard library; `remotely` and
                `remotely_rl`; everything in a site-packages or dist-packages folder; compiled
                modules; and the modules of editable installs, in any folder
    SOURCE      a user's module with Python source.  Its classes and functions are also sent by
                name; its source is sent ahead, and the receiver imports it (sources.py)
    VALUE       classes and functions of a module that the receiver cannot import unchanged:
                `__main__`, whose top level must not run again; modules created by hand; modules
                that their loader rewrites, as pytest does with tests; and modules that shadow the
                standard library, such as a `statistics.py` beside the script, because the receiver
                may have imported that name already

The way of a module never changes, so each of its classes is one class at the receiver.

Editable installs are recognized by their files as well as by their names.  importlib.metadata's
`packages_distributions` was rejected: it goes by name alone, and some distributions install a
top-level `tests`, while some editable installs declare no names at all.  One case is missed: a
project whose package is at its root under a name other than the distribution's.  Its modules are
sent as source, which is slower but works.

The picklers:

    PlainPickler      pickle itself, in C; most calls need no more.  It gives up at the first class
                      or function that is sent by value
    ByValuePickler    cloudpickle: lambdas, local classes, `__main__`

A lambda, or a class defined in a function, is always sent by value.  If the receiver can import its
module, its globals are those of that module; otherwise the globals that it uses are sent with it
(script_globals.py).
Locks among those globals, and among the members of a class, are replaced by new ones.  The memory
of NumPy arrays and PyTorch tensors is sent out of band, without a copy.  This module imports
neither library, except torch when a tensor arrives.

About 700 lines: a class is pickled by deciding, for each object in it, which way that is sent.
"""

import contextlib
import json
import pickle
import sys
import sysconfig
import typing
import uuid
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from contextvars import Context, ContextVar
from ctypes import addressof
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
from io import TextIOWrapper
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef, NamedTuple, NewType, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary
from zipimport import zipimporter

import cloudpickle.cloudpickle

from remotely.errors import VersionMismatch
from remotely.machine.interrupts import errors_ignored, is_for_main
from remotely.values import script_globals
from remotely.values.made_class import without_hooks

if TYPE_CHECKING:  # slow to import, and needed only for editable installs
    from importlib.metadata import Distribution

# A smaller buffer is copied into the payload.  A frame of its own costs 6 microseconds more
# (encryption and bookkeeping); the copies cost that much only from 16 KiB up.
SMALL_BUFFER_BYTES = 8192

COMPILED_FOR = sys.implementation.cache_tag  # as "cpython-311"

REDUCERS: dict[type, Callable[[Any], Any]] = {}


# --- the way of a module --------------------------------------------------------------------------


class Way(Enum):
    INSTALLED = "by name"
    SOURCE = "as source"
    VALUE = "by value"


_SCRIPTS = frozenset({"__main__", "__mp_main__"})  # the latter in a child of multiprocessing
_OURS = frozenset({"remotely", "remotely_rl"})  # every actor has them
_FOLDERS = frozenset({"site-packages", "dist-packages"})
_INSIDE = tuple(f"/{folder}/" for folder in sorted(_FOLDERS))

_known: dict[str, Way] = {}


def way_of(module_name: str) -> Way:
    """Return how classes and functions of this module are sent."""
    way = _known.get(module_name)
    if way is None:
        way = _decide(module_name)
        if way is Way.INSTALLED or module_name in sys.modules:  # else it may be loaded later
            _known[module_name] = way
    return way


def received_as_source(module_name: str) -> None:
    """Note that this process is about to load a module from its sender's source.

    So it goes on as it came, and what is installed here need not be looked through.
    """
    _known[module_name] = Way.SOURCE


def is_of_standard_library(module_name: str) -> bool:
    """Tell whether a name belongs to the standard library; a user's module may shadow it."""
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
    if module is None:  # created by hand, or itself received by value
        return Way.VALUE
    file = _file_of(module)
    if file is None and getattr(spec, "origin", None) in ("built-in", "frozen"):
        return Way.INSTALLED
    if file and (_is_library(file) or _is_editable(module_name, file)):
        return Way.INSTALLED
    if file and _loads_plain_source(loader, module_name):
        return Way.SOURCE
    package = module_name.rpartition(".")[0]
    # A module that an installed package creates exists once the package is imported.
    return Way.INSTALLED if package and way_of(package) is Way.INSTALLED else Way.VALUE


def _is_library(file: str) -> bool:
    # By the text first: a process has hundreds of modules, nearly all of them here.
    if file.startswith(_library_prefixes()) or any(folder in file for folder in _INSIDE):
        return True
    path = Path(file)
    resolved = path.resolve()
    if not _FOLDERS.isdisjoint((*path.parts, *resolved.parts)):
        return True
    return any(resolved.is_relative_to(folder) for folder in _library_folders())


def _is_editable(module_name: str, file: str) -> bool:
    path = Path(file).resolve()
    return any(install.provides(module_name, path) for install in _editable_installs())


def _loads_plain_source(loader: object, module_name: str) -> bool:
    """Tell whether this loader loads a module's source unchanged, or nearly so."""
    kind = type(loader)
    if kind.__module__ == "_pytest.assertion.rewrite":
        # It rewrites asserts.  Modules that tests share work without that.  But to import the
        # tests themselves, each actor would have to import pytest.
        name = module_name.rpartition(".")[2]
        return not (name == "conftest" or name.startswith("test_") or name.endswith("_test"))
    if isinstance(loader, SourceFileLoader):
        names = ("get_code", "source_to_code")
        return all(getattr(kind, name) is getattr(SourceFileLoader, name) for name in names)
    return kind is zipimporter


def _file_of(module: ModuleType) -> str | None:
    """Return the file of a module, or the folder of a package without an __init__."""
    with suppress(Exception):  # a module may be any object, with any attributes
        if file := getattr(module, "__file__", None):
            return file if isinstance(file, str) else str(Path(file))
        for folder in getattr(module, "__path__", ()):
            return str(Path(folder))
    return None


@cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib")})


@cache
def _library_prefixes() -> tuple[str, ...]:
    """Return the folders as text, which finds most modules without disk access.

    They include the place that the standard library was loaded from, which may be an archive.
    """
    paths = sysconfig.get_paths()
    folders = [*_library_folders(), Path(paths["stdlib"]), Path(contextlib.__file__).parent]
    return tuple(f"{folder}/" for folder in folders)


class _Editable(NamedTuple):
    """An editable install."""

    names: frozenset[str]
    root: Path
    sources: tuple[Path, ...]  # folders of the project that its .pth file adds to sys.path

    def provides(self, module_name: str, file: Path) -> bool:
        if module_name.partition(".")[0] in self.names and file.is_relative_to(self.root):
            return True
        return any(file.is_relative_to(source) for source in self.sources)


@cache
def _editable_installs() -> tuple[_Editable, ...]:
    """Find all editable installs.  Takes 20 ms, at the first module outside the library folders."""
    from importlib.metadata import distributions  # noqa: PLC0415 - see above

    found = []
    for distribution in distributions():
        with suppress(Exception):  # other people's metadata
            if (root := _root_of(distribution)) is not None:
                found.append(_Editable(_names(distribution), root, _sources(distribution, root)))
    return tuple(found)


def _root_of(distribution: "Distribution") -> Path | None:
    """Return the project's folder if it is an editable install, by PEP 610 or the older way."""
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
    """Return the source folders below the root, often `src`; the root itself contains tests too."""
    lines = []
    for file in distribution.files or ():
        if file.suffix == ".pth":
            lines += Path(str(file.locate())).read_text(encoding="utf-8").splitlines()
    folders = (Path(line) for line in lines if line and not line.startswith("import "))
    return tuple(f.resolve() for f in folders if root in f.resolve().parents)


# --- the picklers ---------------------------------------------------------------------------------


class GoesByValue(Exception):
    """Plain pickle has met a class or function that must be sent by value."""


_CHECKED = (type, FunctionType, BaseException, _lru_cache_wrapper)
_VALUE = Way.VALUE  # an enum lookup takes ten times as long, and every class needs one


class PlainPickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for all objects but those of the simplest built-in types."""
        reducer = REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        kind = type(obj)  # not `isinstance`, for which a proxy may ask another process
        if issubclass(kind, _CHECKED):
            if issubclass(kind, BaseException):
                return reduce_error(obj)
            module: object = obj.__module__
            if not isinstance(module, str) or way_of(module) is _VALUE:
                raise GoesByValue
        return NotImplemented


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    """cloudpickle, except that `way_of` decides what is sent by value.

    cloudpickle assumes that the receiver can import everything that is importable here, and other
    code may register modules with it.
    """

    def reducer_override(self, obj: Any) -> Any:
        reducer = REDUCERS.get(type(obj))
        if reducer is not None:
            return reducer(obj)
        kind = type(obj)  # not `isinstance`, for which a proxy may ask another process
        if issubclass(kind, ModuleType):
            if way_of(obj.__name__) is Way.VALUE:
                return _reduce_module(obj)
            return import_module, (obj.__name__,)
        if issubclass(kind, type):
            return self._reduce_class(obj)
        if issubclass(kind, FunctionType):
            return self._reduce_function(obj)
        if issubclass(kind, BaseException):
            return reduce_error(obj)
        if issubclass(kind, _lru_cache_wrapper):
            return NotImplemented if goes_by_name(obj) else _reduce_cache(obj)
        if issubclass(kind, cached_property):  # contains a lock before Python 3.12
            reduced: Any = obj.__reduce_ex__(5)
            make, args, state, *rest = reduced
            return make, args, with_new_locks(state), *rest
        if type(obj) in _WEAK:  # its items are also held elsewhere in the value
            return type(obj), (dict(obj.items()),)
        if type(obj) is _ALIAS and way_of(obj.__module__) is Way.VALUE:
            return self._reduce_alias(obj)
        if type(obj) in _TYPING and way_of(obj.__module__) is Way.VALUE:
            return _TYPING[type(obj)](obj)
        return NotImplemented

    def _reduce_class(self, cls: type) -> Any:
        if goes_by_name(cls):
            return NotImplemented
        if _way_of(cls) is not Way.VALUE:
            reduced = super().reducer_override(cls)  # handles classes of the interpreter
        else:
            reduced = _c._dynamic_class_reduce(cls)
        if reduced is NotImplemented or len(reduced) < 3:
            return reduced
        make, args, (members, slots), *_ = reduced
        members.pop(_ARRIVED, None)
        origin, is_named = _origin_of(cls)
        if vars(cls).get("__annotate_func__"):  # annotations that Python 3.14 has not evaluated
            members = {**members, "__annotations__": _annotations_of(cls)}
        state = with_new_locks(members), slots
        made_of = origin, is_named, make, *args
        return _class_in, made_of, state, None, None, _set_class_state

    def _reduce_alias(self, alias: Any) -> Any:
        """Reduce a type alias; a recursive or unresolvable one becomes Any."""
        visited: set[int] = self.__dict__.setdefault("_visited", set())
        if id(alias) in visited:
            return getattr, (typing, "Any")
        visited.add(id(alias))
        value = Any
        with errors_ignored:
            value = alias.__value__
        return _alias_in, (alias.__module__, alias.__name__, value, alias.__type_params__)

    def _reduce_function(self, function: FunctionType) -> Any:
        if goes_by_name(function):
            return NotImplemented
        reduced = self._dynamic_function_reduce(_annotated(function))
        make, args, (attributes, slots), *rest = reduced
        code, module_globals, _, _, closure = args
        if home := _home_of(function):
            slots["__globals__"] = {}
            return _function_in, (home, code, closure), (attributes, slots), *rest
        slots["__globals__"] = with_new_locks(slots["__globals__"])
        if (origin := script_globals.origin_of(function)) is not None:
            make, args = script_globals.function_from, (origin, module_globals, code, closure)
            rest = [None, None, _set_function_state]
        return make, args, (attributes, slots), *rest


class SearchingPickler(ByValuePickler):
    """Skips the objects with an id in `around`, to test whether the rest pickles."""

    def __init__(self, around: frozenset[int], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._around = around

    def persistent_id(self, obj: Any) -> str | None:
        return "" if id(obj) in self._around else None


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the globals that are sent with a function."""
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
    """Return whether the receiver can import it by its module and name."""
    return _way_of(obj) is not Way.VALUE and _is_named(obj)


def _is_named(obj: Any) -> bool:
    """Return whether it is what its module and qualified name say, in this process."""
    found: Any = sys.modules.get(obj.__module__)
    for name in getattr(obj, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is obj


def _home_of(function: FunctionType) -> str | None:
    """Return the module whose globals a function uses, if the receiver can import it."""
    name = function.__globals__.get("__name__")
    if not isinstance(name, str) or way_of(name) is Way.VALUE:
        return None
    return (
        name if getattr(sys.modules.get(name), "__dict__", None) is function.__globals__ else None
    )


# In the dict of a class that has arrived, so that it is freed with the class: an _Arrival.
_ARRIVED = "__remotely_arrived__"


class _Arrival:
    """Where a class that has arrived is from, and its members as they arrived last.

    `origin` is that process; `is_named`: there the class is a member of its module.
    """

    def __init__(self, cls: type, origin: str, is_named: bool) -> None:
        self._class = weakref.ref(cls)
        self.origin = origin
        self.is_named = is_named
        self.members = {**vars(cls)}

    def is_of(self, cls: type) -> bool:
        """Return whether this class has arrived, not one that was made with a copy of its dict."""
        return self._class() is cls

    def __reduce__(self) -> tuple[Any, ...]:  # of a pickler that is not ours
        return type(None), ()


def _arrival_of(cls: type) -> _Arrival | None:
    """Return how a class has arrived; None for one of this process."""
    arrival = vars(cls).get(_ARRIVED)
    return arrival if isinstance(arrival, _Arrival) and arrival.is_of(cls) else None


def _origin_of(cls: type) -> tuple[str, bool]:
    """Return the process that a class is from, and whether it is a member of its module there."""
    if (arrival := _arrival_of(cls)) is not None:
        return arrival.origin, arrival.is_named
    return script_globals.own_origin(), _is_named(cls)


def _class_in(origin: str, is_named: bool, make: Callable[..., type], *args: Any) -> type:
    """Return the class that arrived by value, without its members; once for each class."""
    tracked = args[-2]
    found: type | None = _c._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracked)
    cls = _skeleton(make, args) if found is None else found
    is_home = found is not None and origin == script_globals.own_origin()
    if not is_home and _arrival_of(cls) is None:
        type.__setattr__(cls, _ARRIVED, _Arrival(cls, origin, is_named))
    return cls


def _skeleton(make: Callable[..., type], args: tuple[Any, ...]) -> type:
    """Make a class without its members.

    The hook `__init_subclass__` of its bases may register it here.  If the hook fails, because it
    needs what only the class statement has, or knows the class already, it is not called.
    """
    try:
        return make(*args)
    except Exception as error:
        if make is not _c._make_skeleton_class or is_for_main(error):
            raise
        meta, name, bases, names, tracked, _ = args
        made = without_hooks(meta, name, bases, names)
        return _c._lookup_class_or_track(tracked, made)  # type: ignore[no-any-return]


def _set_class_state(cls: type, state: Any) -> None:
    """Set the members of a class that has arrived, except for those that were assigned here.

    A class that comes home keeps its own: what another process assigns changes nothing here.
    """
    arrival = _arrival_of(cls)
    if arrival is None:
        return
    members, slots = state

    def take(name: str, value: Any) -> Any:
        _c._class_setstate(cls, ({name: value}, slots))
        return vars(cls).get(name)

    script_globals.take_unassigned(members, vars(cls), arrival.members, take)
    if arrival.is_named:
        script_globals.keep_class(arrival.origin, cls)


def _reduce_cache(cached: Any) -> tuple[Any, ...]:
    """Reduce a function wrapped by `lru_cache`; its cache arrives empty."""
    state = {k: v for k, v in vars(cached).items() if k not in ("__wrapped__", "cache_parameters")}
    return _make_cache, (cached.__wrapped__, cached.cache_parameters()), state


def _make_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def _annotations_of(obj: Any) -> Any:
    """Return the annotations of a function or class, as text if they cannot be evaluated.

    Python evaluates them lazily from 3.14 on, so they may name what does not exist.
    """
    try:
        return obj.__annotations__
    except Exception as error:  # the expressions may raise anything
        if is_for_main(error):
            raise
        import annotationlib  # type: ignore[import-not-found] # noqa: PLC0415 - not before 3.14

        return annotationlib.get_annotations(obj, format=annotationlib.Format.STRING)


def _annotated(function: FunctionType) -> FunctionType:
    """Return the function, or a copy with text annotations if its own cannot be evaluated."""
    try:
        function.__annotations__  # noqa: B018 - evaluates them
    except Exception as error:
        if is_for_main(error):
            raise
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


def _set_function_state(function: FunctionType, state: Any) -> None:
    attributes, slots = state
    script_globals.update(function, slots["__globals__"])
    _c._function_setstate(function, (attributes, {**slots, "__globals__": {}}))


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Keep the file name for tracebacks and logs, which cloudpickle 3.1.3 does not."""
    make, args = _c._code_reduce(code)
    return _code_in, (code.co_filename, make, args, COMPILED_FOR)


def _code_in(
    file: str, make: Callable[..., CodeType], args: tuple[Any, ...], compiled_for: str
) -> CodeType:
    if compiled_for != COMPILED_FOR:  # its bytecode would run as something else, or crash
        raise VersionMismatch(
            f"a function of {file} is sent compiled for {compiled_for}, and this process is"
            f" {COMPILED_FOR}: move it from the script to a module, which is sent as source"
        )
    return make(*args).replace(co_filename=file)


def _reduce_forward_ref(ref: ForwardRef) -> tuple[Any, ...]:
    """Leave out the globals in which Python 3.14 evaluates it."""
    how = ref.__forward_is_argument__, ref.__forward_is_class__, ref.__forward_module__
    return _forward_ref, (ref.__forward_arg__, *how)


def _forward_ref(arg: str, is_argument: bool, is_class: bool, module: Any) -> ForwardRef:
    return ForwardRef(arg, is_argument=is_argument, is_class=is_class, module=module)


def _reduce_text_file(file: Any) -> tuple[Any, ...]:
    """Refuse all but output streams, as pickle does; cloudpickle copies a file that it can read."""
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError("cannot pickle '_io.TextIOWrapper' object")


_KINDS: dict[type, Callable[[Any], Any]] = {
    CodeType: _reduce_code,
    TextIOWrapper: _reduce_text_file,
    ForwardRef: _reduce_forward_ref,
    # From Python 3.14 on, the constructor requires a function.
    partialmethod: lambda method: (partialmethod, (method.func,), vars(method)),
}
ByValuePickler.dispatch_table = ChainMap(_KINDS, cloudpickle.Pickler.dispatch_table)

# Objects of typing in a module that is sent by value; pickle would send their names.
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
    """Create a type alias in this module: Python takes the module from the calling function."""
    make = FunctionType(_made_as.__code__, {"__name__": module})
    return make(_ALIAS, name, value, type_params=params)


_ALIAS: Any = getattr(typing, "TypeAliasType", None)  # from Python 3.12 on: the `type` statement
_WEAK = frozenset((WeakKeyDictionary, WeakValueDictionary))  # WeakSet pickles by itself


# --- modules by value -----------------------------------------------------------------------------

_IMPORT_STATE = ("__builtins__", "__cached__", "__loader__", "__spec__")  # of this process only


def _reduce_module(module: ModuleType) -> tuple[Any, ...]:
    """As cloudpickle does, but in two steps, so that a module may refer to itself."""
    state = {k: v for k, v in vars(module).items() if k not in _IMPORT_STATE}
    return ModuleType, (module.__name__,), with_new_locks(state)


# --- arrays and tensors ---------------------------------------------------------------------------


def learn_types() -> None:
    """Register the types of arrays and tensors, once their modules are loaded."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if (array := getattr(numpy, "ndarray", None)) is not None:
        REDUCERS[array] = _reduce_array
    # Another thread may be in the middle of importing torch.
    if (parameter := getattr(getattr(torch, "nn", None), "Parameter", None)) is not None:
        REDUCERS[sys.modules["torch"].Tensor] = REDUCERS[parameter] = _reduce_tensor


_NUMBERS = "biufc"  # kinds of dtype that export a buffer, and are fully described by `dtype.str`


class _Writable:
    """The memory of a read-only array, presented as writable; it is never written here.

    Pickle marks a read-only buffer as such, and the array would arrive read-only.  The receiver has
    a copy of its own, which is writable.
    """

    def __init__(self, array: Any) -> None:
        self.array = array  # keeps the memory alive
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (array.nbytes,),
            "data": (address, False),
        }


def _reduce_array(array: Any) -> Any:
    """Send numbers as their memory and shape; leave other arrays to numpy.

    numpy's own reduction takes four Python calls to rebuild an array, sends strided arrays in band,
    and keeps read-only arrays read-only.
    """
    flags = array.flags
    if array.dtype.hasobject:
        return NotImplemented
    if not flags.forc:
        axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        turned = array.transpose(axes)
        if turned.flags.c_contiguous:  # it fills its memory, in another order of dimensions
            return _turned, (turned, [axes.index(axis) for axis in range(array.ndim)])
    if not flags.forc or (not flags.writeable and array.nbytes < SMALL_BUFFER_BYTES):
        array = array.copy("A")  # keeps its order, if it has one
        flags = array.flags
    numpy = sys.modules["numpy"]
    order = "C" if flags.c_contiguous else "F"
    if not flags.writeable:
        array = numpy.asarray(_Writable(array)).view(array.dtype).reshape(array.shape, order=order)
    if array.dtype.kind not in _NUMBERS:
        make, args, *rest = array.__reduce_ex__(5)
        # numpy 1 has no `numpy._core.numeric`, whose function numpy 2 names here.
        return _array_in if make.__name__ == "_frombuffer" else make, args, *rest
    buffer = pickle.PickleBuffer(array)
    return numpy.ndarray, (array.shape, array.dtype.str, buffer, 0, None, order)


def _array_in(buffer: Any, dtype: Any, shape: Any, order: str) -> Any:
    return sys.modules["numpy"].frombuffer(buffer, dtype).reshape(shape, order=order)


def _turned(array: Any, axes: list[int]) -> Any:
    return array.transpose(axes)


def _reduce_tensor(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" and _to_host.get():
        made, tensor = tensor, tensor.detach().to("cpu").requires_grad_(tensor.requires_grad)
        tensor = torch.nn.Parameter(tensor) if type(made) is torch.nn.Parameter else tensor
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.__dict__  # the user's attributes
        or tensor._backward_hooks
    ):
        return NotImplemented
    values = tensor.detach().resolve_conj().resolve_neg()
    if not _is_dense(values):
        values = values.contiguous()
    # As bytes, because numpy has no bfloat16; flat, because a 0-d tensor cannot be viewed as bytes.
    flat = values.as_strided((values.numel(),), (1,)).view(torch.uint8).numpy()
    is_parameter = type(tensor) is torch.nn.Parameter
    layout = tensor.dtype, tuple(values.shape), values.stride()
    return _tensor_from, (pickle.PickleBuffer(flat), *layout, tensor.requires_grad, is_parameter)


# Whether tensors of other devices become tensors of the CPU.
_to_host: ContextVar[bool] = ContextVar("remotely_to_host", default=False)


@contextlib.contextmanager
def tensors_to_host() -> Iterator[None]:
    """Within the block, tensors of a GPU are pickled as tensors of the CPU."""
    token = _to_host.set(True)
    try:
        yield
    finally:
        _to_host.reset(token)


def _is_dense(tensor: Any) -> bool:
    """Tell whether a tensor fills its part of memory, once, in whatever order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _tensor_from(
    buffer: Any,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
    is_parameter: bool,
) -> Any:
    """Rebuild a tensor on its buffer.

    The buffer is copied if it is read-only, since torch has no read-only tensors and a write would
    reach every other reader, and if it is misaligned, which torch's kernels do not expect.  Memory
    that is copied on write (versions.py) is told of it, and discards what is written there.
    """
    import numpy  # noqa: ICN001, PLC0415 - needed only for tensors
    import torch  # noqa: PLC0415 - `remotely` never imports torch unless a tensor arrives

    array = numpy.frombuffer(buffer, numpy.uint8)
    address, read_only = array.__array_interface__["data"]
    whole: Any = memoryview(buffer).obj if read_only and array.size else None
    if (held := getattr(whole, "copied_on_write", None)) is not None:
        held.is_writable = True
        count = array.size // dtype.itemsize
        offset = address - addressof(whole)
        flat = torch.frombuffer(whole, dtype=dtype, count=count, offset=offset)
    elif read_only or address % 8:
        flat = torch.from_numpy(array.copy()).view(dtype)
    else:
        flat = torch.from_numpy(array).view(dtype)
    tensor = flat.as_strided(shape, strides)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


# --- errors ---------------------------------------------------------------------------------------

# Python pickles an exception as a call of its class with `args`, which is what was passed to
# `Exception.__init__`.  If the class's own `__init__` takes other parameters, such an exception
# pickles but does not unpickle.  So here exceptions are pickled as a call of `make_error`, wherever
# they are in a value: raised, passed, returned, or in an ExceptionGroup.


def reduce_error(error: BaseException) -> Any:
    """Return the reduction of an error, for a pickler's `reducer_override`."""
    if type(error).__module__ == "builtins":
        return NotImplemented
    reduced = error.__reduce_ex__(5)
    if isinstance(reduced, tuple) and reduced[0] is type(error):
        make, args, *rest = reduced
        return make_error, (make, args), *rest
    return reduced


def make_error(cls: type[BaseException], args: tuple[Any, ...]) -> Any:
    """Call the class as pickle does; if that fails, create the error without its `__init__`."""
    try:
        return cls(*args)
    except Exception as raised:
        if is_for_main(raised):
            raise
        error = cls.__new__(cls, *args)
        built_in: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        with suppress(Exception):
            built_in.__init__(error, *args)  # an OSError's errno
        error.args = args
        return error


# --- locks and their like -------------------------------------------------------------------------

# Locks do not pickle.  At the receiver each lock becomes one new lock, however often it arrives, as
# if the module had been imported there.  The same holds for a ContextVar, with its default.

_Ids = MutableMapping[object, str]
_Kept = MutableMapping[str, object]

_id_of: _Ids = WeakKeyDictionary()
_sent: _Kept = WeakValueDictionary()
_made: _Kept = {}  # never removed: a lock that is held must not be created a second time
_id_of_variable: _Ids = {}  # never removed: a ContextVar has no weak references
_RECREATED: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def recreated_types() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Return the types that are recreated, each with a function that returns how.

    The function returns a constructor and its arguments.
    """
    if not _RECREATED:
        threading: Any = sys.modules["threading"]  # not imported, since nothing locks here
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
    """Pickled in place of a lock."""

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
    """Return this process's lock for a lock of another process, the same each time."""
    found = _sent.get(made_id)
    if found is None:
        found = _made.get(made_id)
    if found is None:
        found = _made.setdefault(made_id, make(*args))
        ids, _ = _books_of(found)
        ids[found] = made_id
    return found


def with_new_locks(members: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a function, or the members of a class, with locks replaced."""
    kinds = recreated_types()
    return {k: _NewLock(v) if type(v) in kinds else v for k, v in members.items()}
