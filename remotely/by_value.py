"""Which modules travel by value: the script and what lies around it, that no worker has.

A class or function travels either by reference (its module's name and its own, imported over
there) or by value (its code).  A module goes by reference when it can be expected to be installed
on the workers:

    the standard library; `remotely` and `remotely_rl`; whatever lies in a site-packages or
    dist-packages folder; compiled modules, which have no code that could travel; and what an
    editable install provides, though it lies elsewhere

Everything else goes by value: `__main__`, the modules beside it, cells of a notebook, tests.

Editable installs are told by their files as well as by their names.  importlib.metadata's
`packages_distributions` was refused: it goes by name alone, and there are distributions that
install a top-level `tests`, while others' editable installs declare no names at all.  One case is
missed: a project whose package lies at its root under another name than the distribution's.  Its
modules go by value, which is slower but works.
"""

import contextlib
import json
import sys
import sysconfig
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import urlparse
from urllib.request import url2pathname

# What an actor has by definition.  __mp_main__ is the script in a child of multiprocessing.
_SCRIPTS = frozenset({"__main__", "__mp_main__"})
_INSTALLED = frozenset({"remotely", "remotely_rl"} | sys.stdlib_module_names)
_FOLDERS = frozenset({"site-packages", "dist-packages"})

_known: dict[str, bool] = {}


def travels_by_value(module_name: str) -> bool:
    """Return whether classes and functions of this module are sent as code."""
    answer = _known.get(module_name)
    if answer is None:
        answer = _decide(module_name)
        if not answer or module_name in sys.modules:  # one that is not loaded may yet be
            _known[module_name] = answer
    return answer


def _decide(module_name: str) -> bool:
    if module_name in _SCRIPTS:
        return True
    if module_name.partition(".")[0] in _INSTALLED:
        return False
    module = sys.modules.get(module_name)
    if module is None:  # made by hand, or unpickled here by value itself
        return True
    spec = getattr(module, "__spec__", None)
    if isinstance(getattr(spec, "loader", None), ExtensionFileLoader):
        return False
    file = _file_of(module)
    if file is None:
        return getattr(spec, "origin", None) not in ("built-in", "frozen")
    if not _FOLDERS.isdisjoint(file.parts):
        return False
    if any(file.is_relative_to(folder) for folder in _library_folders()):
        return False
    return not any(editable.provides(module_name, file) for editable in _editable_installs())


def _file_of(module: ModuleType) -> Path | None:
    """Return where a module or a package without an __init__ lies."""
    with contextlib.suppress(Exception):  # a module may be any object, with any attributes
        if file := getattr(module, "__file__", None):
            return Path(file).resolve()
        for folder in getattr(module, "__path__", ()):
            return Path(folder).resolve()
    return None


@cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib")})


class _Editable(NamedTuple):
    """A distribution that lies where its author works on it."""

    names: frozenset[str]
    root: Path
    sources: tuple[Path, ...]  # folders of the project that its .pth file puts on sys.path

    def provides(self, module_name: str, file: Path) -> bool:
        if module_name.partition(".")[0] in self.names and file.is_relative_to(self.root):
            return True
        return any(file.is_relative_to(source) for source in self.sources)


@cache
def _editable_installs() -> tuple[_Editable, ...]:
    """Return them all.  Twenty milliseconds, spent at the first module that lies outside."""
    found = []
    for distribution in distributions():
        with contextlib.suppress(Exception):  # other people's metadata
            if (root := _root_of(distribution)) is not None:
                found.append(_Editable(_names(distribution), root, _sources(distribution, root)))
    return tuple(found)


def _root_of(distribution: Distribution) -> Path | None:
    """Return the project's folder if it is installed in place, by today's way or the older one."""
    if text := distribution.read_text("direct_url.json"):
        described = json.loads(text)
        if described.get("dir_info", {}).get("editable"):
            return Path(url2pathname(urlparse(described["url"]).path)).resolve()
        return None
    folder = Path(str(distribution.locate_file(""))).resolve()
    if _FOLDERS.isdisjoint(folder.parts) and folder not in _library_folders():
        return folder
    return None


def _names(distribution: Distribution) -> frozenset[str]:
    declared = (distribution.read_text("top_level.txt") or "").split()
    return frozenset(
        declared or [distribution.metadata["Name"].replace("-", "_").replace(".", "_")]
    )


def _sources(distribution: Distribution, root: Path) -> tuple[Path, ...]:
    """Return the folders below the root, `src` as a rule; the root itself would hold tests too."""
    lines = []
    for file in distribution.files or ():
        if file.suffix == ".pth":
            lines += Path(str(file.locate())).read_text(encoding="utf-8").splitlines()
    folders = (Path(line) for line in lines if line and not line.startswith("import "))
    return tuple(f.resolve() for f in folders if root in f.resolve().parents)
