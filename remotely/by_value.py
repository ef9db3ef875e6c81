"""Which modules travel with a script, and which are expected to be there already.

    by reference   the standard library, what pip installed (editable or not), remotely itself
    by value       the script, and the modules beside it that only this script knows
"""

import functools
import importlib.metadata
import site
import sys
import sysconfig
from pathlib import Path

OURS = ("remotely", "remotely_rl")


@functools.lru_cache(maxsize=4096)
def travels_by_value(module_name: str | None) -> bool:
    """Tell whether functions and classes of this module have to be sent with their code."""
    if not module_name:
        return False
    if module_name in ("__main__", "__mp_main__"):
        return True
    top = module_name.partition(".")[0]
    if top in OURS or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if file is None:
        return False
    path = Path(file)
    if any(path.is_relative_to(folder) for folder in _installed_folders()):
        return False
    return top not in _distributions()


@functools.cache
def _installed_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    names = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    names |= {*site.getsitepackages(), site.getusersitepackages()}
    return [Path(name) for name in names]


@functools.cache
def _distributions() -> frozenset[str]:
    """Return the top-level names of installed packages; slow, so asked only for odd modules."""
    return frozenset(importlib.metadata.packages_distributions())
