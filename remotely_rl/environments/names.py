"""What environments are called in run folders and messages."""

import functools
import re
from collections.abc import Callable
from typing import Any


def name_of(source: Any) -> str:
    """Return what run folders and messages call the environment: its id, or the callable's name.

    That of a functools.partial has its arguments: `Grid(size=5)`.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, functools.partial):
        words = [_word_of(one) for one in source.args] + _words_of(source.keywords)
        return f"{name_of(source.func)}({', '.join(words)})"
    return getattr(source, "__qualname__", type(source).__qualname__)


def name_of_games(make: Callable[[], Any], game: Any) -> str:
    """Return what games that `make` makes are called, such as `game`.

    PettingZoo makes all games by a few functions: there it is the name that the game itself has,
    and what arguments by name change in it, `simple_spread_v3(N=5)`.
    """
    own = str(getattr(game, "metadata", {}).get("name", ""))
    if not own:
        return name_of(make)
    words = _words_of(make.keywords) if isinstance(make, functools.partial) else []
    return f"{own}({', '.join(words)})" if words else own


def _words_of(keywords: dict[str, Any]) -> list[str]:
    return [f"{name}={_word_of(one)}" for name, one in keywords.items()]


def _word_of(value: Any) -> str:
    """Return an argument as every process would write it, without its place in memory."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_word_of, value)))}}}"
    return name_of(value) if callable(value) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
