"""The identity of an actor process: for its own code, for `ps`, and in tracebacks.

`top` shows the name of a process, of which the kernel keeps 15 bytes.  `ps` shows its arguments,
which can be overwritten in place.  Refused: the package setproctitle, which also overwrites the
environment, and with it the mark that says to which cluster a process belongs.
"""

import contextlib
import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remotely.errors import RemotelyError

TITLE_BYTES = 15  # the kernel keeps no more: prctl(2), PR_SET_NAME


@dataclass(frozen=True)
class CurrentActor:
    """The identity of an actor.  `life` counts its restarts."""

    name: str
    class_name: str
    life: int
    pid: int
    machine: str
    actor: str = ""  # its id

    @property
    def handle(self) -> Any:
        """A borrowed handle of this actor, to pass to others.  Only the actor itself can read it.

        Do not call it from within the actor: the call would wait for itself.  Use `self`.
        """
        from remotely.api.verbs import borrow  # noqa: PLC0415 - a large import, rarely needed

        if self != current_actor() or _class is None:
            raise RemotelyError("only the actor itself has its handle: call current_actor() there")
        return borrow(_class, self.actor, self.name)


_current: CurrentActor | None = None
_class: type | None = None  # of the actor's object; set just before the object is made


def set_class(cls: type) -> None:
    """Note that this actor process is about to make an object of this class."""
    global _class
    _class = cls


def current_actor() -> CurrentActor | None:
    """Return the actor that runs this code: its name, class_name, life, pid, machine and `handle`.

    It is None in a script, in an object that a process serves (`remotely.serve`), in a process that
    an actor started, and with REMOTELY_LOCAL=1.
    """
    return _current if _current is not None and _current.pid == os.getpid() else None


def become(actor: str, name: str, class_name: str, life: int, machine: str) -> None:
    """Make this process the actor with the id `actor`."""
    global _current
    _current = CurrentActor(name, class_name, life, os.getpid(), machine, actor)


def show_as(name: str, class_name: str) -> None:
    """Make `top` and `ps` show this process as an actor."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_bytes(title(name))
    with contextlib.suppress(OSError, ValueError, IndexError):
        _write_arguments(f"remotely actor {name} ({class_name})")


def title(name: str) -> bytes:
    """Return a name for `top`; a long one is cut in the middle."""
    whole = name.encode(errors="replace")
    if len(whole) <= TITLE_BYTES:
        return whole
    side = TITLE_BYTES // 2
    return whole[:side] + b"~" + whole[-side:]


def _write_arguments(text: str) -> None:
    """Make `ps` show this text instead of the arguments, cut to their length."""
    _, _, fields = Path("/proc/self/stat").read_text().rpartition(") ")
    start, end = (int(field) for field in fields.split()[45:47])  # arg_start, arg_end: man 5 proc
    size = end - start - 1
    if start and size > 0:  # the last byte stays: otherwise `ps` would show the environment too
        ctypes.memmove(start, text.encode(errors="replace")[:size].ljust(size), size)


def heading() -> str:
    """Return the first line of a traceback that is sent from this process."""
    if (me := current_actor()) is None:
        return ""
    return f"In {me.name} (pid {me.pid} on {me.machine}):\n"
