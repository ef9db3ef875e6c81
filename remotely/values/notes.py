"""What a call's arguments refer to without containing it, noted while they are pickled.

An object notes itself in its `__reduce__`: a future always, a large ref if `takes_refs` says so.
Then its number is pickled in its place (references.py).
"""

import threading
from collections.abc import Callable
from typing import Any


class Notes:
    """What was noted, in the order of the numbers."""

    __slots__ = ("takes_refs", "things")

    def __init__(self, takes_refs: Callable[[], bool]) -> None:
        self.things: list[Any] = []
        self.takes_refs = takes_refs


class _Local(threading.local):
    notes: Notes | None = None


_local = _Local()


def current() -> Notes | None:
    """Return where code of this thread that pickles may note itself."""
    return _local.notes


def begin(notes: Notes | None) -> Notes | None:
    """Note there from now on, on this thread; return what to go back to."""
    before, _local.notes = _local.notes, notes
    return before


def number_of(notes: Notes, thing: object) -> int:
    for number, known in enumerate(notes.things):
        if known is thing:
            return number
    notes.things.append(thing)
    return len(notes.things) - 1
