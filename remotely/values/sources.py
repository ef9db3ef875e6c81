"""The user's own modules, sent as source and imported in the actor.

A client gathers the modules of the script (`Way.SOURCE` in picklers.py) into batches: its library.
It sends each batch to every actor that it calls, ahead of the first call that may need it: with
PREPARE the modules that are loaded when the actor is created, in SOURCES those loaded later.  In
the actor, a finder at the front of `sys.meta_path` serves them to Python's import system.  So each
is imported once, under the same name and with the same `__file__` as in the client.  A call, an
import in a method, and another module all get the same module, on this machine or another.

All files of a package are sent, not only the loaded modules, so that a method may import others.

A module is sent with the source that it had when it was first sent; `importlib.reload` has it read
again.  An actor that has imported a module keeps it, whatever is sent later.

Modules shipped by name (`connect(ship=...)`) are imported from the shipped files, so that they find
the data beside them.
"""

import contextlib
import functools
import hashlib
import importlib.util
import logging
import marshal
import struct
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import msgspec

from remotely.errors import RemotelyError
from remotely.machine.interrupts import errors_ignored
from remotely.machine.shield import RLock
from remotely.protocol.resources import format_bytes
from remotely.values import codec
from remotely.values.picklers import (
    Way,
    goes_by_name,
    is_of_standard_library,
    received_as_source,
    way_of,
)

log = logging.getLogger("remotely")

MAX_BYTES = 16 << 20  # of all modules of one client
MAX_FILES = 5000  # files and folders of one package
MTIME = 0  # compared by Python to see whether compiled code belongs to this source


class ModuleSource(msgspec.Struct, frozen=True, array_like=True):
    """One module.  Without text it is a package without an `__init__`, or is sent by value."""

    name: str
    file: str = ""
    text: bytes | None = None
    path: list[str] | None = None  # of a package
    by_value: bool = False
    compiled: bytes = b""  # as in a .pyc file; empty if the module was not loaded

    def is_same_module(self, other: "ModuleSource | None") -> bool:
        """Compare without the compiled code."""
        return other is not None and (self.file, self.text, self.path, self.by_value) == (
            other.file,
            other.text,
            other.path,
            other.by_value,
        )


class SourceBatch(NamedTuple):
    """Packed sources, and the hash by which an actor knows that it has them."""

    digest: str
    content: bytes


def batch_of(content: bytes) -> SourceBatch:
    return SourceBatch(hashlib.sha256(content).hexdigest(), content)


# --- reading sources ------------------------------------------------------------------------------


def nbytes_of(sources: Iterable[ModuleSource]) -> int:
    return sum(len(source.text or b"") + len(source.compiled) for source in sources)


def source_of(name: str, module: ModuleType, spec: Any, way: Way) -> ModuleSource | None:
    """Return the source to send for a module; None if it is not sent as source."""
    path = getattr(module, "__path__", None)
    path = None if path is None else [str(folder) for folder in path]
    if way is Way.SOURCE:
        text = spec.loader.get_data(spec.origin)
        return ModuleSource(name, spec.origin, text, path, compiled=_compiled(name, spec, text))
    if path is not None and not is_of_standard_library(name):  # a folder without an `__init__`
        return ModuleSource(name, path=path)
    if name in ("__main__", "__mp_main__") or not spec.origin or is_of_standard_library(name):
        return None  # in the actor, the name is another module's, which may be imported
    return ModuleSource(name, by_value=True)


def _compiled(name: str, spec: Any, text: bytes) -> bytes:
    """Return the code of a loaded module as in a .pyc file, so that actors need not compile it."""
    with errors_ignored:  # it was edited, and has a syntax error at the moment
        code = marshal.dumps(spec.loader.get_code(name))
        return importlib.util.MAGIC_NUMBER + struct.pack("<LLL", 0, MTIME, len(text)) + code
    return b""


def files_of(package: ModuleSource) -> Iterator[ModuleSource]:
    """Yield the modules below a top-level package; at most MAX_FILES + 1."""
    if package.text is None or not package.path or "." in package.name:
        return
    left = MAX_FILES + 1
    seen = set()
    todo = [(package.name, Path(package.path[0]))]
    while todo and left:
        name, folder = todo.pop()
        with contextlib.suppress(OSError):
            if folder.resolve() in seen:  # a link to a parent folder
                continue
            seen.add(folder.resolve())
            entries = {entry.name: entry for entry in folder.iterdir()}
            if "__init__.py" not in entries:
                yield ModuleSource(name, path=[str(folder)])
            for entry in entries.values():
                is_module = entry.suffix == ".py" and entry.stem.isidentifier()
                is_folder = entry.name.isidentifier() and entry.name != "__pycache__"
                if is_module:
                    yield _module_at(name, entry)
                elif is_folder and entry.is_dir():
                    todo.append((f"{name}.{entry.name}", entry))
                else:
                    continue
                left -= 1
                if not left:
                    return


def _module_at(package: str, file: Path) -> ModuleSource:
    if file.stem == "__init__":
        return ModuleSource(package, str(file), file.read_bytes(), [str(file.parent)])
    return ModuleSource(f"{package}.{file.stem}", str(file), file.read_bytes())


# --- packing --------------------------------------------------------------------------------------


def pack(sources: Sequence[ModuleSource]) -> SourceBatch:
    return batch_of(zlib.compress(_encode(sources), 1))


def unpack(content: bytes) -> list[ModuleSource]:
    reader = zlib.decompressobj()
    try:
        # Twice, since the names and paths of many modules also take room.
        packed = reader.decompress(content, 2 * MAX_BYTES)
        if reader.eof:
            return _decode(packed)
    except (zlib.error, msgspec.DecodeError) as error:
        raise RemotelyError(f"not the sources of a client: {error}") from None
    raise RemotelyError("the sources of a client are too large or truncated")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ModuleSource]).decode


# --- the sources of this process ------------------------------------------------------------------


class SourceReceiver(Protocol):
    """An actor that is sent modules."""

    sent: tuple[int, frozenset[str]]  # a life, and the hashes of the batches that it has


class Library:
    """The sources of this process, in the batches in which they are sent; `batches` only grows.

    The total is limited to MAX_BYTES.  Compiled code is left out first.  If that is not enough, no
    actor can be created, but calls never fail: one may be the last of a long run.  Instead the
    largest modules are left out, and a warning names them, once.
    """

    def __init__(self) -> None:
        self.batches: list[SourceBatch] = []
        self._lock = RLock()
        self._held: dict[str, ModuleSource] = {}  # the newest of each name
        self._read: dict[str, object] = {}  # the spec with which a module was last read
        self._left_out: dict[str, object] = {}  # the same, for modules left out for lack of room
        self._installed: set[str] = set()  # most of the loaded modules
        self.loaded = 0  # how many modules were loaded at the last look
        self._whole = SourceBatch("", b"")  # sent to new actors
        self._whole_of = 0  # how many batches `_whole` combines

    def after_fork(self) -> None:
        """In a forked child: replace the lock, whose holder may not exist here."""
        self._lock = RLock()

    def gather(self, what: str = "creates an actor") -> None:
        """Add a batch of the modules that are new or were reloaded, if there are any.

        Called before an actor is created, or an object served; `what` says so in errors.  Raises
        RemotelyError if the total is too large, and in an actor that is importing such a module.
        """
        refuse_while_importing(what)
        self._update(refuses=True)

    def look(self) -> None:
        """Gather if modules may have been loaded since the last time; called before each call.

        If the total is too large, it leaves out the largest modules, and warns once.
        """
        if len(sys.modules) != self.loaded:
            self._update(refuses=False)

    def whole(self) -> tuple[SourceBatch, list[str]]:
        """Return all sources as one batch, and the hashes of the batches that it combines."""
        with self._lock:
            if self._whole_of != len(self.batches):
                self._whole_of = len(self.batches)
                is_one = self._whole_of == 1
                self._whole = self.batches[0] if is_one else pack(list(self._held.values()))
            return self._whole, [batch.digest for batch in self.batches]

    def whole_for(self, actor: "SourceReceiver", life: int) -> tuple[bytes, int]:
        """Return all modules for a new life of an actor, and how many batches they combine."""
        batch, digests = self.whole()
        actor.sent = life, frozenset((batch.digest, *digests))
        return batch.content, len(digests)

    def unsent_for(
        self, actor: "SourceReceiver", life: int, sent: int
    ) -> tuple[Sequence[SourceBatch], int]:
        """Return the batches that a life of an actor lacks, and how many batches there are now.

        The first `sent` went over the same connection; `actor.sent` has those that arrived over
        another.  It does no harm if two threads send the same batch.
        """
        batches = list(self.batches)
        arrived = actor.sent[1] if actor.sent[0] == life else frozenset()
        lacking = [batch for batch in batches[sent:] if batch.digest not in arrived]
        return lacking, len(batches)

    def arrived(self, actor: "SourceReceiver", life: int, digest: str) -> None:
        """Record that a life of an actor has a batch."""
        before = actor.sent[1] if actor.sent[0] == life else frozenset()
        actor.sent = life, before | {digest}

    def add(self, batch: SourceBatch) -> list[ModuleSource]:
        """Keep a batch that this process received, to pass it on.  Return the new sources."""
        with self._lock:
            if any(batch.digest == known.digest for known in self.batches):
                return []
            sources = unpack(batch.content)
            self.batches.append(batch)
            self._held.update((source.name, source) for source in sources)
            return sources

    def _update(self, refuses: bool) -> None:
        with self._lock:
            loaded = len(sys.modules)
            found, read = self._new(skip={} if refuses else self._left_out)
            room = self._make_room(found)
            total = MAX_BYTES - room
            if refuses and room < 0 and found:
                name = _shown(_largest(found.values()))
                raise RemotelyError(f"{_exceeded(total)}; the largest is {name}: {_ADVICE}")
            if refuses:
                self._left_out.clear()
            left_out = []
            while room < 0 and found:
                largest = found.pop(_largest(found.values()).name)
                self._left_out[largest.name] = read.pop(largest.name)
                left_out.append(largest)
                room += len(largest.text or b"")
            if left_out:
                names, advice = ", ".join(map(_shown, left_out)), _ADVICE.capitalize()
                log.warning("%s; actors are not sent %s. %s", _exceeded(total), names, advice)
            self._add(found, read, room)
            self.loaded = loaded

    def _new(self, skip: dict[str, object]) -> tuple[dict[str, ModuleSource], dict[str, object]]:
        """Return the modules that are new or were reloaded, and the specs of all that were read."""
        found: dict[str, ModuleSource] = {}
        read: dict[str, object] = {}
        loaded: dict[str, Any] = dict(sys.modules)  # may contain objects other than modules
        for name, module in loaded.items():
            if name in self._installed:
                continue
            spec = getattr(module, "__spec__", None)
            if spec is None or not isinstance(module, ModuleType):
                continue
            if self._read.get(name) is spec or skip.get(name) is spec:
                continue
            held = self._held.get(name)
            if held is not None and getattr(spec, "loader_state", None) is held:
                read[name] = spec  # received: it goes on as it came
                continue
            way = way_of(name)
            if way is Way.INSTALLED:
                self._installed.add(name)
                continue
            with errors_ignored:  # for example, its file is gone
                source = source_of(name, module, spec, way)
                if source is not None and not source.is_same_module(held):
                    found[name] = source
            read[name] = spec
        return found, read

    def _make_room(self, found: dict[str, ModuleSource]) -> int:
        """Drop compiled code if the limit is exceeded; return the bytes left, maybe negative."""
        room = MAX_BYTES - nbytes_of({**self._held, **found}.values())
        if room >= 0:
            return room
        for sources in (self._held, found):
            for name, source in sources.items():
                if source.compiled:
                    sources[name] = msgspec.structs.replace(source, compiled=b"")
        return MAX_BYTES - nbytes_of({**self._held, **found}.values())

    def _add(self, found: dict[str, ModuleSource], read: dict[str, object], room: int) -> None:
        """Add a batch of these, and of the other files of their packages as far as they fit."""
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


def _largest(found: Iterable[ModuleSource]) -> ModuleSource:
    return max(found, key=lambda source: len(source.text or b""))


def _exceeded(nbytes: int) -> str:
    return (
        f"the modules of this script are {format_bytes(nbytes)}; at most {format_bytes(MAX_BYTES)} "
        "can be sent"
    )


def _shown(source: ModuleSource) -> str:
    return f"{source.name} ({source.file})"


_ADVICE = (
    "install large packages on the workers, or keep data in files and ship them (connect(ship=...))"
)


library = Library()


# --- importing sources ----------------------------------------------------------------------------


class Finder:
    """Finds the modules that this process was sent.  An entry of `sys.meta_path`.

    It does not inherit from importlib.abc, whose import takes as long as a tenth of `remotely`.
    """

    def __init__(self) -> None:
        self.shipped_root: Path | None = None  # shipped files have precedence
        self.is_elsewhere = False  # the client's files are not on this machine
        self._sources: dict[str, ModuleSource] = {}

    def offer(self, sources: Sequence[ModuleSource]) -> list[str]:
        """Serve these from now on.

        Returns the names of modules that are already imported from older text, and are kept.
        """
        kept = []
        for source in sources:
            held = self._sources.get(source.name)
            if held is not None and source.name in sys.modules:
                if held.text != source.text:
                    kept.append(source.name)
            else:
                self._sources[source.name] = source
        return kept

    def install(self, first: bool) -> None:
        """Register for each import: as the first finder in an actor, as the last in a client."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0 if first else len(sys.meta_path), self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        source = self._sources.get(name)
        if source is None or self._is_shipped(name):
            return None
        if source.by_value:
            raise ImportError(
                f"{name} is sent to actors by value, because its loader rewrites it (as pytest "
                "does with tests), and cannot be imported there as well: each of its classes "
                "would exist twice. Import what you need of it at the top of the script, or move "
                "that to a module of its own",
                name=name,
            )
        if source.text is None:
            return self._folder(source, path)
        spec = importlib.util.spec_from_file_location(
            name, source.file, loader=_Loader(source), submodule_search_locations=source.path
        )
        assert spec is not None
        spec.loader_state = source
        return spec

    def _folder(self, source: ModuleSource, path: Sequence[str] | None) -> ModuleSpec:
        """Return a package without an `__init__`, which may have parts installed here."""
        spec = ModuleSpec(source.name, None, is_package=True, loader_state=source)
        here = PathFinder.find_spec(source.name, path)
        installed = (here and here.submodule_search_locations) or ()
        spec.submodule_search_locations = [*(source.path or ()), *installed]
        return spec

    def _is_shipped(self, name: str) -> bool:
        root = self.shipped_root
        if root is None:
            return False
        top, *below = name.split(".")
        if (root / top / "__init__.py").exists() or (root / f"{top}.py").exists():
            return True
        return bool(below) and root.joinpath(top, *below).with_suffix(".py").exists()


class _Loader(SourceFileLoader):
    """Loads a module from its sent source, as Python does from its file and its .pyc file."""

    def __init__(self, source: ModuleSource) -> None:
        super().__init__(source.name, source.file)
        self._source = source

    def is_package(self, fullname: str) -> bool:
        return self._source.path is not None

    def get_data(self, path: str) -> bytes:
        if path == self.path:
            assert self._source.text is not None
            return self._source.text
        if path == importlib.util.cache_from_source(self.path):
            return self._source.compiled
        return super().get_data(path)

    def path_stats(self, path: str) -> Any:
        return {"mtime": MTIME, "size": len(self._source.text or b"")}

    def set_data(self, path: str, data: Any, *, _mode: int = 0) -> None:
        """Write no .pyc file."""

    def exec_module(self, module: ModuleType) -> None:
        outer = importing()
        _here.importing = outer or self.name
        received_as_source(self.name)
        try:
            super().exec_module(module)
        finally:
            _here.importing = outer


_here = threading.local()


def importing() -> str:
    """Return the script's module that this thread is importing in an actor; empty if none."""
    name: str = getattr(_here, "importing", "")
    return name


def refuse_while_importing(what: str) -> None:
    """Raise RemotelyError if the top level of a module calls this while an actor imports it."""
    if name := importing():
        raise RemotelyError(
            f"the module {name} {what} when it is imported, and actors import it too: each of them "
            'would do the same. Put it into a function, or under `if __name__ == "__main__":`'
        )


def missing_here(error: BaseException) -> str:
    """Return advice about a module that an actor cannot find; empty for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or not finder.is_elsewhere:
        return ""
    top = error.name.partition(".")[0]
    return (
        f"{error.name} is not installed on this machine, and was not sent here. A module beside "
        f'the script is sent if the script imports it at its top, or ships it: connect(ship=["'
        f'{top}.py"]), or ["{top}/"] for a package'
    )


finder = Finder()


# --- children that an actor starts by multiprocessing ---------------------------------------------


_CODE = (type, FunctionType, functools._lru_cache_wrapper)


def send_code_to_children() -> None:
    """Make multiprocessing send child processes the code that they need.

    multiprocessing pickles functions by name, and a child that is not forked imports their modules.
    In an actor, code that arrived by value has no importable name, and a module that was sent as
    source has no file on another machine.  So functions and classes are pickled as for calls, and a
    child's preparation data brings the sources, before the child imports anything.
    """
    from multiprocessing import reduction, spawn  # noqa: PLC0415 - only actors need it

    plain_preparation = spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        data: dict[str, Any] = plain_preparation(name)
        data.pop("init_main_from_name", None)  # the main module is ours, not the script
        data["remotely"] = _Code()  # children ignore unknown keys
        return data

    reduction.ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]
    spawn.get_preparation_data = prepare


def _reduce(pickler: object, obj: Any) -> Any:
    if not isinstance(obj, _CODE) or goes_by_name(obj):
        return NotImplemented
    encoded = codec.encode(obj, "an object sent to a child process", in_band=True)
    return codec.decode, (encoded.payload,)


class _Code:
    """The sources of this process.  Unpickles to None, after making them importable."""

    def __reduce__(self) -> tuple[Any, ...]:
        batch, _ = library.whole()
        return _receive, (batch.content, finder.is_elsewhere, finder.shipped_root)


def _receive(content: bytes, is_elsewhere: bool, shipped_root: Path | None) -> None:
    finder.is_elsewhere, finder.shipped_root = is_elsewhere, shipped_root
    finder.install(first=True)
    if content:
        finder.offer(library.add(batch_of(content)))
    send_code_to_children()
