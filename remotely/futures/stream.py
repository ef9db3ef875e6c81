"""Streams: what the caller of a generator method gets.

Each item is an ordinary call, `NEXT`, and a few of these are always in flight.  So the actor works
ahead of its consumer by that many items and no more, it serves other calls between two items, and
if it dies the consumer gets the same error as from any call.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from remotely.futures.future import CallFuture

AHEAD = 4  # items in flight: enough to hide a round trip, few enough to stay fresh

T = TypeVar("T")


class StreamToken:
    """Travels in the place of a generator, which cannot be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name


class Stream(Generic[T]):
    """The items of a generator that lives in an actor.  It starts when you ask for the first item.

    `ask` requests the next item, `end` closes the generator; both return at once.
    """

    def __init__(self, ask: Callable[[], CallFuture[Any]], end: Callable[[], None]) -> None:
        self._ask = ask
        self._end = end
        self._coming: deque[CallFuture[Any]] = deque()
        self._over = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        self._fill()
        future = self._coming[0]
        error = future.exception()  # an interrupt here leaves the item to the next call
        del self._coming[0]
        if error is not None:
            self._over = True
            try:
                raise error
            finally:
                del error, future  # see future.py
        self._fill()
        return future.result()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the generator in the actor.  Items that are in flight are dropped."""
        if not self._over:
            self._over = True
            self._coming.clear()
            self._end()

    def when_ready(self, tell: Callable[["Stream[T]"], None]) -> None:
        """Call `tell` once, when `next` will not block."""
        self._fill()
        self._coming[0].add_done_callback(lambda _: tell(self))

    def _fill(self) -> None:
        while len(self._coming) < AHEAD:
            self._coming.append(self._ask())

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def merge(streams: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield the items of several streams, from whichever is ready first.

    If you stop iterating, all streams are closed.  If one of them raises, this raises too.
    """
    members = list(streams)
    remote = [member for member in members if isinstance(member, Stream)]
    ready: SimpleQueue[Stream[T]] = SimpleQueue()
    try:
        for stream in remote:
            stream.when_ready(ready.put)
        left = len(remote)
        while left:
            stream = ready.get()
            try:
                item = next(stream)
            except StopIteration:
                left -= 1
                continue
            stream.when_ready(ready.put)
            yield item
        yield from _in_turn([member for member in members if not isinstance(member, Stream)])
    finally:
        for member in members:
            if callable(close := getattr(member, "close", None)):
                close()


def _in_turn(iterators: list[Iterator[T]]) -> Iterator[T]:
    """Yield from plain iterators, those of REMOTELY_LOCAL=1, in turn."""
    nothing: Any = object()
    for items in itertools.zip_longest(*iterators, fillvalue=nothing):
        yield from (item for item in items if item is not nothing)
