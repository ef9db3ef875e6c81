"""What an error of a method becomes on its way to the caller: a pickle, if it has one, and text.

The text is the traceback of the process that raised it.  It always arrives: as the cause of the
error or, if that cannot be made again over there, as the message of an ActorRaised.
"""

import traceback
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple

from remotely.errors import ActorRaised, RemotelyError, RemoteTraceback
from remotely.values import codec, source_finder
from remotely.values.source_lines import with_source_lines


class RaisedError(NamedTuple):
    payload: bytes  # empty if the error does not pickle
    text: bytes


def pack(error: BaseException, heading: str, ours: Collection[str]) -> RaisedError:
    """Return what travels.  Frames of `ours`, modules at the top of the traceback, are left out."""
    note = source_finder.missing_here(error)
    if note:
        error.add_note(note)
    trace = traceback.format_exception(type(error), error, _users_part(error, ours))
    text = (heading + "".join(trace)).encode(errors="replace")
    try:
        return RaisedError(bytes(codec.encode(error, in_band=True).payload), text)
    except RemotelyError:
        return RaisedError(b"", text)


def unpack(payload: bytes | memoryview, text: bytes | memoryview) -> BaseException:
    """Return the error, or an ActorRaised with its text."""
    told = with_source_lines(bytes(text).decode(errors="replace"))
    if payload:
        with suppress(Exception):  # its class may not exist here, or not take its own arguments
            error = codec.decode(payload, [])
            if isinstance(error, BaseException):
                error.__cause__ = RemoteTraceback(told)
                return error
    return ActorRaised(told)


def was_raised(error: BaseException) -> bool:
    """Tell whether a method raised it, and not the toolkit because the method's actor was lost."""
    return isinstance(error.__cause__, RemoteTraceback) or hasattr(error, "of_argument")


def _users_part(error: BaseException, ours: Collection[str]) -> Any:
    """Return the traceback without our own frames at its top."""
    here, trace = error.__traceback__, error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in ours:
        trace = trace.tb_next
    return trace or here
