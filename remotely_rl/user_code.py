"""Objects of users' files, named FILE.py:NAME: a model, an environment, a hook, an algorithm."""

import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

from remotely_rl.errors import TrainingError, nearest

_named: dict[int, tuple[Any, str]] = {}  # by their ids: objects, and their words


def is_in_file(word: str) -> bool:
    """Whether a word is FILE.py or FILE.py:NAME, and not the name of something of the library."""
    return re.search(r"\.py(:|$)", word) is not None


def named_in(option: str, word: str | None) -> Any:
    """What is called NAME in FILE.py, for an option whose value is `FILE.py:NAME`.

    None for None.  `word_for` tells the word of what was found.  Raises TrainingError if there is
    no such file, or nothing of that name in it.
    """
    if word is None:
        return None
    file, _, name = word.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise TrainingError(f"{option} needs FILE.py:NAME with a file that exists, not {word!r}")
    path = path.resolve()
    if str(path.parent) not in sys.path:  # for the modules beside it, as `python FILE.py` has it
        sys.path.insert(0, str(path.parent))
    module = _module_of(path)
    try:
        found = getattr(module, name)
    except AttributeError:
        hint = nearest(name, vars(module))
        raise TrainingError(f"{file} has nothing called {name!r}{hint}") from None
    _named[id(found)] = found, f"{path}:{name}"
    return found


def word_for(thing: Any) -> str | None:
    """The FILE.py:NAME by which an object was named in this process; None if by none."""
    return _named.get(id(thing), (None, None))[1]


def _module_of(path: Path) -> types.ModuleType:
    """The module of a file, which is run once: with a second one, each class would be two."""
    for module in list(sys.modules.values()):  # perhaps it is that of the script itself
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TrainingError(f"{path} is not a Python file; use FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # actors are sent its classes
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module
