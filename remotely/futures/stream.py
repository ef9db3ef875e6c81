"""Streams: the result of calling a generator method.

Each item is an ordinary call, `NEXT`, and a few of these are always pending.  So the actor works at
most that many items ahead of its consumer, it serves other calls between two items, and if it dies
the consumer gets the same error as from any call.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

from remotely.futures.future import CallFuture, completed, failed
from remotely.machine.shield import RLock
from remotely.values.unpicklable import Refused

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
        self._ask = ask
        self._end = end
        self._ahead = ahead
        self._coming: deque[CallFuture[Any]] = deque()  # in the order of the items
        self._given_back: deque[CallFuture[Any]] = deque()  # of earlier items
        self._lock = RLock()
        self._over = False

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        future = self._claim()
        try:
            try:
                future.exception()  # waits
            except BaseException:
                self._given_back.append(future)
                raise
            return self._arrived(future)
        finally:
            del future  # see future.py

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        import asyncio  # noqa: PLC0415 - slow to import, and async code has imported it

        future = None
        try:
            future = self._claim()
            arrived: Future[None] = Future()  # cancelled instead of the call
            notify = partial(_complete, arrived)
            future.add_done_callback(notify)
            try:
                await asyncio.wrap_future(arrived)
            except BaseException:
                future.remove_done_callback(notify)
                self._given_back.append(future)
                raise
            return self._arrived(future)
        except StopIteration:
            raise StopAsyncIteration from None
        finally:
            del future

    def close(self) -> None:
        """Close the generator in the actor.  Pending items are dropped."""
        self._given_back = deque(maxlen=0)  # drops what is given back later
        if not self._over:
            self._stop()
            self._end()

    def when_ready(self, notify: Callable[["Stream[T]"], None]) -> None:
        """Call `notify` once, when `next` will not block."""
        with self._lock:
            coming = self._next()
            future = coming[0] if coming else completed(None)
        future.add_done_callback(lambda _: notify(self))

    def _claim(self) -> CallFuture[Any]:
        """Take the next item for the caller alone.  Raises StopIteration."""
        future = None
        try:
            with self._lock:
                if not (coming := self._next()):
                    raise StopIteration
                future = coming[0]  # no signal is handled before the next line has run
                del coming[0]
            return future
        except BaseException:
            if future is not None:  # interrupted
                self._given_back.append(future)
            raise

    def _next(self) -> "deque[CallFuture[Any]]":
        """With the lock: return the queue whose first item is next; empty after the end."""
        if not self._given_back:
            self._fill(max(1, self._ahead))
        return self._given_back or self._coming

    def _arrived(self, future: CallFuture[Any]) -> T:
        """Return an item, or raise the error with which the stream ended."""
        error = future.exception()
        if error is None:
            self._fill(self._ahead)
            return future.result()  # type: ignore[no-any-return]
        self._stop()
        try:
            raise error
        finally:
            del error, future  # see future.py

    def _fill(self, count: int) -> None:
        with self._lock:  # so that items are requested and claimed in the same order
            while len(self._coming) < count and not self._over:
                self._coming.append(self._ask())

    def _stop(self) -> None:
        """Request no more items; those given back still come before the end."""
        with self._lock:
            self._over = True
            self._coming.clear()

    def __enter__(self) -> "Stream[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        why = "is a stream, and cannot be sent: pass a list of its items, or its actor"
        raise Refused(self, why)


def _complete(arrived: Future[None], _: object) -> None:
    if arrived.set_running_or_notify_cancel():
        arrived.set_result(None)


def local_stream(items: Iterator[T]) -> Stream[T]:
    """Return a stream of an iterator in this process, which runs when an item is requested."""

    def ask() -> CallFuture[T]:
        try:
            return completed(next(items))
        except Exception as error:
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
    ready: SimpleQueue[Stream[T]] = SimpleQueue()
    try:
        for stream in members:
            stream.when_ready(ready.put)
        left = len(members)
        while left:
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
