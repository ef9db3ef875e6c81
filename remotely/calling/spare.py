"""Spare actors: those that their owner keeps for later, and ends when others wait for room.

They are the idle processes of executors.  The master tells the owners of such actors that somebody
waits; an engine that hears so calls `give_back`.  Ray does not tell, so there they end after a
while only.
"""

from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)

_MARK = "__remotely_is_spare__"

# End the idle ones of these actors.  Each returns at once, on any thread.
givers: list[Callable[[], object]] = []


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
