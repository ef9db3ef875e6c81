"""Actors that any other of their kind can stand in for: the members of pools and executors.

The master tells their owners when it wants some of them gone, and an engine that hears so calls

    give_back    somebody waits for room: the spare ones, idle processes of executors, end
    replace      the machine of these is being drained: others take their place

Ray does not tell, so there the idle ones end after a while only.
"""

from collections.abc import Callable, Collection
from typing import TypeVar

C = TypeVar("C", bound=type)

_MARK = "__remotely_is_spare__"

# End the idle ones of these actors.  Each returns at once, on any thread.
givers: list[Callable[[], object]] = []

# Replace those of these actors that are members.  Each returns at once, on any thread.
replacers: list[Callable[[Collection[str]], object]] = []


def spare(cls: C) -> C:
    """Mark a class whose actors are spare when they are idle."""
    setattr(cls, _MARK, True)
    return cls


def is_spare(cls: type) -> bool:
    return getattr(cls, _MARK, False)


def give_back() -> None:
    """End the spare actors of this process."""
    for give in givers:
        give()


def replace(actors: Collection[str]) -> None:
    """Replace those of these actors, by id, that are members of pools or executors."""
    for each in replacers:
        each(actors)
