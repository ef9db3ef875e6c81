"""An exception raised by a method, as sent to the caller: a pickle, if it has one, and text.

The text is the traceback from the process that raised it.  It always arrives: as the cause of the
error or, if the caller cannot unpickle the error, as the message of an ActorRaised.

An actor has no file for code that was sent by value: cells of a notebook, and the script itself on
another machine.  The caller's linecache has these lines, and the caller adds them to the text.
"""

import linecache
import os
import re
import stat
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, NamedTuple

from remotely.errors import ActorRaised, RemotelyError, RemoteTraceback
from remotely.machine.interrupts import errors_ignored
from remotely.reporting.tracebacks import folded
from remotely.values import codec, sources

# What looks at each error of the user's code before it becomes a reply: a debugger (post-mortem).
examine: Callable[[BaseException], object] = lambda error: None


class RaisedError(NamedTuple):
    payload: bytes  # empty if the error does not pickle
    text: bytes


def pack(error: BaseException, heading: str, ours: Collection[str]) -> RaisedError:
    """Pack an error, without the frames of `ours`, our modules at the top of the traceback."""
    examine(error)
    note = sources.missing_here(error)
    if note:
        error.add_note(note)
    trace = traceback.format_exception(type(error), error, _users_part(error, ours))
    text = (heading + folded("".join(trace))).encode(errors="replace")
    try:
        encoded = codec.encode_result(error, "the error", time.monotonic(), in_band=True)
        return RaisedError(bytes(encoded.payload), text)
    except RemotelyError:
        return RaisedError(b"", text)


def unpack(payload: bytes | memoryview, text: bytes | memoryview) -> BaseException:
    """Return the error, or an ActorRaised with its text."""
    trace = with_source_lines(bytes(text).decode(errors="replace"))
    if payload:
        with errors_ignored:  # its class may not exist here, or not take its own arguments
            error = codec.decode(payload, [])
            if isinstance(error, BaseException):
                error.__cause__ = RemoteTraceback(trace)
                return error
    return ActorRaised(trace)


def was_raised(error: BaseException) -> bool:
    """Return whether a method raised it, rather than remotely because the actor was lost."""
    return isinstance(error.__cause__, RemoteTraceback) or hasattr(error, "of_argument")


def _users_part(error: BaseException, ours: Collection[str]) -> Any:
    """Return the traceback without our own frames at its top."""
    here, trace = error.__traceback__, error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in ours:
        trace = trace.tb_next
    return trace or here


# --- source lines that a remote traceback lacks ---------------------------------------------------

# The text comes from a process that may be compromised, and may name any file.  So files that could
# block or fill the memory are not opened: devices, pipes, files of /proc, huge files.

MAX_FILE_BYTES = 16 << 20

_FRAME = re.compile(r'(?P<margin>[ |+-]*)File "(?P<file>.+)", line (?P<number>\d{1,9}), in ')


def with_source_lines(text: str) -> str:
    """Add the line of source below each frame of a traceback, if it is available here."""
    lines = text.split("\n")
    out = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        out.append(line)
        if (frame := _FRAME.match(line)) and not below.startswith(frame["margin"] + "  "):
            with suppress(Exception):  # the file name may be anything
                source = _line(frame["file"], int(frame["number"]))
                out += [f"{frame['margin']}  {source}"] if source else []
    return "\n".join(out)


def _line(file: str, number: int) -> str:
    if file not in linecache.cache:  # cells are in it, and files of earlier tracebacks
        found = os.stat(file)
        if not stat.S_ISREG(found.st_mode) or not 0 < found.st_size <= MAX_FILE_BYTES:
            return ""
    return linecache.getline(file, number).strip()
