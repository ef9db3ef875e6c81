"""Objects in users' files, named FILE.py:NAME: a model, an environment, a hook, an algorithm."""

import importlib.util
import re
import sys
import sysconfig
import traceback
import types
from pathlib import Path
from typing import Any

import remotely
from remotely_rl.errors import TrainingError, check_is_of_extra, nearest

_named: dict[int, tuple[Any, str]] = {}  # id: object, FILE.py:NAME

# Files that are not the user's, in tracebacks: Python's, those of installed packages, and ours,
# which an editable install keeps elsewhere.
OURS = (Path(__file__).parent, Path(remotely.__file__).parent)
LIBRARY = re.compile(
    "|".join(
        ["<frozen ", ".*/(site|dist)-packages/"]
        + [re.escape(f"{folder}/") for folder in (sysconfig.get_path("stdlib"), *OURS)]
    )
)


def is_in_file(word: str) -> bool:
    """Return whether a word is FILE.py or FILE.py:NAME, rather than a name in the library."""
    return re.search(r"\.py(:|$)", word) is not None


def named_in(option: str, word: str | None) -> Any:
    """Return the object NAME of FILE.py, for an option with the value `FILE.py:NAME`, or None.

    `word_for` returns the word of that object.  Raises TrainingError if the file does not exist,
    raises an error, or has no such name.
    """
    if word is None:
        return None
    file, _, name = (word, "", "") if word.endswith(".py") else word.rpartition(":")
    path = Path(file)
    if not path.is_file():
        if is_in_file(file):
            raise TrainingError(f"there is no file {file}")
        raise TrainingError(f"{option} needs FILE.py:NAME, not {word!r}")
    if not name:
        raise TrainingError(f"{option} needs a name in the file too: {file}:NAME")
    path = path.resolve()
    if str(path.parent) not in sys.path:  # for imports of modules beside it, as in `python FILE.py`
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
    """Return the FILE.py:NAME from which this process loaded an object, or None."""
    return _named.get(id(thing), (None, None))[1]


def located(error: BaseException) -> str:
    """Return an error as "FILE, line N: Error: text", at the innermost line of the user's code.

    The place is left out if the traceback has only library code.
    """
    text, place = str(error), ""
    if isinstance(error, SyntaxError) and error.filename:
        text, place = error.msg, _place(error.filename, error.lineno)
    else:
        for frame in traceback.extract_tb(error.__traceback__):
            if not LIBRARY.match(frame.filename):
                place = _place(frame.filename, frame.lineno)
    kind = type(error).__name__
    return place + (f"{kind}: {text}" if text else kind)


def _place(file: str, line: int | None) -> str:
    return f"{file.removeprefix(f'{Path.cwd()}/')}, line {line}: "


def _module_of(path: Path) -> types.ModuleType:
    """Return the module of a file.  The file runs only once, so that its classes exist once."""
    for module in list(sys.modules.values()):  # it may be the running script
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TrainingError(f"{path} is not a Python file; use FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that its classes can be pickled, for actors
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[path.stem]
        if isinstance(error, ModuleNotFoundError):
            check_is_of_extra(error)
        if isinstance(error, TrainingError) or not isinstance(error, Exception):
            raise
        raise TrainingError(located(error)) from error
    return module
