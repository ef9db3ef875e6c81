"""What a call's arguments refer to without containing it, noted while they are pickled.

An object notes itself in its `__reduce__`: a future always, a large ref if the call goes to another
machine.  Then its number is pickled in its place (references.py).
"""

import threading
from collections.abc import Sequence
from typing import Any


class Notes:
    """What was noted for a call to these actors, in the order of the numbers.

    There are none if it is not known yet which actor the call is for.  `kept` are the actors whose
    handles are among the arguments, which have to live until the call has its outcome.
    """

    __slots__ = ("_numbers", "kept", "remotes", "things")

    def __init__(self, remotes: Sequence[Any]) -> None:
        self.remotes = remotes
        self.things: list[Any] | tuple[()] = ()  # there is one of these for each call: no list yet
        self.kept: list[Any] | tuple[()] = ()
        self._numbers: dict[int, int]  # by the id of a thing

    def keep(self, actor: object) -> None:
        self.kept = self.kept or []
        self.kept.append(actor)

    def number_of(self, thing: object) -> int:
        if isinstance(self.things, tuple):
            self.things, self._numbers = [], {}
        number = self._numbers.setdefault(id(thing), len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


class _Local(threading.local):
    """Where code of this thread that pickles may note itself, if anywhere."""

    notes: Notes | None = None


local = _Local()
