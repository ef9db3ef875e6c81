"""An index: the actors of an owner, the sessions inside of an actor.

A record names its owner; an index is the way back.  Whoever keeps records adds to their indexes and
takes from them where the record itself comes and goes, so that no question is a search.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


class Index(Generic[Key, Item]):
    """Items by key, each key's in the order in which they came; of a key without any, nothing."""

    def __init__(self) -> None:
        self._items: dict[Key, dict[Item, None]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def of(self, key: Key) -> list[Item]:
        """Return what belongs to a key, as it is now."""
        return list(self._items.get(key, ()))

    def first(self, key: Key) -> Item | None:
        """Return what has belonged to a key for longest."""
        return next(iter(self._items.get(key, ())), None)

    def count(self, key: Key) -> int:
        """Return how many belong to a key."""
        return len(self._items.get(key, ()))

    def add(self, key: Key, item: Item) -> None:
        self._items.setdefault(key, {})[item] = None

    def discard(self, key: Key, item: Item) -> None:
        """Take an item from a key.  One that is not there is no error."""
        if (items := self._items.get(key)) is not None:
            items.pop(item, None)
            if not items:
                del self._items[key]

    def pop(self, key: Key) -> list[Item]:
        """Take all from a key, and return it."""
        return list(self._items.pop(key, ()))
