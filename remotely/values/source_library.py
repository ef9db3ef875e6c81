"""The sources of this process, and which of them are sent.

All of it has a limit, MAX_BYTES.  What Python has compiled is left out first.  If that is not
enough, making an actor is refused, but a call never is: it may be one that ends a long run.  The
largest modules are then left out, and a warning names them, once.
"""

import contextlib
import logging
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import msgspec

from remotely.errors import RemotelyError
from remotely.machine.shield import RLock
from remotely.protocol.resources import format_bytes
from remotely.values.by_value import Way, way_of
from remotely.values.sources import (
    MAX_BYTES,
    MAX_FILES,
    Batch,
    Source,
    files_of,
    nbytes_of,
    pack,
    source_of,
    unpack,
)

log = logging.getLogger("remotely")


class Library:
    """The sources of this process, in the batches in which they are sent; `batches` only grows."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._lock = RLock()
        self._held: dict[str, Source] = {}  # the newest of each name
        self._read: dict[str, object] = {}  # the spec with which a module was last read
        self._left_out: dict[str, object] = {}  # the same of those for which there was no room
        self._installed: set[str] = set()  # most of what is loaded
        self.loaded = 0  # so many modules, at the last look
        self._whole = Batch("", b"")  # what a new actor is sent
        self._whole_of = 0  # so many batches

    def after_fork(self) -> None:
        """In a child: whoever held the lock is not here."""
        self._lock = RLock()

    def gather(self) -> None:
        """Make a batch of the modules that are new or were reloaded, if there are any.

        Raises RemotelyError if all of it is too large.
        """
        with self._lock:
            loaded = len(sys.modules)
            found, read = self._new(but={})
            room = self._make_room(found)
            if room < 0 and found:
                raise RemotelyError(_too_large(MAX_BYTES - room, found.values()))
            self._left_out.clear()
            self._add(found, read, room)
            self.loaded = loaded

    def look(self) -> None:
        """Gather if modules may have been loaded since the last time; called before each call.

        For want of room it leaves out the largest, and says so once.
        """
        if len(sys.modules) == self.loaded:
            return
        with self._lock:
            loaded = len(sys.modules)
            found, read = self._new(but=self._left_out)
            room = self._make_room(found)
            total = MAX_BYTES - room
            left_out = []
            while room < 0 and found:
                largest = found.pop(_largest(found.values()).name)
                self._left_out[largest.name] = read.pop(largest.name)
                left_out.append(largest)
                room += len(largest.text or b"")
            if left_out:
                log.warning("%s", _left_out(total, left_out))
            self._add(found, read, room)
            self.loaded = loaded

    def whole(self) -> tuple[Batch, list[str]]:
        """Return all as they are now, as one batch, and the hashes of those it stands for."""
        with self._lock:
            if self._whole_of != len(self.batches):
                self._whole_of = len(self.batches)
                is_one = self._whole_of == 1
                self._whole = self.batches[0] if is_one else pack(list(self._held.values()))
            return self._whole, [batch.digest for batch in self.batches]

    def add(self, batch: Batch) -> list[Source]:
        """Keep what this process was sent, to send it on.  Return the sources that are new."""
        with self._lock:
            if any(batch.digest == known.digest for known in self.batches):
                return []
            sources = unpack(batch.content)
            self.batches.append(batch)
            self._held.update((source.name, source) for source in sources)
            return sources

    def _new(self, but: dict[str, object]) -> tuple[dict[str, Source], dict[str, object]]:
        """Return the modules that are new or were reloaded, and the specs of all that were read."""
        found: dict[str, Source] = {}
        read: dict[str, object] = {}
        loaded: dict[str, Any] = dict(sys.modules)  # there may be other things than modules
        for name, module in loaded.items():
            if name in self._installed:
                continue
            spec = getattr(module, "__spec__", None)
            if spec is None or not isinstance(module, ModuleType):
                continue
            if self._read.get(name) is spec or but.get(name) is spec:
                continue
            way = way_of(name)
            if way is Way.INSTALLED:
                self._installed.add(name)
                continue
            with contextlib.suppress(Exception):  # its file is gone, say: nothing to be sent
                source = source_of(name, module, spec, way)
                if source is not None and not source.is_as(self._held.get(name)):
                    found[name] = source
            read[name] = spec
        return found, read

    def _make_room(self, found: dict[str, Source]) -> int:
        """Return how many bytes are left, which may be less than none."""
        room = MAX_BYTES - nbytes_of({**self._held, **found}.values())
        if room >= 0:
            return room
        for sources in (self._held, found):
            for name, source in sources.items():
                if source.compiled:
                    sources[name] = msgspec.structs.replace(source, compiled=b"")
        return MAX_BYTES - nbytes_of({**self._held, **found}.values())

    def _add(self, found: dict[str, Source], read: dict[str, object], room: int) -> None:
        """Make a batch of these, and of what lies beside them in packages, as far as it fits."""
        self._read.update(read)
        for package in [s for s in found.values() if s.name not in self._held]:
            files = list(files_of(package))
            known = self._held.keys() | found.keys() | self._left_out.keys()
            others = {file.name: file for file in files if file.name not in known}
            if len(files) <= MAX_FILES and nbytes_of(others.values()) <= room:
                room -= nbytes_of(others.values())
                found.update(others)
        if found:
            self.batches.append(pack(list(found.values())))
            self._held.update(found)


def _largest(found: Iterable[Source]) -> Source:
    return max(found, key=lambda source: len(source.text or b""))


def _too_large(total: int, found: Iterable[Source]) -> str:
    return f"{_total(total)}; the largest is {_shown(_largest(found))}: {_WAY_OUT}"


def _left_out(total: int, sources: Sequence[Source]) -> str:
    names = ", ".join(map(_shown, sources))
    return f"{_total(total)}; actors are not sent {names}. {_WAY_OUT.capitalize()}"


def _total(nbytes: int) -> str:
    return (
        f"the modules of this script have {format_bytes(nbytes)}; {format_bytes(MAX_BYTES)} can be "
        "sent"
    )


def _shown(source: Source) -> str:
    return f"{source.name} ({source.file})"


_WAY_OUT = (
    "install what is large on the workers, or keep data in files and ship those (connect(ship=...))"
)


library = Library()
