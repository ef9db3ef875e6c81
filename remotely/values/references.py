"""References in arguments to what they do not contain: futures, refs, and results in a store.

    while a call is pickled   a future among its arguments is noted, and its number is pickled
    before the call leaves    each becomes an entry: the value, or where the value is
    where the call arrives    the entries are fetched or unpickled first, and then the arguments

So arguments are pickled when you make the call, and futures may be done later.  An object notes
itself in its `__reduce__`: a future always, a large ref if the call goes to another machine.
"""

import copy
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from remotely.errors import RemotelyError
from remotely.values import codec
from remotely.values.owned import Owned
from remotely.values.payload import Parcel, Unpacked


class Notes:
    """What was noted for a call to these actors, in the order of the numbers.

    There are none if it is not known yet which actor the call is for.  `kept` are the actors whose
    handles are among the arguments, which have to live until the call has its outcome.
    """

    __slots__ = ("_numbers", "kept", "remotes", "things")

    def __init__(self, remotes: Sequence[Any]) -> None:
        self.remotes = remotes
        self.things: list[Any] | tuple[()] = ()  # there is one of these for each call: no list yet
        self.kept: list[Any] | tuple[()] = ()
        self._numbers: dict[int, int]  # by the id of a thing

    def keep(self, actor: object) -> None:
        self.kept = self.kept or []
        self.kept.append(actor)

    def number_of(self, thing: object) -> int:
        if isinstance(self.things, tuple):
            self.things, self._numbers = [], {}
        number = self._numbers.setdefault(id(thing), len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class _Local(threading.local):
    """What this thread is doing.

    notes    where things note themselves, while a call is pickled
    entries  those of a call, while it is unpickled
    """

    notes: Notes | None = None
    entries: Sequence[Any] = ()


local = _Local()

# How this process fetches what is in a store; an actor sets it.
fetch_parcel: Callable[[Parcel], Unpacked] | None = None


def noted(thing: object) -> tuple[Any, ...] | None:
    """Return what to pickle in the place of a thing; None if nobody notes."""
    found = local.notes
    return None if found is None else entry(found.number_of(thing))


def entry(number: int) -> tuple[Any, ...]:
    """Return what to pickle in the place of what has this number."""
    return _entry, (number,)


class Referring:
    """Arguments that were pickled, and the entries that they refer to.  Arrives as the arguments.

    An entry is a value, or something that arrives as one.
    """

    def __init__(self, value: Owned, entries: Sequence[Any] = ()) -> None:
        self._value = value
        self._entries = list(entries)

    def __reduce__(self) -> tuple[Any, ...]:
        payload, buffers = codec.parts(self._value.payload, self._value.buffers)
        return arrive, (self._entries, payload, buffers)


class InStore:
    """A value that is in a store.  It arrives as the value, which is fetched on arrival."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self.name = parcel.value

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch, (_write(self._parcel),)


class Named(NamedTuple):
    """What an argument refers to, and the words for that argument."""

    thing: Any
    name: str


def named_arguments(
    method: str, args: tuple[Any, ...], kwargs: dict[str, Any], things: Sequence[Any]
) -> list[Named]:
    """Say which arguments refer to these things."""
    words = [*((f"argument {i} of {method}", a) for i, a in enumerate(args, 1))]
    words += [(f"argument {name!r} of {method}", a) for name, a in kwargs.items()]
    names: dict[int, str] = {}
    for name, argument in words:
        # Of a `Reference`. Static: an argument may be a handle, or run code of the user's.
        for thing in (argument, inspect.getattr_static(argument, "future", None)):
            names.setdefault(id(thing), name)
    return [Named(thing, names.get(id(thing), f"an argument of {method}")) for thing in things]


def of_argument(error: BaseException, name: str) -> BaseException:
    """Return a copy, if it can be copied, of the error of a future that is an argument; it says
    so."""
    sentence = f"{name[0].upper()}{name[1:]} is a future that ended so; the call did not run."
    try:
        copied = copy.copy(error)
    except Exception:  # a class that does not take its own arguments
        copied = error
    copied.__cause__ = error.__cause__
    copied.of_argument = True  # type: ignore[attr-defined] # and not of the actor that is called
    copied.__notes__ = [*getattr(error, "__notes__", ()), sentence]
    return copied.with_traceback(None)


def arrive(entries: Sequence[Any], payload: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Unpickle arguments that refer to these entries."""
    before, local.entries = local.entries, entries
    try:
        return codec.decode(payload, buffers)
    finally:
        local.entries = before


def _entry(number: int) -> Any:
    return local.entries[number]


def _fetch(data: bytes) -> Any:
    if fetch_parcel is None:
        raise RemotelyError("only an actor fetches results of other actors")
    return codec.decode(*fetch_parcel(_read(data)))


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Parcel).decode
