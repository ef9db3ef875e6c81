"""The one way to a retry: `@remotely.idempotent(retries=n)` on a method.

A call whose actor died, or whose machine was lost, may have run.  Only who wrote the method knows
whether running it again does harm; who says that it does none has such calls made again, in the
actor's next life (`max_restarts`) or along a new connection.  What the method itself raises is an
answer, and is never tried again.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from remotely.errors import ActorDied, CallTimeout, WorkerLost
from remotely.future import CallFuture

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__remotely_retries__"


def idempotent(*, retries: int = 1) -> Callable[[F], F]:
    """Mark a method whose call may be made again, at most `retries` times, if its outcome is lost.

    Raises ValueError for less than one retry.
    """
    if type(retries) is not int or retries < 1:
        raise ValueError(f"retries={retries!r}: it is to be a whole number from 1 up")

    def mark(method: F) -> F:
        setattr(method, _MARK, retries)
        return method

    return mark


def retries_of(method: object) -> int:
    """Return how often a call of a method may be made again; most of them never."""
    return getattr(method, _MARK, 0)


def copy_mark(method: object, stand_in: object) -> None:
    """Have `stand_in` count as marked if `method` is."""
    if retries := retries_of(method):
        setattr(stand_in, _MARK, retries)


def retried(
    first: CallFuture[Any], call: Callable[[], CallFuture[Any]], retries: int
) -> CallFuture[Any]:
    """Return the future of a call that is made again by `call` if its outcome is lost."""
    return Retrying(first, call, retries).future


class Retrying:
    """Receives for a future whose call may be made anew; `call` makes it."""

    def __init__(
        self, first: CallFuture[Any], call: Callable[[], CallFuture[Any]], retries: int
    ) -> None:
        self.future: CallFuture[Any] = CallFuture(first.what, first.keep)
        self.future.receiver = self
        self._call = call
        self._left = retries
        self._passed_on = False
        self._inner = first
        self._lock = threading.Lock()

    def wait(self, future: CallFuture[Any], timeout: float | None = None) -> None:
        """Wait for the call under way, once; whoever sees its end makes the next."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not future.done():
            inner = self._inner
            try:
                inner.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except CallTimeout:
                return
            self._pass_on(inner)

    def attend(self) -> None:
        self._inner.add_done_callback(lambda _: self._follow())

    def _follow(self) -> None:
        """On the loop's thread, where nothing may wait: a new life may be long in coming."""
        inner = self._inner
        if self._left and isinstance(inner.exception(), ActorDied | WorkerLost):
            threading.Thread(
                target=self.wait, args=(self.future,), name="remotely-retry", daemon=True
            ).start()
        else:
            self._pass_on(inner)

    def _pass_on(self, inner: CallFuture[Any]) -> None:
        error = inner.exception()
        with self._lock:
            if inner is not self._inner or self._passed_on:
                return  # another thread was first
            if self._left and isinstance(error, ActorDied | WorkerLost):
                self._left -= 1
                self._inner = self._call()
                return
            self._passed_on = True
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(inner.result())
