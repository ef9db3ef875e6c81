"""The user's own modules, sent as source and imported over there.

A client gathers the modules of the script (`Way.SOURCE` in picklers.py) into batches: its library.
Every actor that it calls is sent each batch, ahead of the first call that may
need it: with PREPARE what is loaded when the actor is made, in SOURCES what is loaded later.  In
the actor a finder, the first of all, serves them to Python's own import system.
So they are imported as they are here, under the same names, with the same `__file__`, once.
Whatever a call, an import in a method or another module asks for is the same module, on the same
machine and on another.

Of a package all files travel, not the loaded modules alone, so that a method may import others.

The source is that which the module had when it was first sent; `importlib.reload` makes it be read
again.  An actor that has imported a module keeps it, whatever is sent later.

What was shipped by name (`connect(ship=...)`) is imported from there, beside its data.
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
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import msgspec

from remotely.errors import RemotelyError
from remotely.machine.shield import RLock
from remotely.protocol.resources import format_bytes
from remotely.values import codec
from remotely.values.picklers import Way, goes_by_name, is_of_standard_library, way_of

log = logging.getLogger("remotely")

MAX_BYTES = 16 << 20  # of all modules of one client
MAX_FILES = 5000  # of one package, and its folders
MTIME = 0  # by which Python tells whether what is compiled is of this source


class Source(msgspec.Struct, frozen=True, array_like=True):
    """One module.  Without text it is a package without an `__init__`, or goes by value."""

    name: str
    file: str = ""
    text: bytes | None = None
    path: list[str] | None = None  # of a package
    by_value: bool = False
    compiled: bytes = b""  # as in a .pyc file; empty if it was not loaded

    def is_as(self, other: "Source | None") -> bool:
        """Tell whether it would be the same module."""
        return other is not None and (self.file, self.text, self.path, self.by_value) == (
            other.file,
            other.text,
            other.path,
            other.by_value,
        )


class Batch(NamedTuple):
    """Some sources as they travel, and the hash by which an actor knows that it has them."""

    digest: str
    content: bytes


def batch_of(content: bytes) -> Batch:
    return Batch(hashlib.sha256(content).hexdigest(), content)


# --- reading them ---------------------------------------------------------------------------------


def nbytes_of(sources: Iterable[Source]) -> int:
    return sum(len(source.text or b"") + len(source.compiled) for source in sources)


def source_of(name: str, module: ModuleType, spec: Any, way: Way) -> Source | None:
    """Return how a module is sent; None if that is not by this file."""
    path = getattr(module, "__path__", None)
    path = None if path is None else [str(folder) for folder in path]
    if way is Way.SOURCE:
        text = spec.loader.get_data(spec.origin)
        return Source(name, spec.origin, text, path, compiled=_compiled(name, spec, text))
    if path is not None and not is_of_standard_library(name):  # a folder without an `__init__`
        return Source(name, path=path)
    if name in ("__main__", "__mp_main__") or not spec.origin or is_of_standard_library(name):
        return None  # that name is another module's over there, which may be imported
    return Source(name, by_value=True)


def _compiled(name: str, spec: Any, text: bytes) -> bytes:
    """Return what Python has compiled of a loaded module, so that no actor need do it again."""
    with contextlib.suppress(Exception):  # it was edited, and is no Python at the moment
        code = marshal.dumps(spec.loader.get_code(name))
        return importlib.util.MAGIC_NUMBER + struct.pack("<LLL", 0, MTIME, len(text)) + code
    return b""


def files_of(package: Source) -> Iterator[Source]:
    """Yield the modules below a package that lies in a folder; MAX_FILES and one more at most."""
    if package.text is None or not package.path or "." in package.name:
        return
    left = MAX_FILES + 1
    seen = set()
    todo = [(package.name, Path(package.path[0]))]
    while todo and left:
        name, folder = todo.pop()
        with contextlib.suppress(OSError):
            if folder.resolve() in seen:  # a link to a folder above
                continue
            seen.add(folder.resolve())
            entries = {entry.name: entry for entry in folder.iterdir()}
            if "__init__.py" not in entries:
                yield Source(name, path=[str(folder)])
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


def _module_at(package: str, file: Path) -> Source:
    if file.stem == "__init__":
        return Source(package, str(file), file.read_bytes(), [str(file.parent)])
    return Source(f"{package}.{file.stem}", str(file), file.read_bytes())


# --- as bytes -------------------------------------------------------------------------------------


def pack(sources: Sequence[Source]) -> Batch:
    return batch_of(zlib.compress(_encode(sources), 1))


def unpack(content: bytes) -> list[Source]:
    reader = zlib.decompressobj()
    try:
        # Beside the modules there are their names and paths, which are short, but may be many.
        packed = reader.decompress(content, 2 * MAX_BYTES)
        if reader.eof:
            return _decode(packed)
    except (zlib.error, msgspec.DecodeError) as error:
        raise RemotelyError(f"not the sources of a client: {error}") from None
    raise RemotelyError("the sources of a client are too large, or cut off")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Source]).decode


# --- those of this process ------------------------------------------------------------------------


class Informed(Protocol):
    """An actor, as far as it is sent modules."""

    sent: tuple[int, frozenset[str]]  # which life, and the hashes of batches


class Library:
    """The sources of this process, in the batches in which they are sent; `batches` only grows.

    All of it has a limit, MAX_BYTES.  What Python has compiled is left out first.  If that is not
    enough, making an actor is refused, but a call never is: it may be one that ends a long run.
    The largest modules are then left out, and a warning names them, once.
    """

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
        """In a forked child: the thread that held the lock may not exist here."""
        self._lock = RLock()

    def gather(self, what: str = "makes an actor") -> None:
        """Make a batch of the modules that are new or were reloaded, if there are any.

        Called before an actor is made, or an object served: errors say `what` is done.  Raises
        RemotelyError if all of it is too large, and in an actor that is importing such a module.
        """
        refuse_while_importing(what)
        self._update(refuses=True)

    def look(self) -> None:
        """Gather if modules may have been loaded since the last time; called before each call.

        For want of room it leaves out the largest, and says so once.
        """
        if len(sys.modules) != self.loaded:
            self._update(refuses=False)

    def whole(self) -> tuple[Batch, list[str]]:
        """Return all as they are now, as one batch, and the hashes of those it stands for."""
        with self._lock:
            if self._whole_of != len(self.batches):
                self._whole_of = len(self.batches)
                is_one = self._whole_of == 1
                self._whole = self.batches[0] if is_one else pack(list(self._held.values()))
            return self._whole, [batch.digest for batch in self.batches]

    def whole_for(self, actor: "Informed", life: int) -> tuple[bytes, int]:
        """Return all modules, for a new life of an actor, and how many batches they stand for."""
        batch, stands_for = self.whole()
        actor.sent = life, frozenset((batch.digest, *stands_for))
        return batch.content, len(stands_for)

    def unsent_for(self, actor: "Informed", life: int, sent: int) -> tuple[Sequence[Batch], int]:
        """Return the batches that a life of an actor lacks, and how many there are now.

        The first `sent` went over the same connection.  Others have arrived by another, as
        `actor.sent` tells.  If two threads send the same, nothing is harmed.
        """
        batches = list(self.batches)
        there = actor.sent[1] if actor.sent[0] == life else frozenset()
        lacking = [batch for batch in batches[sent:] if batch.digest not in there]
        return lacking, len(batches)

    def arrived(self, actor: "Informed", life: int, digest: str) -> None:
        """Note that a life of an actor has a batch."""
        there = actor.sent[1] if actor.sent[0] == life else frozenset()
        actor.sent = life, there | {digest}

    def add(self, batch: Batch) -> list[Source]:
        """Keep what this process was sent, to send it on.  Return the sources that are new."""
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
            found, read = self._new(but={} if refuses else self._left_out)
            room = self._make_room(found)
            total = MAX_BYTES - room
            if refuses and room < 0 and found:
                raise RemotelyError(_too_large(total, found.values()))
            if refuses:
                self._left_out.clear()
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


# --- importing them -------------------------------------------------------------------------------


class Finder(MetaPathFinder):
    """Finds the modules that this process was sent."""

    def __init__(self) -> None:
        self.shipped_root: Path | None = None  # of what was shipped by name, which goes before
        self.is_elsewhere = False  # the client's files are not here
        self._sources: dict[str, Source] = {}

    def offer(self, sources: Sequence[Source]) -> list[str]:
        """Serve these from now on.  Return the names of those that are imported already, as older
        text, and stay so."""
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
        """Be asked for each import: first of all in an actor, last of all in a client."""
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
                f"{name} goes to actors by value, since its loader changes it as it reads it (as "
                "pytest does to tests), and cannot be imported there as well: each of its classes "
                "would be two. Import what is needed of it at the top of the script, or move it "
                "to a module of its own",
                name=name,
            )
        if source.text is None:
            return self._folder(source, path)
        return importlib.util.spec_from_file_location(
            name, source.file, loader=_Loader(source), submodule_search_locations=source.path
        )

    def _folder(self, source: Source, path: Sequence[str] | None) -> ModuleSpec:
        """Return a package without an `__init__`, which may have parts that are installed here."""
        spec = ModuleSpec(source.name, None, is_package=True)
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
    """Loads a module from what was sent, as Python would from its file and its .pyc file."""

    def __init__(self, source: Source) -> None:
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
        """Leave the .pyc files of the client alone."""

    def exec_module(self, module: ModuleType) -> None:
        outer = importing()
        _here.importing = outer or self.name
        try:
            super().exec_module(module)
        finally:
            _here.importing = outer


_here = threading.local()


def importing() -> str:
    """Return the module of the script that this thread is importing in an actor; empty if none."""
    name: str = getattr(_here, "importing", "")
    return name


def refuse_while_importing(what: str) -> None:
    """Raise RemotelyError where the top level of a module would do in each actor what it did in
    the script."""
    if name := importing():
        raise RemotelyError(
            f"the module {name} {what} when it is imported, and actors import it too: each of them "
            'would do the same. Put it into a function, or under `if __name__ == "__main__":`'
        )


def missing_here(error: BaseException) -> str:
    """Return what to do about a module that an actor does not find; empty for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or not finder.is_elsewhere:
        return ""
    top = error.name.partition(".")[0]
    return (
        f"{error.name} is neither installed on this machine nor was it sent here. A module beside "
        f'the script is sent if the script imports it at its top, or ships it: connect(ship=["'
        f'{top}.py"]), or ["{top}/"] for a package'
    )


finder = Finder()


# --- children that an actor starts by multiprocessing ---------------------------------------------


_CODE = (type, FunctionType, functools._lru_cache_wrapper)


def send_code_to_children() -> None:
    """From now on, send children of this process the code that they need.

    multiprocessing pickles functions by name, and a child that is not forked imports their modules.
    In an actor there is no such name for what has come by value, and no file of a module that was
    sent as source to another machine.  So functions and classes go by value where calls would send
    them so, and a child's preparation brings the sources, before anything is imported.
    """
    from multiprocessing import reduction, spawn  # noqa: PLC0415 - only actors need it

    plain_preparation = spawn.get_preparation_data

    def prepare(name: str) -> dict[str, Any]:
        data: dict[str, Any] = plain_preparation(name)
        data.pop("init_main_from_name", None)  # it is ours, and not the script
        data["remotely"] = _Code()  # children ignore what they do not know
        return data

    reduction.ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]
    spawn.get_preparation_data = prepare


def _reduce(pickler: object, obj: Any) -> Any:
    if not isinstance(obj, _CODE) or goes_by_name(obj):
        return NotImplemented
    encoded = codec.encode(obj, "what a child process is sent", in_band=True)
    return codec.decode, (encoded.payload,)


class _Code:
    """The sources of this process.  Arrives as None, when they can be imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        batch, _ = library.whole()
        return _receive, (batch.content, finder.is_elsewhere, finder.shipped_root)


def _receive(content: bytes, is_elsewhere: bool, shipped_root: Path | None) -> None:
    finder.is_elsewhere, finder.shipped_root = is_elsewhere, shipped_root
    finder.install(first=True)
    if content:
        finder.offer(library.add(batch_of(content)))
    send_code_to_children()
