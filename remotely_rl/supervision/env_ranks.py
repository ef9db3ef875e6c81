"""Ranks of environments: a number for each, so that each can have a port or a folder of its own.

An environment gets its rank from a parameter `rank` of the callable that makes it, or from the text
`{rank}` in its arguments.  One that replaces another after a crash has the same rank.

    ranks       environments
    0 ...       of training: actor i has `envs_per_actor` from i * `envs_per_actor` on
    10,000 ...  of evaluations during a run, and of the check before it
    15,000 ...  of hindsight, in which nobody plays: one of each learner
    20,000 ...  of `evaluate`, `play`, `load` and `check`, which may run beside a run

Environments that are made together, as a vector environment, get the rank of the first.
"""

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from remotely.arguments import signature_of

EVALUATION, HINDSIGHT, ALONE = 10_000, 15_000, 20_000
NAME, TEXT = "rank", "{rank}"


def takes_rank(make: Callable[..., Any]) -> bool:
    """Whether a callable has a parameter `rank` that is not bound yet."""
    if isinstance(make, functools.partial) and NAME in make.keywords:
        return False
    try:
        return NAME in signature_of(make).parameters
    except ValueError:  # some built-ins have no signature
        return False


def arguments(make: Callable[..., Any], given: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the keyword arguments of one environment: a copy of those given, with its rank.

    The text `{rank}` alone becomes the number; a `rank` that is given is kept.
    """
    # A copy, because an environment may change its arguments.
    own = {name: _of_rank(copy.deepcopy(value), rank) for name, value in given.items()}
    return {NAME: rank, **own} if takes_rank(make) else own


def _of_rank(value: Any, rank: int) -> Any:
    match value:
        case str():
            return rank if value == TEXT else value.replace(TEXT, str(rank))
        case dict():
            return {key: _of_rank(part, rank) for key, part in value.items()}
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(_of_rank(part, rank) for part in value)
    return value
