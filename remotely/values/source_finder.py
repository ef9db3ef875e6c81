"""Imports the modules that this process was sent, and says what is wrong when it cannot."""

import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from remotely.errors import RemotelyError
from remotely.values.sources import MTIME, Source


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
