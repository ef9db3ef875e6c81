"""The decorator `remote_class`: calling the class makes the object in another process.

`Actor(...)` calls `Actor.__new__`, which the decorator replaces.  In a client it returns a handle.
A handle is not an instance of the class, so Python does not call `__init__`.  The actor's process
makes the object with construct.py instead.  Copying and unpickling also call `__new__`, without
calling the class, so the class gets a `__reduce_ex__` for them.  It also gets a `__signature__`;
otherwise tools would show that of the new `__new__`.

Refused: a metaclass, which would have to be combined with the user's own, and the `__class__` of an
existing class cannot be changed.  Refused: to rebuild the class, which would break `super()`.

A decorator above a class statement changes that class.  A class that its module has already is left
alone, since others use it: a library its `Queue`, which would become a handle.  The result is then
a subclass (`_is_finished` decides).
"""

import contextlib
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from remotely import arguments
from remotely.api import connection
from remotely.api.found_handle import handle_as
from remotely.api.group import Group
from remotely.api.handle import Handle, handle_of, remote_of
from remotely.arguments import did_you_mean
from remotely.engine import Arguments, Engine, Options
from remotely.objects import construct, introspection
from remotely.other_names import add_hints
from remotely.protocol.resources import parse_labels, parse_memory, parse_others
from remotely.values.made_class import without_hooks

T = TypeVar("T")
C = TypeVar("C", bound=type)
P = ParamSpec("P")


@overload
def remote_class(cls: C, /) -> C: ...
@overload
def remote_class(
    *,
    cpus: float | None = None,
    gpus: float = 0,
    memory: int | str = 0,
    resources: dict[str, float] | None = None,
    labels: Iterable[str] = (),
    pack: bool = False,
    max_restarts: int = 0,
    concurrency: int = 1,
    wait: bool = True,
    env: dict[str, str] | None = None,
    python: str | None = None,
    packages: Iterable[str] = (),
    post_mortem: bool = False,
) -> Callable[[C], C]: ...
def remote_class(cls: Any = None, /, **options: Any) -> Any:
    """Make a class remote: calling it places the object on the cluster and returns a handle.

    As a decorator above a class statement it changes that class.  Called for a class that exists
    already, `remote_class(queue.Queue)`, it leaves that class alone and returns a remote subclass.

    The options are those of `engine.Options` except `name`, `detached`, `get_if_exists`, `machine`,
    `near` and `patience_s`, which belong to one instance: see `options`.  Raises TypeError for an
    unknown option, ValueError for an invalid value.
    """
    for of_an_instance in _OF_AN_INSTANCE & options.keys():
        raise TypeError(
            f"{of_an_instance!r} is an option of one instance, not of a class: "
            f"remotely.options(Actor, {of_an_instance}=...)(...)"
        )
    checked = check_options(Options(), options)
    if cls is None:
        return lambda cls: _decorate(cls, checked)
    return _decorate(cls, checked)


class Placeable(Generic[P, T]):
    """A remote class with options of its own; call it like the class."""

    def __init__(self, cls: Callable[P, T], options: Options) -> None:
        self.cls = cls
        self.options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return make_on(connection.current(), self.cls, args, kwargs, self.options, 1)[0]  # type: ignore[no-any-return]


def options(cls: Callable[P, T], /, **changes: Any) -> Placeable[P, T]:
    """Return the class with other options, for one instance: `options(Actor, cpus=2)(...)`.

    With `get_if_exists=True` and a `name`, calling it returns a borrowed handle of the actor with
    that name if there is one, and ignores the arguments.  If several clients do so at the same
    time, one of them makes the actor.
    """
    placeable = as_placeable(cls)
    return Placeable(placeable.cls, check_options(placeable.options, changes))


def local(cls: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a plain object in this process."""
    return construct.construct(as_placeable(cls).cls, args, kwargs)  # type: ignore[arg-type, no-any-return]


@overload
def group(cls: Callable[P, T], count: int, /, *args: P.args, **kwargs: P.kwargs) -> Group[T]: ...
@overload
def group(cls: Callable[..., T], /, *, each: Iterable[Any], **kwargs: Any) -> Group[T]: ...
def group(cls: Any, /, *args: Any, **kwargs: Any) -> Group[Any]:
    """Make several actors of one class at the same time: all of them, or none.

    `group(Actor, 32, "Pong")` makes 32 actors with the same arguments, `group(Actor, each=[...])`
    an actor for each item.  An item is the one argument of its constructor; or a tuple has all
    positional arguments, a dict all keyword arguments.  Keyword arguments beside `each` are for all
    of them, unless an item has its own.
    """
    placeable = as_placeable(cls)
    if "each" not in kwargs:
        if not args:
            raise TypeError(f"group({_name(placeable)}) needs a count, or each=[...]")
        count, *rest = args
        arguments.whole_number("count", count, 1)
        made_of = [(tuple(rest), kwargs)] * count
    elif args:
        raise TypeError(
            f"group({_name(placeable)}, each=[...]) makes an actor for each item: it takes no "
            "count, and arguments for all of them by keyword"
        )
    else:
        each = kwargs.pop("each")
        if isinstance(each, str | bytes | Mapping) or not isinstance(each, Iterable):
            raise TypeError(f"each={each!r} must be a list, with an item for each actor")
        made_of = [_arguments_of(item, kwargs) for item in each]
        if not made_of:
            raise ValueError("each=[]: a group has at least one actor")
    check_several(placeable.options, len(made_of))
    engine = connection.current()
    return Group(make_each(engine, placeable.cls, made_of, placeable.options))


def _arguments_of(item: Any, shared: dict[str, Any]) -> Arguments:
    if isinstance(item, dict):
        return (), {**shared, **item}
    return (item if type(item) is tuple else (item,)), shared


def _name(placeable: Placeable[Any, Any]) -> str:
    return getattr(placeable.cls, "__name__", repr(placeable.cls))


def as_placeable(cls: Callable[P, T]) -> Placeable[P, T]:
    if isinstance(cls, Placeable):
        return cls
    cls = typing.get_origin(cls) or cls  # Actor[int] is Actor
    found = getattr(cls, "__remotely__", None)
    if not isinstance(cls, type) or not isinstance(found, Options):
        name = getattr(cls, "__name__", repr(cls))
        raise TypeError(f"{name} is not a remote class: decorate it with @remotely.remote_class")
    return Placeable(cls, found)


def check_several(options: Options, count: int) -> None:
    """Raise ValueError for options of a single actor, where several are made, and owned."""
    if options.get_if_exists:
        raise ValueError("get_if_exists=True is for one actor: a name belongs to one")
    if options.name and count > 1:
        raise ValueError(f"name={options.name!r} is for one actor, not for {count}")


def check_options(base: Options, changes: dict[str, Any]) -> Options:
    """Return `base` with `changes`.  Raises TypeError or ValueError for an invalid option."""
    known = Options.__struct_fields__
    for name in changes.keys() - set(known):
        hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
        raise TypeError(f"there is no option {name!r}; {hint}")
    changes = {name: value for name, value in changes.items() if value is not None}
    if "memory" in changes:
        changes["memory"] = parse_memory(changes["memory"])
    if "resources" in changes:
        arguments.of_type("resources", changes["resources"], dict, 'a dict: {"license": 1}')
        changes["resources"] = dict(parse_others(changes["resources"]))
    if "labels" in changes:
        arguments.of_type("labels", changes["labels"], (list, tuple, set), 'a list: ["ssd"]')
        changes["labels"] = parse_labels(changes["labels"])
    if "packages" in changes:
        changes["packages"] = arguments.packages("packages", changes["packages"])
    if "near" in changes:
        changes["near"] = _actor_of(changes["near"])
    for name, (least, check) in _LEAST.items():
        check(name, changes.get(name, least), least)
    gpus = changes.get("gpus", 0)
    if gpus != int(gpus) and not MIN_GPU <= gpus < 1:
        raise ValueError(f"gpus={gpus!r} must be whole GPUs, or a part of one, as 0.5")
    for name, what in {
        "wait": bool,
        "pack": bool,
        "post_mortem": bool,
        "detached": bool,
        "get_if_exists": bool,
        "name": str,
        "machine": str,
        "python": str,
    }.items():
        if name not in changes:
            continue
        if not isinstance(changes[name], what):
            kind = "a string" if what is str else "True or False"
            raise ValueError(f"{name}={changes[name]!r} must be {kind}")
        arguments.not_empty(name, changes[name])
    if not re.fullmatch(r"[\w.:@+-]{0,100}", changes.get("name", "")):
        wanted = "at most 100 letters, digits and . : @ + - _"
        raise ValueError(f"name={changes['name']!r} must have {wanted}")
    if changes.get("get_if_exists") and not changes.get("name", base.name):
        raise ValueError("get_if_exists=True needs a name: add name=...")
    env = changes.get("env", {})
    texts = [text for pair in env.items() for text in pair] if isinstance(env, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"env={env!r} must map names to strings")
    _check_environment(env)
    return msgspec.structs.replace(base, **changes)


def _actor_of(near: object) -> str:
    """Return the actor's id, and keep no handle, which may be the last one."""
    if not issubclass(type(near), Handle):
        raise TypeError(f"near={near!r} must be the handle of an actor")
    return remote_of(near).actor


def _check_environment(env: dict[str, str]) -> None:
    """Raise ValueError for an environment with which no process can be started."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"env has the name {name!r}, which is empty, or has '=' or NUL")
        if "\0" in value:
            raise ValueError(f"env[{name!r}]={value!r} must not have NUL")
    try:
        size = sum(len(text.encode()) for pair in env.items() for text in pair)
    except UnicodeEncodeError as error:
        raise ValueError(f"env has {error.object!r}, which is not valid Unicode") from None
    if size > MAX_ENVIRONMENT_BYTES:
        raise ValueError(
            f"env has {size:,} bytes, and the limit is {MAX_ENVIRONMENT_BYTES:,}: pass large "
            "values to the constructor"
        )


IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: a class that is written in C
MIN_GPU = 0.001  # GPUs are counted in thousandths
_OF_AN_INSTANCE = {"name", "detached", "get_if_exists", "machine", "near", "patience_s"}
MAX_ENVIRONMENT_BYTES = 128 << 10  # the kernel's limit for one string; all go in one message

_LEAST: dict[str, tuple[int, Callable[[str, object, int], None]]] = {
    "cpus": (0, arguments.number),
    "gpus": (0, arguments.number),
    "max_restarts": (0, arguments.whole_number),
    "concurrency": (1, arguments.whole_number),
    "patience_s": (0, arguments.number),
}


def _decorate(cls: C, options: Options) -> C:
    if not isinstance(cls, type):
        raise TypeError(f"@remote_class is for classes; {cls!r} is not a class")
    introspection.refuse_marks(cls)
    if _is_finished(cls):
        cls = _subclass_of(cls)
    own = cls.__dict__.get("__new__")
    cls.__remotely__ = options  # type: ignore[attr-defined]
    if not isinstance(own, staticmethod) or own.__func__ is not _new:  # not decorated before
        cls.__remotely_new__ = own  # type: ignore[attr-defined]
    cls.__new__ = staticmethod(_new)  # type: ignore[assignment]
    if "__signature__" not in vars(cls):
        cls.__signature__ = _Signature()  # type: ignore[attr-defined]
    if vars(object)["__reduce_ex__"] is inspect.getattr_static(cls, "__reduce_ex__"):
        cls.__reduce_ex__ = construct.reduce_ex  # type: ignore[assignment]
    add_hints(cls)
    return cls


def _is_finished(cls: type) -> bool:
    """Tell whether a class has its name already: no class statement is about to bind it."""
    if cls.__flags__ & IMMUTABLE:
        return True
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is cls


def _subclass_of(cls: C) -> C:
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    names["__slots__"] = ()
    try:
        return without_hooks(type(cls), cls.__name__, (cls,), names)  # type: ignore[return-value]
    except Exception as error:
        raise TypeError(
            f"{cls.__name__} cannot be made remote, since it can have no subclass ({error}): write "
            "a class that has one, and make that remote"
        ) from None


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    if construct.is_under_way(cls):
        return construct.own_new(cls, args, kwargs)
    if cls.__new__ is not _new:
        raise TypeError(
            f"{cls.__name__} has a __new__ of its own, which would run here: decorate this class "
            "too, with @remotely.remote_class"
        )
    return make_on(connection.current(), cls, args, kwargs, cls.__remotely__, 1)[0]  # type: ignore[attr-defined]


def make_on(
    engine: Engine,
    cls: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
    count: int,
) -> list[Any]:
    """Place `count` objects and return their handles."""
    return make_each(engine, cls, [(args, kwargs)] * count, options)


def make_each(
    engine: Engine, cls: Any, arguments: Sequence[Arguments], options: Options
) -> list[Any]:
    """Place an object of each of these arguments and return their handles."""
    for _, kwargs in arguments:
        _refuse_options(cls, kwargs)
    remotes = engine.place(cls, arguments, options)
    if options.get_if_exists:
        return [handle_as(cls, remote, options.wait) for remote in remotes]
    return [handle_of(cls, remote, options.wait) for remote in remotes]


def _refuse_options(cls: type, kwargs: dict[str, Any]) -> None:
    """Raise TypeError for options among the constructor's arguments, unless it takes them."""
    for name in kwargs.keys() & set(Options.__struct_fields__):
        with contextlib.suppress(ValueError):  # a builtin's constructor has no signature
            constructor = construct.constructor_of(cls) or (lambda: None)
            # Not of what it wraps: a decorator may take arguments of its own.
            parameters = arguments.signature_of(
                constructor, follow_wrapped=False
            ).parameters.values()
            if not any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters):
                with_it = f"remotely.options({cls.__name__}, {name}={kwargs[name]!r})"
                raise TypeError(
                    f"{cls.__name__}() takes no {name!r}, which is an option of its actors: write "
                    f"{with_it}(...), or remotely.group({with_it}, ...)"
                )


class _Signature:
    """The descriptor of `__signature__`: the constructor's, without the new `__new__`."""

    def __get__(self, instance: object, cls: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        if (constructor := construct.constructor_of(cls)) is None:
            return inspect.Signature()
        try:
            found = arguments.signature_of(constructor)
        except ValueError:  # a builtin
            raise AttributeError("__signature__") from None
        return found.replace(parameters=list(found.parameters.values())[1:])
