"""The globals of functions that are sent by value: in each process, one namespace for each module.

A function of the script takes along the globals that it uses (picklers.py).  Where it arrives, all
functions of one module of one script share one namespace, as if they had imported the module there:
what one of them assigns, the others see.  So an initializer works, and a model that the first call
loads is there at the next one.  A name means, first match first:

    what a function has assigned in this process
    the script's value, as it was when the last function that uses the name was sent
    nothing: NameError

"Assigned" is a name that is bound to another object than the one that arrived.  Refused: to look
for what assigns (STORE_GLOBAL), because most functions that could assign a name do not.

A function that comes home to the script keeps its own copy of the values, since the script's names
are not to be changed from elsewhere.  Functions whose globals are not those of a module (`exec`)
share them only with functions in the same pickle.

The members of a class that is sent by value follow the same rule (picklers.py), and a namespace
keeps the classes of its module: what was assigned to them lasts as long.

No lock is needed: each step on a dict is atomic, and if functions arrive on two threads at once,
the value of either of them is right.
"""

import itertools
import sys
import uuid
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any

MOST = 64  # namespaces: a detached actor may be called by any number of scripts, one after another

_namespaces: "dict[tuple[str, str], Namespace]" = {}  # by origin and module
_by_globals: "dict[int, Namespace]" = {}  # the same, by the id of the dict
_uses = itertools.count()
_own_origin: list[str] = []


class Namespace:
    """The globals of one module of another process, in this one.

    globals   the `__globals__` of its functions
    classes   those of the module that have arrived
    arrived   those of them that have arrived, and were not assigned since
    last_use  the number of the last arrival of a function
    """

    def __init__(self, origin: str, module_globals: dict[str, Any]) -> None:
        self.origin = origin
        self.globals = module_globals
        self.last_use = next(_uses)
        self._arrived: dict[str, Any] = {}
        self.classes: dict[str, type] = {}  # by qualified name

    def update(self, values: dict[str, Any]) -> None:
        """Take the script's values, except for names that were assigned here."""

        def take(name: str, value: Any) -> Any:
            self.globals[name] = value
            return value

        take_unassigned(values, self.globals, self._arrived, take)


_ABSENT = object()


def take_unassigned(
    values: Mapping[str, Any],
    held: Mapping[str, Any],
    arrived: dict[str, Any],
    take: Callable[[str, Any], Any],
) -> None:
    """Take each value that arrives whose name was not assigned in this process.

    Such a name is bound to what `arrived` last.  `take` returns what the name is bound to then.
    """
    for name, value in values.items():
        last = arrived.pop(name, _ABSENT)
        if held.get(name, last) is last:
            arrived[name] = take(name, value)


def keep_class(origin: str, cls: type) -> None:
    """Keep a class of a module that has arrived, in place of an earlier one of its name."""
    namespace = _namespaces.get((origin, cls.__module__))
    if namespace is not None:
        namespace.classes[cls.__qualname__] = cls


def own_origin() -> str:
    """Return what identifies this process as the origin of functions."""
    if not _own_origin:
        _own_origin.append(uuid.uuid4().hex)
    return _own_origin[0]


def origin_of(function: FunctionType) -> str | None:
    """Return the process from whose module a function comes; None if it is not of a module."""
    held = function.__globals__
    if (namespace := _by_globals.get(id(held))) is not None:
        return namespace.origin
    module = sys.modules.get(held.get("__name__", ""))
    return own_origin() if getattr(module, "__dict__", None) is held else None


def function_from(
    origin: str, module_globals: dict[str, Any], code: CodeType, closure: Any
) -> FunctionType:
    """Create a function in the namespace of its module."""
    module_globals.setdefault("__builtins__", __builtins__)
    if origin != own_origin():
        module_globals = _namespace(origin, module_globals).globals
    return FunctionType(code, module_globals, None, None, closure)


def update(function: FunctionType, values: dict[str, Any]) -> None:
    """Take the values of globals that have arrived with a function."""
    held = function.__globals__
    if (namespace := _by_globals.get(id(held))) is not None:
        namespace.update(values)
    else:
        held.update(values)


def _namespace(origin: str, module_globals: dict[str, Any]) -> Namespace:
    key = origin, module_globals["__name__"]
    found = _namespaces.get(key)
    if found is None:
        found = _namespaces.setdefault(key, Namespace(origin, module_globals))
        _by_globals[id(found.globals)] = found
    found.last_use = next(_uses)
    if len(_namespaces) > MOST:
        by_use = sorted(_namespaces.copy().items(), key=lambda item: item[1].last_use)
        for unused, _ in by_use[:-MOST]:
            if (ended := _namespaces.pop(unused, None)) is not None:
                _by_globals.pop(id(ended.globals), None)
    return found
