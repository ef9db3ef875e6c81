"""Objects for as long as they exist, to which any thread may add while another goes through them.

A `weakref.WeakSet` raises RuntimeError then.  It needs no lock: each step on its dict is atomic.  A
forked child begins with an empty one, since the objects in it are the parent's.
"""

import os
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}  # by id
        os.register_at_fork(after_in_child=self._references.clear)

    def add(self, member: T) -> None:
        """Include an object for as long as it exists."""
        number, references = id(member), self._references
        references[number] = weakref.ref(member, lambda _: references.pop(number, None))

    def all(self) -> list[T]:
        """Return the objects that exist, in the order in which they were added."""
        found = [reference() for reference in list(self._references.values())]
        return [member for member in found if member is not None]
