"""A multimap for indexes, such as the actors of an owner.

A record names its owner; an index maps the owner back to its records, so that no lookup is a
search.  The code that adds or removes a record updates its indexes.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key")
Item = TypeVar("Item")


class Index(Generic[Key, Item]):
    """Items by key, in insertion order.  A key without items is not kept."""

    def __init__(self) -> None:
        self._items: dict[Key, dict[Item, None]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items)

    def of(self, key: Key) -> list[Item]:
        """Return a copy of the items of a key."""
        return list(self._items.get(key, ()))

    def first(self, key: Key) -> Item | None:
        """Return the oldest item of a key."""
        return next(iter(self._items.get(key, ())), None)

    def count(self, key: Key) -> int:
        """Return the number of items of a key."""
        return len(self._items.get(key, ()))

    def add(self, key: Key, item: Item) -> None:
        self._items.setdefault(key, {})[item] = None

    def discard(self, key: Key, item: Item) -> None:
        """Remove an item from a key, if it is there."""
        if (items := self._items.get(key)) is not None:
            items.pop(item, None)
            if not items:
                del self._items[key]

    def pop(self, key: Key) -> list[Item]:
        """Remove and return the items of a key."""
        return list(self._items.pop(key, ()))
