"""References in arguments: futures and refs, whose values are sent separately.

    while a call is pickled   a future among its arguments enters itself in the call's reference
                              table, and is pickled as its number there
    before the call is sent   each number gets an entry: the value, or where the value is
    when the call arrives     the receiver fetches or unpickles the entries, then the arguments

So arguments are pickled when you make the call, and futures may complete later.  Objects enter
themselves in `__reduce__`: a future always, a large ref if the call goes to another machine.

An event loop must not wait for what is elsewhere.  So entries can be looked at before the arguments
are unpickled, which runs none of the user's code: `refers`, `entries_elsewhere`.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from remotely.values import codec
from remotely.values.owned import Owned


class _Local(threading.local):
    """What this thread is unpickling.

    entries     those of the call
    elsewhere   the entries found so far that are elsewhere, if they are only looked at
    """

    entries: Sequence[Any] = ()
    elsewhere: list[Any] | None = None


_local = _Local()


def as_reference(thing: object) -> tuple[Any, ...] | None:
    """Return what to pickle in place of a thing; None if no call's arguments are being pickled."""
    table = codec.reference_table.get()
    return None if table is None else entry(table.number_of(thing))


def entry(number: int) -> tuple[Any, ...]:
    """Return what to pickle in place of the thing with this number."""
    return _entry, (number,)


class Referring:
    """Pickled arguments and the entries that they refer to.  Unpickles to the arguments.

    An entry is a value, or an object that unpickles to one, such as a `Parcel`.
    """

    def __init__(self, value: Owned, entries: Sequence[Any] = ()) -> None:
        self._value = value
        self._entries = list(entries)

    def __reduce__(self) -> tuple[Any, ...]:
        payload, buffers = codec.parts(self._value.payload, self._value.buffers)
        return arrive, (self._entries, payload, buffers)


def check_argument(future: "Future[Any]", name: Callable[[], str]) -> None:
    """Wait for a future that is an argument, and raise its error, with a note that names it."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is not None:
        raise of_argument(error, name())


def of_argument(error: BaseException, name: str) -> BaseException:
    """Return the error of a future that is an argument, with a note that says so.

    It is a copy, unless the error cannot be copied.
    """
    sentence = f"{name[0].upper()}{name[1:]} is a future that failed; the call did not run."
    try:
        copied = copy.copy(error)
    except Exception:  # a class that does not take its own arguments
        copied = error
    copied.__cause__ = error.__cause__
    copied.of_argument = True  # type: ignore[attr-defined] # not raised by the called actor
    copied.__notes__ = [*getattr(error, "__notes__", ()), sentence]
    return copied.with_traceback(None)


def arrive(entries: Sequence[Any], payload: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    """Unpickle arguments that refer to these entries."""
    if _local.elsewhere is not None:
        return None
    before, _local.entries = _local.entries, entries
    try:
        return codec.decode(payload, buffers)
    finally:
        _local.entries = before


def refers(payload: bytes | memoryview) -> bool:
    """Return whether these are arguments that refer to entries: such a pickle begins by that."""
    return _ARRIVE in bytes(payload[:_BEGINNING_BYTES])


def entries_elsewhere(payload: bytes | memoryview, buffers: Sequence[Any]) -> list[Any]:
    """Return the entries of arguments that `note_elsewhere` is called for."""
    found: list[Any] = []
    _local.elsewhere = found
    try:
        codec.decode(payload, buffers)
    finally:
        _local.elsewhere = None
    return found


def note_elsewhere(entry: object) -> bool:
    """Note an entry that is being unpickled; return whether it is only looked at."""
    if _local.elsewhere is None:
        return False
    _local.elsewhere.append(entry)
    return True


def _entry(number: int) -> Any:
    return _local.entries[number]


_ARRIVE = f"{arrive.__module__}".encode()
_BEGINNING_BYTES = 64
