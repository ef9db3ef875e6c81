"""The user's own modules, sent as source and imported over there.

A client gathers the modules of the script (`Way.SOURCE` in by_value.py) into batches
(source_library.py).  Every actor that it calls is sent each batch, ahead of the first call that may
need it: with PREPARE what is loaded when the actor is made, in SOURCES what is loaded later.  In
the actor a finder, the first of all, serves them to Python's own import system (source_finder.py).
So they are imported as they are here, under the same names, with the same `__file__`, once.
Whatever a call, an import in a method or another module asks for is the same module, on the same
machine and on another.

Of a package all files travel, not the loaded modules alone, so that a method may import others.

The source is that which the module had when it was first sent; `importlib.reload` makes it be read
again.  An actor that has imported a module keeps it, whatever is sent later.

What was shipped by name (`connect(ship=...)`) is imported from there, beside its data.
"""

import contextlib
import hashlib
import importlib.util
import marshal
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from remotely.errors import RemotelyError
from remotely.values.by_value import Way, is_of_standard_library

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
