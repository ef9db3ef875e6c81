"""Futures of `concurrent.futures` that a coroutine can await, and pass to functions of asyncio.

Most of asyncio wraps what it is given (`ensure_future`), and so comes to `__await__`.  But
`asyncio.wait` adds its callback to the future itself, and expects to be called in the thread of its
event loop; a call from another thread would not wake the loop.  So the callbacks of asyncio's tasks
run in the loop in which they were added, as do those that are added with a `context`, which only
code written for asyncio has.

All other callbacks run as callbacks.py says, even if an event loop was running where they were
added.  In a notebook a loop runs around every cell, and a cell may block until its callback has
run.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from remotely.errors import CallTimeout, NotConnected
from remotely.futures import callbacks, forked, wakeup
from remotely.machine.interrupts import is_for_main
from remotely.machine.shield import RLock, shield

log = logging.getLogger("remotely")

R = TypeVar("R")

Callback = Callable[[Any], object]


class OutcomeLock(RLock):  # type: ignore[misc] # final for type checkers alone
    """The lock of a future: one object, where the base class has a Condition of ten.

    Threads sleep without it (wakeup.py), because an interrupted `Condition.wait` may break a lock.
    So there is nobody to notify.
    """

    __slots__ = ()

    def notify_all(self) -> None:
        """Called by the base class when the future is done."""

    def wait(self, timeout: float | None = None) -> bool:
        """Called by the base class when it has timed out."""
        return False


class AwaitableFuture(Future[R]):
    """A future that threads can wait for, and that coroutines can await."""

    what = "a call"
    receiver: Any = None  # which receives its outcome, if the thread that waits does not just sleep
    deadline: float | None = None  # of waits without a timeout, on the monotonic clock
    timeout_s: float = 0.0  # to which the deadline belongs
    # Declared as in the base class: functions of the standard library ask for that.
    _condition: threading.Condition

    def __init__(self) -> None:
        self._condition = OutcomeLock()  # type: ignore[assignment]
        self._process = forked.process
        self._state = PENDING
        self._result: Any = None
        self._exception: BaseException | None = None
        self._watchers: list[Any] | None = None
        self._done_callbacks: list[Any] = []  # the user's
        self._continuations: list[Callback] = []  # the runtime's

    def result(self, timeout: float | None = None) -> R:
        """Wait for the value.  Raises the error, also one that is false, unlike the base class."""
        if self._state == FINISHED and self._exception is None:
            return self._result  # type: ignore[no-any-return] # the state is set last
        try:
            self.wait(timeout)
            value = super().result(0)
            if self._exception is not None:
                raise self._exception
            return value
        finally:
            del self  # see future.py

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.wait(timeout)
        return super().exception(0)

    def limit_waits(self, seconds: float, deadline: float) -> None:
        """Have waits without a timeout end at the deadline, `seconds` after the call was made."""
        self.timeout_s, self.deadline = seconds, deadline

    def wait(self, timeout: float | None = None) -> None:
        """Wait for any outcome.  Raises CallTimeout after `timeout` seconds, or at the deadline."""
        if self._process is not forked.process:  # first, because a plain call comes here
            self.done()  # which raises, unless there is an outcome
        limit = timeout
        if timeout is None and self.deadline is not None:
            limit, timeout = self.timeout_s, max(0.0, self.deadline - time.monotonic())
        receiver = self.receiver
        if receiver is not None:
            receiver.wait(self, timeout)
        else:
            self.block(timeout)
        if not self.done():
            raise CallTimeout(f"{self.what} has not answered after {limit:.3g} s; it still runs")

    def block(self, timeout: float | None) -> None:
        """Wait for at most `timeout` seconds until another thread settles this."""
        wakeup.sleep_until(self.done, timeout, self)

    def cancel(self) -> bool:
        if self.done():
            return self.cancelled()
        with shield:  # a future that is cancelled has told its pool
            return super().cancel()

    def done(self) -> bool:
        """Tell whether there is an outcome.  Raises NotConnected if none can come: see forked.py.

        So does all that waits for it, since that asks this first.
        """
        if self._state not in (PENDING, RUNNING):
            return True
        forked.check(self._process, self.what)
        return False

    def running(self) -> bool:
        return not self.done() and self._state == RUNNING

    def set_waiting(self) -> None:
        """Take back `set_running_or_notify_cancel`: it does not run after all."""
        with self._condition:
            if self._state == RUNNING:
                self._state = PENDING

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # noqa: PLC0415 - slow to import, and async code has imported it

        if self.deadline is not None:
            return self._result_in_time().__await__()
        return asyncio.wrap_future(self).__await__()

    async def _result_in_time(self) -> R:
        """Wait in an event loop.  If that is cancelled, so is the call, as by `wrap_future`."""
        import asyncio  # noqa: PLC0415 - as above

        try:
            await until_done(self)
        except asyncio.CancelledError:
            self.cancel()
            raise
        try:
            if not self.done():
                self.wait()  # raises CallTimeout
            return await asyncio.wrap_future(self)
        finally:
            del self  # see future.py

    def then(self, function: Callback) -> None:
        """Call `function` with this future when it is done: a callback of the runtime.

        It must not block, and not run the user's code; see callbacks.py.
        """
        self._continuations.append(function)
        if self.done():
            self.run_callbacks()

    def add_done_callback(
        self, fn: Callable[[Future[R]], object], *, context: Context | None = None
    ) -> None:
        """Call `fn` with this future when it is done; with `context`, in the running event loop."""
        if self.done():
            self._call_each([in_its_loop(fn, context) or fn])
        elif (notify := in_its_loop(fn, context)) is not None:
            self.then(notify)
        else:
            self._done_callbacks.append(fn)
            if self.done():
                self.run_callbacks()

    def remove_done_callback(self, fn: Callable[[Future[R]], object]) -> int:
        """Remove a callback that has not been called yet; return how often it had been added."""
        return _remove_all(self._done_callbacks, fn) + _remove_all(self._continuations, fn)

    def _watched(self) -> list[Any]:
        """Return the list to which the standard library's `wait` and `as_completed` add waiters.

        Reading it is the only sign of them; they hold the condition meanwhile.
        """
        self.done()
        if self._watchers is None:
            self._watchers = []
        return self._watchers

    _waiters: list[Any] = property(_watched)  # type: ignore[assignment]

    @property
    def has_callbacks(self) -> bool:
        """Tell whether any done-callbacks have not run yet."""
        return bool(self._done_callbacks or self._continuations)

    def run_callbacks(self) -> None:
        """Have the done-callbacks of a future that is done run.  If interrupted, repeat it."""
        if self._continuations:
            callbacks.off_main(self._call_each, self._continuations)
        if self._done_callbacks:
            callbacks.users.call(partial(self._call_each, self._done_callbacks))

    def _call_each(self, functions: list[Callback]) -> None:
        while functions:
            try:
                function = functions.pop(0)
            except IndexError:  # another thread has removed the last one
                return
            try:
                function(self)
            except BaseException as error:
                if is_for_main(error):
                    raise
                log.exception("a done-callback of %s failed", self.what)

    def _invoke_callbacks(self) -> None:
        """Called by the base class when the future is done."""
        if wakeup.sleepers:
            wakeup.wake(self)
        if self._done_callbacks or self._continuations:
            self.run_callbacks()


async def until_done(future: AwaitableFuture[Any]) -> None:
    """Wait for an outcome, or the deadline.  Cancelling this wait does not cancel the call."""
    import asyncio  # noqa: PLC0415 - slow to import, and async code has imported it

    if future.done():
        await asyncio.sleep(0)  # let other tasks run
        return
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()

    def notify(_: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(_complete, arrived)

    deadline = future.deadline
    timer = None
    if deadline is not None:
        timer = loop.call_later(max(0.0, deadline - time.monotonic()), _complete, arrived)
    future.then(notify)
    try:
        await arrived
    finally:
        future.remove_done_callback(notify)
        if timer is not None:
            timer.cancel()


def _complete(arrived: Any) -> None:
    if not arrived.done():
        arrived.set_result(None)


class _InLoop:
    """A done-callback that runs in an event loop, whichever thread completes the future."""

    def __init__(self, fn: Callback, loop: Any, context: Context | None) -> None:
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


def in_its_loop(fn: Callback, context: Context | None) -> Callback | None:
    """Return a callback of the runtime that has an event loop call `fn`; None if none expects it.

    `asyncio.wrap_future` adds a function that only wakes the loop of the future that it returns.
    """
    module = getattr(fn, "__module__", None)
    if module == "asyncio.futures":
        return fn
    if context is None and module != "asyncio.tasks":
        return None
    loop = running_loop()
    return None if loop is None else _InLoop(fn, loop, context)


def _remove_all(functions: list[Any], fn: Callback) -> int:
    """Remove a function from the callbacks, from which other threads take the first."""
    removed = 0
    with suppress(ValueError):
        while True:
            functions.remove(fn)
            removed += 1
    return removed


def give_up(futures: Iterable[Future[Any]]) -> None:
    """Cancel calls whose results nobody takes any more; in a forked child they are the parent's."""
    for future in futures:
        with suppress(NotConnected):
            future.cancel()
