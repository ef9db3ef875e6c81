"""The user's own modules, sent as source and imported over there.

A client gathers the modules of the script (`Way.SOURCE` in by_value.py) into batches, and every
actor that it calls is sent each of them, ahead of the first call that may need it: with PREPARE
what is loaded when the actor is made, in SOURCES what is loaded later.  In the actor a finder,
the first of all, serves them to Python's own import system.  So they are imported as they are
here, under the same names, with the same `__file__`, once: whatever a call, an import in a method
or another module asks for is the same module, on the same machine and on another.

Of a package all files travel, not the loaded modules alone, so that a method may import others.

The source is that which the module had when it was first sent; `importlib.reload` makes it be read
again.  An actor that has imported a module keeps it, whatever is sent later.

What was shipped by name (`connect(ship=...)`) is imported from there, beside its data.
"""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from remotely.by_value import Way, way_of
from remotely.errors import RemotelyError

MAX_BYTES = 16 << 20  # of all source of one client
MAX_FILES = 5000  # of one package


class Source(msgspec.Struct, frozen=True, array_like=True):
    """One module.  Without text it is a package without an `__init__`, or goes by value."""

    name: str
    file: str = ""
    text: bytes | None = None
    path: list[str] | None = None  # of a package
    by_value: bool = False


class Batch(NamedTuple):
    """Some sources as they travel, and the hash by which an actor knows that it has them."""

    digest: str
    content: bytes

    @classmethod
    def of(cls, content: bytes) -> "Batch":
        return cls(hashlib.sha256(content).hexdigest(), content)


# --- what is sent ---------------------------------------------------------------------------------


class Library:
    """The sources of this process, in the batches in which they are sent; `batches` only grows."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._lock = threading.Lock()
        self._texts: dict[str, bytes | None] = {}
        self._read: dict[str, object] = {}  # the spec with which a module was last read
        self._nbytes = 0
        self._loaded = 0  # so many modules had been loaded at the last look

    def gather(self) -> list[Batch]:
        """Return all batches, with another one if there are new or reloaded modules.

        Raises RemotelyError if all of it is too large.
        """
        with self._lock:
            self._loaded = len(sys.modules)
            if found := self._new():
                total = self._nbytes + sum(len(source.text or b"") for source in found)
                if total > MAX_BYTES:
                    self._read.clear()  # to find them again
                    raise RemotelyError(_too_large(total, found))
                self._nbytes = total
                self._texts.update((source.name, source.text) for source in found)
                self.batches.append(Batch.of(_pack(found)))
            return self.batches

    def look(self) -> None:
        """Gather if modules may have been loaded since the last time; called before each call."""
        if len(sys.modules) != self._loaded:
            self.gather()

    def add(self, batch: Batch) -> list[Source]:
        """Keep what this process was sent, to send it on.  Return the sources that are new."""
        with self._lock:
            if any(batch.digest == held.digest for held in self.batches):
                return []
            sources = _unpack(batch.content)
            self.batches.append(batch)
            self._texts.update((source.name, source.text) for source in sources)
            return sources

    def _new(self) -> list[Source]:
        found: dict[str, Source] = {}
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if spec is None or self._read.get(name) is spec:
                continue
            way = way_of(name)
            if way is Way.INSTALLED or not isinstance(module, ModuleType):
                continue
            with contextlib.suppress(OSError):  # its file is gone: nothing to be sent
                source = _source_of(name, module, spec, way)
                if source is not None and self._texts.get(name, _NONE) != source.text:
                    found[name] = source
            self._read[name] = spec
        for package in [s for s in found.values() if s.name not in self._texts]:
            for sibling in _siblings_of(package):
                if sibling.name not in self._texts:
                    found.setdefault(sibling.name, sibling)
        return list(found.values())


_NONE = object()


def _source_of(name: str, module: ModuleType, spec: Any, way: Way) -> Source | None:
    """Return how a module is sent; None if that is not by this file."""
    path = getattr(module, "__path__", None)
    path = None if path is None else [str(folder) for folder in path]
    if way is Way.SOURCE:
        return Source(name, spec.origin, spec.loader.get_data(spec.origin), path)
    if path is not None:  # a folder without an `__init__`
        return Source(name, path=path)
    is_script = name in ("__main__", "__mp_main__")
    return None if is_script or not spec.origin else Source(name, by_value=True)


def _siblings_of(package: Source) -> list[Source]:
    """Return the files of a package, if it is one and lies in a folder of its own."""
    if package.text is None or not package.path or "." in package.name:
        return []
    files = list(_files_of(package.name, Path(package.path[0])))
    is_small = sum(len(file.text or b"") for file in files) <= MAX_BYTES
    return files if is_small and len(files) <= MAX_FILES else []


def _files_of(package: str, folder: Path) -> Iterator[Source]:
    """Yield the modules below a folder; one more than MAX_FILES at most."""
    left = MAX_FILES + 1
    seen = set()
    todo = [(package, folder)]
    while todo and left:
        name, folder = todo.pop()
        with contextlib.suppress(OSError):
            if folder.resolve() in seen:  # a link to a folder above
                continue
            seen.add(folder.resolve())
            entries = sorted(folder.iterdir())
            if name != package and folder / "__init__.py" not in entries:
                yield Source(name, path=[str(folder)])
            for entry in entries:
                if not entry.stem.isidentifier() or not left:
                    continue
                if entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__":
                    todo.append((f"{name}.{entry.name}", entry))
                elif entry.suffix == ".py":
                    left -= 1
                    own = entry.stem == "__init__"
                    yield Source(
                        name if own else f"{name}.{entry.stem}",
                        str(entry),
                        entry.read_bytes(),
                        [str(folder)] if own else None,
                    )


def _too_large(total: int, found: Sequence[Source]) -> str:
    largest = max(found, key=lambda source: len(source.text or b""))
    return (
        f"the modules of this script have {total >> 20} MiB of source, and {MAX_BYTES >> 20} MiB "
        f"can be sent; the largest is {largest.name} ({largest.file}): install what is large on "
        "the workers, or keep data in files and ship those (connect(ship=...))"
    )


def _pack(sources: Sequence[Source]) -> bytes:
    return zlib.compress(_encode(sources), 1)


def _unpack(content: bytes) -> list[Source]:
    reader = zlib.decompressobj()
    # Beside the texts there are names and paths, which are short, but may be many.
    packed = reader.decompress(content, 2 * MAX_BYTES)
    if not reader.eof:
        raise RemotelyError("the sources of a client are too large, or cut off")
    return _decode(packed)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Source]).decode


# --- where it arrives -----------------------------------------------------------------------------


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
    """Loads a module from the text that was sent, as Python would from its file.

    Where that very file is here too, so is what Python has compiled of it.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source.name, source.file)
        self._source = source

    def is_package(self, fullname: str) -> bool:
        return self._source.path is not None

    def get_data(self, path: str) -> bytes:
        if path == self.path:
            assert self._source.text is not None
            return self._source.text
        return super().get_data(path)

    def path_stats(self, path: str) -> Any:
        if super().get_data(path) != self._source.text:
            raise OSError(f"{path} is another file here")
        return super().path_stats(path)

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


library = Library()
finder = Finder()
