"""What a call's arguments refer to without containing it, noted while they are pickled.

An object notes itself in its `__reduce__`: a future always, a large ref if the call goes to another
machine.  Then its number is pickled in its place (references.py).
"""

import threading
from collections.abc import Sequence
from typing import Any


class Notes:
    """What was noted for a call to these actors, in the order of the numbers."""

    __slots__ = ("remotes", "things")

    def __init__(self, remotes: Sequence[Any]) -> None:
        self.remotes = remotes
        self.things: Sequence[Any] = ()  # there is one of these for each call: no list yet

    def number_of(self, thing: object) -> int:
        for number, known in enumerate(self.things):
            if known is thing:
                return number
        self.things = [*self.things, thing]
        return len(self.things) - 1


class _Local(threading.local):
    """Where code of this thread that pickles may note itself, if anywhere."""

    notes: Notes | None = None


local = _Local()
