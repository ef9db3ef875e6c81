"""Streams: the result of calling a generator method.

Each item is an ordinary call, `NEXT`, and a few of these are always pending.  So the actor works at
most that many items ahead of its consumer, it serves other calls between two items, and if it dies
the consumer gets the same error as from any call.

    requested   the future of the item is in the queue in the same step in which it is sent
    awaited     by any number of readers, and it stays in the queue
    taken       as `__next__` returns it, by the first reader that finds it done and in its place.
                No signal is handled and no other thread runs between the look and the return, since
                nothing is called there: so `__next__` and `__anext__` each have these lines
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

from remotely.futures import forked
from remotely.futures.awaitable import until_done
from remotely.futures.future import CallFuture, completed, failed
from remotely.machine.interrupts import is_for_main
from remotely.machine.shield import RLock, shield
from remotely.values.unpicklable import NotToBePickled

AHEAD = 4  # pending items: enough to hide a round trip, few enough to stay fresh

T = TypeVar("T")


class Stream(Generic[T]):
    """The items of a generator in an actor.  The generator starts when you ask for the first item.

    Read it with `for` or with `async for`.  Threads and tasks may share it: each item goes to one
    of them.  If a wait is interrupted or cancelled, its item goes to the next reader.

    `ask` requests the next item, `end` closes the generator; both return at once.
    """

    def __init__(
        self, ask: Callable[[], CallFuture[Any]], end: Callable[[], None], ahead: int = AHEAD
    ) -> None:
        self._process = forked.process
        self._ask = ask
        self._end = end
        self._ahead = ahead
        self._coming: deque[CallFuture[Any]] = deque()  # in the order of the items
        # The code of a local iterator may be interrupted.
        self._in_one_step: AbstractContextManager[None] = shield if ahead else nullcontext()
        self._lock = RLock()
        self._over = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            first = self._first()
            error = None
            try:
                error = first.exception()  # waits
                item = self._prepare(first, error)
                if self._coming and self._coming[0] is first:  # else another reader has it
                    if error is None:
                        del self._coming[0]
                        return item  # type: ignore[no-any-return]
                    self._coming = deque()
                    raise error
            finally:
                del first, error  # see future.py

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            while True:
                first = self._first()
                error = None
                try:
                    await until_done(first)
                    error = first.exception()
                    item = self._prepare(first, error)
                    if self._coming and self._coming[0] is first:
                        if error is None:
                            del self._coming[0]
                            return item  # type: ignore[no-any-return]
                        self._coming = deque()
                        raise error
                finally:
                    del first, error
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Close the generator in the actor.  Pending items are dropped."""
        was_over = self._over
        self._stop()
        self._coming = deque()
        if not was_over:
            self._end()

    def when_ready(self, notify: Callable[["Stream[T]"], None]) -> None:
        """Call `notify` once, when `next` will not block.  It must not block either."""
        try:
            first = self._first()
        except StopIteration:
            first = completed(None)
        first.then(lambda _: notify(self))

    def _first(self) -> CallFuture[Any]:
        """Return the next item, which stays in its place.  Raises StopIteration."""
        if self._ahead:  # else its iterator is in this process too
            forked.check(self._process, "a stream")
        self._fill(max(1, self._ahead))
        try:
            return self._coming[0]
        except IndexError:
            raise StopIteration from None

    def _prepare(self, first: CallFuture[Any], error: BaseException | None) -> Any:
        """Return the item of a future that is done, and request the next; the stream ends with the
        first error."""
        if error is not None:
            self._stop()
            return None
        self._fill(self._ahead + 1)  # the first one is still in its place
        return first.result()

    def _fill(self, count: int) -> None:
        """Have this many items in the queue, unless the stream is over."""
        if len(self._coming) < count and not self._over:
            with self._in_one_step, self._lock:
                while len(self._coming) < count and not self._over:
                    self._coming.append(self._ask())

    def _stop(self) -> None:
        """Request no more items."""
        with self._lock:
            self._over = True

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        why = "is a stream, and cannot be sent: pass a list of its items, or its actor"
        raise NotToBePickled(self, why)


def local_stream(items: Iterator[T]) -> Stream[T]:
    """Return a stream of an iterator in this process, which runs when an item is requested."""

    def ask() -> CallFuture[T]:
        try:
            return completed(next(items))
        except Exception as error:
            if is_for_main(error):
                raise
            return failed(error)

    def end() -> None:
        if callable(close := getattr(items, "close", None)):
            close()

    return Stream(ask, end, ahead=0)


def merge(streams: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield the items of several streams in the order in which they arrive.

    If one of them raises, this raises too.  When this ends or you stop iterating, all are closed.
    """
    members = [each if isinstance(each, Stream) else local_stream(each) for each in streams]
    process = forked.process
    ready: SimpleQueue[Stream[T]] = SimpleQueue()
    try:
        for stream in members:
            stream.when_ready(ready.put)
        left = len(members)
        while left:
            if ready.empty():
                forked.check(process, "a stream")
            stream = ready.get()
            try:
                item = [next(stream)]
            except StopIteration:
                left -= 1
                continue
            stream.when_ready(ready.put)
            yield item.pop()  # which is not kept until the next one
    finally:
        for stream in members:
            stream.close()
