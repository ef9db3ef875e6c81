"""Futures of `concurrent.futures` that a coroutine can await, and pass to functions of asyncio.

Most of asyncio wraps what it is given (`ensure_future`), and so comes to `__await__`.  But
`asyncio.wait` adds its callback to the future itself, and expects to be called in the thread of its
event loop; a call from another thread would not wake the loop.  So the callbacks of asyncio's tasks
run in the loop in which they were added, as do those that are added with a `context`, which only
code written for asyncio has.

All other callbacks run in the thread that completes the future, even if a loop was running where
they were added.  In a notebook a loop runs around every cell, and a cell may block until its
callback has run.
"""

import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures._base import PENDING, RUNNING
from contextlib import suppress
from contextvars import Context
from typing import Any, TypeVar

R = TypeVar("R")


class AwaitableFuture(Future[R]):
    """A future that threads can wait for, and that coroutines can await."""

    _state: str  # of the base class, as the next three
    _exception: BaseException | None
    _condition: threading.Condition
    _done_callbacks: list[Any]

    def result(self, timeout: float | None = None) -> R:
        """Wait for the value.  Raises the error, also one that is false, unlike the base class."""
        try:
            value = super().result(timeout)
            if self._exception is not None:
                raise self._exception
            return value
        finally:
            del self  # see future.py

    def set_waiting(self) -> None:
        """Take back `set_running_or_notify_cancel`: it does not run after all."""
        with self._condition:
            if self._state == RUNNING:
                self._state = PENDING

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # noqa: PLC0415 - slow to import, and async code has imported it

        return asyncio.wrap_future(self).__await__()

    def add_done_callback(
        self, fn: Callable[[Future[R]], object], *, context: Context | None = None
    ) -> None:
        """Call `fn` with this future when it is done; with `context`, in the running event loop."""
        super().add_done_callback(where_it_runs(fn, context))

    def remove_done_callback(self, fn: Callable[[Future[R]], object]) -> int:
        """Remove a callback that has not been called yet; return how often it had been added."""
        return remove_all(self._done_callbacks, fn)


class _InLoop:
    """A done-callback that runs in an event loop, whichever thread completes the future."""

    def __init__(self, fn: Callable[[Any], object], loop: Any, context: Context | None) -> None:
        self._fn = fn
        self._loop = loop
        self._context = context

    def __call__(self, future: "Future[Any]") -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._fn, future, context=self._context)

    def __eq__(self, other: object) -> bool:
        return self._fn == other

    __hash__ = None  # type: ignore[assignment]


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or None."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def where_it_runs(
    fn: Callable[[Any], object], context: Context | None = None
) -> Callable[[Any], object]:
    """Return a done-callback that calls `fn` in the thread that it expects."""
    if context is None and getattr(fn, "__module__", None) != "asyncio.tasks":
        return fn
    loop = running_loop()
    return fn if loop is None else _InLoop(fn, loop, context)


def remove_all(callbacks: list[Any], fn: Callable[[Any], object]) -> int:
    """Remove a function from the callbacks, from which other threads take the first."""
    removed = 0
    with suppress(ValueError):
        while True:
            callbacks.remove(fn)
            removed += 1
    return removed
