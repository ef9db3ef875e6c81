"""The search for the part of a value that does not pickle, and the advice about it.

The search is a bisection.  Each part is pickled without the objects that contain it, since a part
may refer back to them, as a method does to its class.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import _lru_cache_wrapper, cached_property
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

from remotely.machine.interrupts import is_for_main
from remotely.values.picklers import SearchingPickler, globals_of

# Limits on the depth of the search and on the length of a key in a path.  In an endlessly nested
# value the search stops much earlier, because no single part of it is to blame.
_MAX_DEPTH = 40
_MAX_DEPTH_OF_ENDLESS = 3
_MAX_KEY_LETTERS = 40


# What a future is, and what to do, where it is no argument of a call.
FUTURE = "is a future, and cannot be sent: call .result() and pass what it returns"

# The name of a value in messages; a tuple names each item of a tuple.
PartNames = str | tuple["PartNames", ...]


class NotToBePickled(TypeError):
    """Raised by `__reduce__` of a type of ours; `why` says what it is, and what to do."""

    def __init__(self, value: object, why: str) -> None:
        super().__init__(why)
        self.value = value


class PicklingFailure(NamedTuple):
    """Why a value does not pickle, in words.

    Not the error itself: the frames of its traceback lead to those of its finder, which would hold
    it in turn, and with it all that the caller has, until the next garbage collection.
    """

    reason: str
    is_endless: bool
    advice: str  # what the value is and what to do, if known


class UnpicklablePart(NamedTuple):
    path: str
    type_name: str
    failure: PicklingFailure


def find_unpicklable_part(value: object, path: str) -> UnpicklablePart | None:
    """Return the innermost part of a value that does not pickle; None if all of it does.

    Each level costs a few times as much as pickling the value once.
    """
    around: list[object] = []
    failure = _failure_of(value, around)
    if failure is None:
        return None
    for _ in range(_MAX_DEPTH_OF_ENDLESS if failure.is_endless else _MAX_DEPTH):
        if failure.advice:
            break
        around.append(value)
        try:
            found = _first_bad(_children(value, path), around)
        except Exception as raised:  # any access to a user's object may raise
            if is_for_main(raised):
                raise
            break
        if found is None:
            break
        path, value, failure = found
    return UnpicklablePart(path, _type_name(value), failure)


def not_picklable_message(value: object, what: PartNames, error: Exception) -> str:
    """Return the sentence about a value that did not pickle."""
    root = what if isinstance(what, str) else ""
    named = [("" if " " in root else root, value)] if root else list(_named(what, value))
    culprit = UnpicklablePart("", _type_name(value), _failure(value, error))
    for name, part in named:
        if (found := find_unpicklable_part(part, name)) is not None:
            culprit = found
            break
    reason, is_endless, advice = culprit.failure
    if is_endless:
        reason = "it is nested too deeply or endlessly"
    if not culprit.path:
        where = root or "the value"
    elif root and " " in root:
        where = f"{culprit.path} in {root}"
    else:
        where = culprit.path
    if advice:
        return f"{where} {advice}"
    return (
        f"{where} cannot be sent: it is a {culprit.type_name}, which does not pickle ({reason}); "
        "leave it out (`__getstate__`), or create it in the receiver"
    )


def _failure_of(value: object, around: Sequence[object]) -> PicklingFailure | None:
    """Return why a value does not pickle without the objects around it; None if it does."""
    ids, nowhere = frozenset(map(id, around)), SimpleNamespace(write=len)
    try:
        SearchingPickler(ids, nowhere, protocol=5, buffer_callback=lambda _: False).dump(value)
    except Exception as error:
        if is_for_main(error):
            raise
        return _failure(value, error)
    return None


def _failure(value: object, error: Exception) -> PicklingFailure:
    is_endless = isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)
    reason = f"{type(error).__name__}: {_shown(error)}"
    return PicklingFailure(reason, is_endless, _advice(value, error))


def _named(what: PartNames, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value that have names of their own."""
    if isinstance(what, str):
        yield what, value
    else:
        for name, part in zip(what, value, strict=True):
            yield from _named(name, part)


def _advice(value: object, error: Exception) -> str:
    if isinstance(error, NotToBePickled) and error.value is value:
        return str(error)
    if issubclass(type(value), Future):
        return FUTURE
    return ""


def _first_bad(
    children: list[tuple[str, Any]], around: Sequence[object]
) -> tuple[str, Any, PicklingFailure] | None:
    """Find a child that does not pickle on its own, by bisection."""
    low, high = 0, len(children)
    if _failure_of([child for _, child in children], around) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _failure_of([child for _, child in children[low:middle]], around) is not None:
            high = middle
        else:
            low = middle
    path, child = children[low]
    failure = _failure_of(child, around)
    return None if failure is None else (path, child, failure)


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
    if isinstance(value, MethodType):
        return [(f"{path}.__self__", value.__self__)]
    if isinstance(value, cached_property):
        return [(path, value.func)]
    if isinstance(value, property):
        return [(path, part) for part in (value.fget, value.fset, value.fdel)]
    if isinstance(value, _lru_cache_wrapper):
        return [(path, value.__wrapped__)]
    return _state_children(value, path)


def _function_children(function: FunctionType, path: str) -> list[tuple[str, Any]]:
    """Return the objects that are sent with a function: its closure, globals and attributes."""
    name = path or function.__name__
    code = function.__code__
    found: list[tuple[str, Any]] = []
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            held = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        what = f"the class {held.__name__!r}" if variable == "__class__" else repr(variable)
        found.append((f"{what} (used in {name})", held))
    for used, part in globals_of(function).items():
        found.append((f"the global {used!r} (used in {name})", part))
    found += [(f"{path}.{n}", v) for n, v in vars(function).items()]
    defaults = function.__defaults__ or ()
    return found + [(f"a default of {name}", default) for default in defaults]


def _state_children(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts of an object according to its own `__reduce_ex__`."""
    try:
        reduced = value.__reduce_ex__(5)
    except Exception as error:
        if is_for_main(error):
            raise
        return []
    if not isinstance(reduced, tuple):
        return []
    padded: list[Any] = [*reduced, None, None, None, None]
    arguments, state, items, pairs = padded[1:5]
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
        is_class = argument is type(value)
        found.append((path if is_class else f"{path}.__reduce_ex__(5)[1][{i}]", argument))
    return found


def _key(key: object) -> str:
    """Return a dict's key for a path.  Only plain keys are shown: other reprs may be anything."""
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
