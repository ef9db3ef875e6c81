"""Children that an actor starts by `multiprocessing`, which need the script's code too.

multiprocessing pickles functions by name, and a child that is not forked imports their modules.  In
an actor there is no such name for what has come by value, and no file of a module that was sent as
source to another machine.  So in an actor, and in its children:

    functions and classes   go by value where calls would send them so (picklers.py)
    a child's preparation   brings the sources that the actor was sent, before anything is imported
"""

import functools
from multiprocessing import reduction, spawn
from pathlib import Path
from types import FunctionType
from typing import Any

from remotely.values import codec, sources
from remotely.values.picklers import goes_by_name
from remotely.values.source_finder import finder
from remotely.values.source_library import library

_CODE = (type, FunctionType, functools._lru_cache_wrapper)


def send_code() -> None:
    """From now on, send children of this process the code that they need."""
    reduction.ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]
    spawn.get_preparation_data = _preparation


def _reduce(pickler: object, obj: Any) -> Any:
    if not isinstance(obj, _CODE) or goes_by_name(obj):
        return NotImplemented
    encoded = codec.encode(obj, "what a child process is sent", in_band=True)
    return codec.decode, (encoded.payload,)


_plain_preparation = spawn.get_preparation_data


def _preparation(name: str) -> dict[str, Any]:
    data: dict[str, Any] = _plain_preparation(name)
    data.pop("init_main_from_name", None)  # it is ours, and not the script
    data["remotely"] = _Code()  # children ignore what they do not know
    return data


class _Code:
    """The sources of this process.  Arrives as None, when they can be imported."""

    def __reduce__(self) -> tuple[Any, ...]:
        batch, _ = library.whole()
        return _receive, (batch.content, finder.is_elsewhere, finder.shipped_root)


def _receive(content: bytes, is_elsewhere: bool, shipped_root: Path | None) -> None:
    finder.is_elsewhere, finder.shipped_root = is_elsewhere, shipped_root
    finder.install(first=True)
    if content:
        finder.offer(library.add(sources.batch_of(content)))
    send_code()
