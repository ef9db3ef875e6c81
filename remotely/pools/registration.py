"""The registration of the backend "remotely" with joblib, in the script and in its actors.

A function of the script that uses the backend may run in an actor, which knows no more than what it
imports.  So the registration is part of the state that an actor takes over (values/maker_state.py).
joblib takes a tenth of a second to import, and few actors use it: they register the backend once
they import it.
"""

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType

from remotely.values import maker_state

NAME = "joblib"
BACKEND = "remotely.pools.joblib_backend"  # not imported above, as it imports joblib


def register_joblib() -> None:
    """Make the cluster a backend of joblib, and so of scikit-learn.

    Then `with joblib.parallel_config(backend="remotely"):` runs `joblib.Parallel`, and everything
    that takes `n_jobs`, on the cluster.  Without `n_jobs`, all of its cores are used.  Further
    arguments of `parallel_config` are those of `remotely.Executor`.  Actors that are created
    afterwards know the backend too.  Raises ImportError without joblib, which is not a dependency
    of remotely.
    """
    importlib.import_module(BACKEND)
    maker_state.registered.add(NAME)


def register_when_imported() -> None:
    """In an actor: register the backend with joblib once that is imported."""
    if "joblib" in sys.modules:
        importlib.import_module(BACKEND)
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported:
    """A finder that registers the backend after the first import of joblib.

    It stays until then: programs look for joblib to see whether it is installed.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "joblib":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        loader = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            with suppress(ValueError):  # it was removed
                sys.meta_path.remove(self)
            importlib.import_module(BACKEND)

        loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


maker_state.registrations[NAME] = register_when_imported
