"""What arguments refer to without containing it: futures, refs, and results in a store.

    while a call is pickled   a future among its arguments is noted, and its number is pickled
    before the call leaves    each becomes an entry: the value, or where the value is
    where the call arrives    the entries are fetched or unpickled first, and then the arguments

So arguments are pickled when you make the call, and futures may be done later.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from remotely.errors import RemotelyError
from remotely.values import codec, notes
from remotely.values.memory_peer import Unpacked
from remotely.values.parcel import Parcel


class _Local(threading.local):
    entries: Sequence[Any] = ()  # while a call is unpickled


_local = _Local()

# How this process fetches what is in a store; an actor sets it.
fetch_parcel: Callable[[Parcel], Unpacked] | None = None


def noted(thing: object) -> tuple[Any, ...] | None:
    """Return what to pickle in the place of a thing; None if nobody notes."""
    found = notes.local.notes
    return None if found is None else entry(found.number_of(thing))


def entry(number: int) -> tuple[Any, ...]:
    """Return what to pickle in the place of what has this number."""
    return _entry, (number,)


class Referring:
    """Arguments that were pickled, and the entries that they refer to.  Arrives as the arguments.

    An entry is a value, or something that arrives as one.
    """

    def __init__(self, encoded: codec.Encoded, entries: Sequence[Any]) -> None:
        self._encoded = encoded
        self._entries = list(entries)

    def __reduce__(self) -> tuple[Any, ...]:
        payload, buffers = codec.parts(self._encoded.payload, self._encoded.buffers)
        return _arrive, (self._entries, payload, buffers)


class InStore:
    """A value that is in a store.  It arrives as the value, which is fetched on arrival."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self.name = parcel.value

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch, (_write(self._parcel),)


def _arrive(entries: Sequence[Any], payload: bytes, buffers: Sequence[Any]) -> Any:
    before, _local.entries = _local.entries, entries
    try:
        return codec.decode_parts(payload, buffers)
    finally:
        _local.entries = before


def _entry(number: int) -> Any:
    return _local.entries[number]


def _fetch(data: bytes) -> Any:
    if fetch_parcel is None:
        raise RemotelyError("only an actor fetches results of other actors")
    return codec.decode_parts(*fetch_parcel(_read(data)))


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(Parcel).decode
