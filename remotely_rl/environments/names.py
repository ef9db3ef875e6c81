"""Names of environments, for run folders and messages."""

import functools
import re
from collections.abc import Callable
from typing import Any


def name_of(source: Any) -> str:
    """Return the name of an environment: its id, or the callable's name.

    For a functools.partial it includes the arguments: `Grid(size=5)`.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, functools.partial):
        arguments = [_text_of(value) for value in source.args] + _texts_of(source.keywords)
        return f"{name_of(source.func)}({', '.join(arguments)})"
    return getattr(source, "__qualname__", type(source).__qualname__)


def name_of_games(make: Callable[[], Any], game: Any) -> str:
    """Return the name of the games made by `make`, of which `game` is one.

    PettingZoo makes all games with a few functions, so the name is the game's own, with keyword
    arguments: `simple_spread_v3(N=5)`.
    """
    own = str(getattr(game, "metadata", {}).get("name", ""))
    if not own:
        return name_of(make)
    arguments = _texts_of(make.keywords) if isinstance(make, functools.partial) else []
    return f"{own}({', '.join(arguments)})" if arguments else own


def _texts_of(keywords: dict[str, Any]) -> list[str]:
    return [f"{name}={_text_of(value)}" for name, value in keywords.items()]


def _text_of(value: Any) -> str:
    """Return an argument as text that is the same in every process, without memory addresses."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text_of, value)))}}}"
    return name_of(value) if callable(value) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
