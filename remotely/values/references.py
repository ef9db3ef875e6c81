"""References in arguments to what they do not contain: futures, refs, and results in a store.

    while a call is pickled   a future among its arguments is noted, and its number is pickled
    before the call leaves    each becomes an entry: the value, or where the value is
    where the call arrives    the entries are fetched or unpickled first, and then the arguments

So arguments are pickled when you make the call, and futures may be done later.  An object notes
itself in its `__reduce__`: a future always, a large ref if the call goes to another machine.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from remotely.errors import RemotelyError
from remotely.values import codec
from remotely.values.owned import Owned
from remotely.values.payload import Parcel, Unpacked


class _Local(threading.local):
    """What this thread is doing: `entries` are those of a call, while it is unpickled."""

    entries: Sequence[Any] = ()


_local = _Local()

# How this process fetches what is in a store; an actor sets it.
fetch_parcel: Callable[[Parcel], Unpacked] | None = None


def noted(thing: object) -> tuple[Any, ...] | None:
    """Return what to pickle in the place of a thing; None if nobody notes."""
    found = codec.noting.get()
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
    before, _local.entries = _local.entries, entries
    try:
        return codec.decode(payload, buffers)
    finally:
        _local.entries = before


def _entry(number: int) -> Any:
    return _local.entries[number]


def _fetch(data: bytes) -> Any:
    if fetch_parcel is None:
        raise RemotelyError("only an actor fetches results of other actors")
    return codec.decode(*fetch_parcel(_read(data)))


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Parcel).decode
