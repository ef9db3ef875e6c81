"""The way in which the code of a module travels: by name, as source, or by value.

    INSTALLED   its classes and functions go by name, and are imported over there: the standard
                library; `remotely` and `remotely_rl`; whatever lies in a site-packages or
                dist-packages folder; compiled modules; and what an editable install provides,
                though it lies elsewhere
    SOURCE      a module of the user's own with Python source.  Its classes and functions go by
                name too, and its source goes ahead of them, to be imported over there (sources.py)
    VALUE       what cannot be imported over there as it is here, so that its classes and functions
                go as they are: `__main__`, whose top level must not run again; modules made by
                hand; those that their loader changes as it reads them, as pytest does to tests;
                and those that have taken a name of the standard library, `statistics.py` beside
                the script, since that name may be imported already over there

A module goes one way for good, so that each of its classes is one class over there.

Editable installs are told by their files as well as by their names.  importlib.metadata's
`packages_distributions` was refused: it goes by name alone, and there are distributions that
install a top-level `tests`, while others' editable installs declare no names at all.  One case is
missed: a project whose package lies at its root under another name than the distribution's.  Its
modules go as source, which is slower but works.
"""

import contextlib
import json
import sys
import sysconfig
from enum import Enum
from functools import cache
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple
from zipimport import zipimporter

if TYPE_CHECKING:  # slow to import, and needed once, where there are editable installs
    from importlib.metadata import Distribution


class Way(Enum):
    INSTALLED = "by name"
    SOURCE = "as source"
    VALUE = "by value"


# What an actor has by definition.  __mp_main__ is the script in a child of multiprocessing.
_SCRIPTS = frozenset({"__main__", "__mp_main__"})
_OURS = frozenset({"remotely", "remotely_rl"})
_FOLDERS = frozenset({"site-packages", "dist-packages"})

_known: dict[str, Way] = {}


def way_of(module_name: str) -> Way:
    """Return how classes and functions of this module are sent."""
    way = _known.get(module_name)
    if way is None:
        way = _decide(module_name)
        if way is Way.INSTALLED or module_name in sys.modules:  # one not loaded may yet be
            _known[module_name] = way
    return way


def is_of_standard_library(module_name: str) -> bool:
    """Tell whether a name is one of the standard library; a user's module may have it even so."""
    return module_name.partition(".")[0] in sys.stdlib_module_names


def _decide(module_name: str) -> Way:
    if module_name in _SCRIPTS:
        return Way.VALUE
    if module_name.partition(".")[0] in _OURS:
        return Way.INSTALLED
    module = sys.modules.get(module_name)
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    if isinstance(loader, ExtensionFileLoader):
        return Way.INSTALLED
    if is_of_standard_library(module_name):
        file = None if module is None else _file_of(module)
        return Way.INSTALLED if file is None or _is_library(file) else Way.VALUE
    if module is None:  # made by hand, or unpickled here by value itself
        return Way.VALUE
    file = _file_of(module)
    if file is None and getattr(spec, "origin", None) in ("built-in", "frozen"):
        return Way.INSTALLED
    if file and (_is_library(file) or any(e.provides(module_name, file) for e in _in_place())):
        return Way.INSTALLED
    if file and _reads_plainly(loader, module_name):
        return Way.SOURCE
    package = module_name.rpartition(".")[0]
    # What an installed package makes by hand is there when the package has been imported.
    return Way.INSTALLED if package and way_of(package) is Way.INSTALLED else Way.VALUE


def _is_library(file: Path) -> bool:
    if not _FOLDERS.isdisjoint(file.parts) or str(file).startswith(_library_prefixes()):
        return True
    file = file.resolve()
    if not _FOLDERS.isdisjoint(file.parts):
        return True
    return any(file.is_relative_to(folder) for folder in _library_folders())


def _reads_plainly(loader: object, module_name: str) -> bool:
    """Tell whether a module of this loader is what Python makes of its source, or as good."""
    kind = type(loader)
    if kind.__module__ == "_pytest.assertion.rewrite":
        # It adds to asserts.  What tests share does without; but tests themselves would have each
        # actor import pytest.
        name = module_name.rpartition(".")[2]
        return not (name == "conftest" or name.startswith("test_") or name.endswith("_test"))
    if isinstance(loader, SourceFileLoader):
        return all(getattr(kind, n) is getattr(SourceFileLoader, n) for n in _READING)
    return kind is zipimporter


_READING = ("get_code", "source_to_code")


def _file_of(module: ModuleType) -> Path | None:
    """Return where a module or a package without an __init__ lies."""
    with contextlib.suppress(Exception):  # a module may be any object, with any attributes
        if file := getattr(module, "__file__", None):
            return Path(file)
        for folder in getattr(module, "__path__", ()):
            return Path(folder)
    return None


@cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib")})


@cache
def _library_prefixes() -> tuple[str, ...]:
    """Return the same as text: most modules are found by it, without a look at the disk.

    And where the standard library was loaded from, which may be an archive.
    """
    paths = sysconfig.get_paths()
    folders = [*_library_folders(), Path(paths["stdlib"]), Path(contextlib.__file__).parent]
    return tuple(f"{folder}/" for folder in folders)


class _Editable(NamedTuple):
    """A distribution that lies where its author works on it."""

    names: frozenset[str]
    root: Path
    sources: tuple[Path, ...]  # folders of the project that its .pth file puts on sys.path

    def provides(self, module_name: str, file: Path) -> bool:
        file = file.resolve()
        if module_name.partition(".")[0] in self.names and file.is_relative_to(self.root):
            return True
        return any(file.is_relative_to(source) for source in self.sources)


@cache
def _in_place() -> tuple[_Editable, ...]:
    """Return them all.  Twenty milliseconds, spent at the first module that lies outside."""
    from importlib.metadata import distributions  # noqa: PLC0415 - see above

    found = []
    for distribution in distributions():
        with contextlib.suppress(Exception):  # other people's metadata
            if (root := _root_of(distribution)) is not None:
                found.append(_Editable(_names(distribution), root, _sources(distribution, root)))
    return tuple(found)


def _root_of(distribution: "Distribution") -> Path | None:
    """Return the project's folder if it is installed in place, by today's way or the older one."""
    from urllib.parse import urlparse  # noqa: PLC0415 - see above
    from urllib.request import url2pathname  # noqa: PLC0415

    if text := distribution.read_text("direct_url.json"):
        described = json.loads(text)
        if described.get("dir_info", {}).get("editable"):
            return Path(url2pathname(urlparse(described["url"]).path)).resolve()
        return None
    folder = Path(str(distribution.locate_file(""))).resolve()
    if _FOLDERS.isdisjoint(folder.parts) and folder not in _library_folders():
        return folder
    return None


def _names(distribution: "Distribution") -> frozenset[str]:
    declared = (distribution.read_text("top_level.txt") or "").split()
    return frozenset(
        declared or [distribution.metadata["Name"].replace("-", "_").replace(".", "_")]
    )


def _sources(distribution: "Distribution", root: Path) -> tuple[Path, ...]:
    """Return the folders below the root, `src` as a rule; the root itself would hold tests too."""
    lines = []
    for file in distribution.files or ():
        if file.suffix == ".pth":
            lines += Path(str(file.locate())).read_text(encoding="utf-8").splitlines()
    folders = (Path(line) for line in lines if line and not line.startswith("import "))
    return tuple(f.resolve() for f in folders if root in f.resolve().parents)
