"""The special methods of handles, which Python looks up only on the type.

`len(a)`, `a[i]`, `a + b`, `for x in a` and `with a` use the type of `a`.  So the type of a handle
has the special methods of the user's class, each of which is a blocking call.  Not forwarded are:

    __repr__ __str__                name the actor: printing and logging must not block
    __format__                      names the actor in f"{a}"; in f"{a:x}" it is forwarded
    __eq__ __ne__ __hash__          identity: handles of one actor are equal
    __getattr__ and the like        run in the actor anyway, when an attribute is read or written
    pickling and copying            make another handle of the same actor
    __sizeof__                      the handle's own
    __replace__                     runs here, and makes another actor
    __await__ __aiter__ __anext__   do not exist on handles: a method that yields is a stream
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from remotely.errors import ActorDied, NotPicklable, RemotelyError, WorkerLost
from remotely.futures.awaitable import until_done
from remotely.futures.future import CallFuture, wait_for

_BINARY = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("lshift", "rshift", "and", "xor", "or"),
)
FORWARDED = (
    *("__len__", "__length_hint__", "__getitem__", "__setitem__", "__delitem__", "__contains__"),
    *("__iter__", "__next__", "__reversed__", "__enter__"),
    *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__bytes__", "__fspath__"),
    *("__round__", "__trunc__", "__floor__", "__ceil__"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__neg__", "__pos__", "__abs__", "__invert__"),
    *(f"__{form}{name}__" for name in _BINARY for form in ("", "r", "i")),
    "__array__",
)
# All that run in the actor: those in which handles do more than forward, too.
CALLED = (*FORWARDED, "__call__", "__format__", "__exit__", "__aenter__", "__aexit__")

_MISSING = object()


class Special(Protocol):
    """A special method of one handle."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it and wait."""

    def send(self, background: bool, *args: Any) -> CallFuture[Any]:
        """Send the call.  Without `background`, the caller is about to wait for it."""


class Descriptor(Protocol):
    def __get__(self, handle: Any, cls: type | None = None, /) -> Special: ...


Bind = Callable[[Any], Special]  # takes the handle


def special_methods(
    cls: type, method: Callable[[str, Any], Descriptor], close: Callable[[Any], None]
) -> dict[str, Any]:
    """Return the special methods of the handles of a class.

    `method` takes the name and the member of the class.
    """
    names: dict[str, Any] = {}

    def bind(name: str) -> Bind:
        return method(name, _special(cls, name)).__get__

    for name in FORWARDED:
        if (member := _special(cls, name)) is not _MISSING:
            names[name] = None if member is None else method(name, member)
    if defines(cls, "__format__"):
        names["__format__"] = _format(bind("__format__"))
    for name in ("__dataclass_fields__", "__dataclass_params__"):  # looked up on the type, too
        if hasattr(cls, name):
            names[name] = getattr(cls, name)
    if defines(cls, "__exit__"):
        names["__exit__"] = _exit(bind("__exit__"), close)
    if defines(cls, "__aenter__"):
        names["__aenter__"] = _enter_async(bind("__aenter__"))
    if defines(cls, "__aexit__"):
        names["__aexit__"] = _exit_async(bind("__aexit__"), close)
    return names


def defines(cls: type, name: str) -> bool:
    """Tell whether a class or one of its bases, other than `object`, has a special method."""
    member = _special(cls, name)
    return member is not _MISSING and member is not None


def _special(cls: type, name: str) -> Any:
    """Return a special method; None if the class disables it (`__iter__ = None`)."""
    for base in cls.__mro__[:-1]:
        if name in vars(base):
            return vars(base)[name]
    return _MISSING


def _format(bind: Bind) -> Callable[..., str]:
    def format_one(self: Any, specification: str) -> str:
        if not specification:
            return str(self)
        return str(bind(self)(specification))

    return format_one


def leave(exits: Sequence[Special], error: BaseException | None) -> bool:
    """Call each of these `__exit__`; true if one of them suppresses the error."""
    alone = len(exits) == 1
    futures = deque(_send_exit(each, error, not alone) for each in exits)
    wait_for(futures)
    suppressed = [_outcome(futures.popleft(), error) for _ in exits]
    return any(suppressed)


def _exit(bind: Bind, close: Callable[[Any], None]) -> Callable[..., Any]:
    def exit_one(self: Any, kind: Any, error: Any, trace: Any) -> bool:
        try:
            return leave((bind(self),), error)
        finally:
            close(self)

    return exit_one


def _enter_async(bind: Bind) -> Callable[..., Any]:
    async def enter(self: Any) -> Any:
        return await bind(self).send(True)

    return enter


def _exit_async(bind: Bind, close: Callable[[Any], None]) -> Callable[..., Any]:
    async def exit_one(self: Any, kind: Any, error: Any, trace: Any) -> bool:
        import asyncio  # noqa: PLC0415 - slow to import, and async code has imported it

        try:
            futures = deque([_send_exit(bind(self), error, True)])
            await until_done(futures[0])
            return _outcome(futures.pop(), error)
        finally:
            await asyncio.to_thread(close, self)

    return exit_one


def _outcome(future: CallFuture[Any], error: BaseException | None) -> bool:
    try:
        return bool(future.result())
    except (ActorDied, WorkerLost):
        if error is None:
            raise
        return False  # the error that ended the block is more useful
    finally:
        del future  # see future.py


def _send_exit(method: Special, error: BaseException | None, background: bool) -> CallFuture[Any]:
    """Send the error that ended the block, without its traceback, or, if unpicklable, its text."""
    kind = None if error is None else type(error)
    try:
        return method.send(background, kind, error, None)
    except NotPicklable:
        text = RemotelyError(f"{type(error).__name__}: {error}")
        return method.send(background, RemotelyError, text, None)
