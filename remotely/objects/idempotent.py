"""The only way to a retry: `@remotely.idempotent(retries=n)` on a method.

A call whose actor died, or whose machine was lost, may have run.  Only the author of the method
knows whether it is safe to run it again.  If you mark a method, such calls are repeated, in the
actor's next life (`max_restarts`) or on a new connection.  An error that the method itself raises
is an outcome, and is never retried.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from remotely import arguments
from remotely.arguments import suggests
from remotely.errors import ActorDied, WorkerLost
from remotely.futures.future import CallFuture
from remotely.machine.shield import shield

log = logging.getLogger("remotely")

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__remotely_retries__"


@suggests
def idempotent(*, retries: int = 1) -> Callable[[F], F]:
    """Mark a method whose call may be repeated, at most `retries` times, if its outcome is lost.

    Raises ValueError for fewer than one retry.
    """
    arguments.whole_number("retries", retries, 1)

    def mark(method: F) -> F:
        setattr(method, _MARK, retries)
        return method

    return mark


def retries_of(method: object) -> int:
    """Return how often a call of a method may be repeated: never, unless it is marked."""
    return getattr(method, _MARK, 0)


def copy_mark(method: object, placeholder: object) -> None:
    """Mark `placeholder` if `method` is marked."""
    if retries := retries_of(method):
        setattr(placeholder, _MARK, retries)


class RetriedFuture(CallFuture[Any]):
    """The future of a call that is repeated if its outcome is lost; `again` sends it."""

    def __init__(
        self, what: str, keep: object, again: Callable[[CallFuture[Any]], None], retries: int
    ) -> None:
        super().__init__(what, keep)
        self._again: Callable[[CallFuture[Any]], None] | None = again
        self._left = retries

    def lose(self, error: BaseException) -> None:
        """Send the call again if that may help."""
        if self.answered:
            return
        if self._left and isinstance(error, ActorDied | WorkerLost):
            self._left -= 1
            self.call_id = 0
            self.receiver = None
            try:
                _queues.add(self)
            except RuntimeError:  # no further thread can be started
                log.exception("%s could not be tried again", self.what)
                super().lose(error)
        else:
            super().lose(error)

    def send_again(self) -> None:
        """Wait for the actor's next life, and call it."""
        again = self._again
        if again is None:  # it was settled while it was queued, by a Deadlock for example
            return
        try:
            again(self)
        except Exception as error:
            super().lose(error.with_traceback(None))
            self.tell()

    def _finish(self) -> None:
        self._again = None  # it holds the arguments
        super()._finish()


class RetryQueues:
    """Lost calls that have to be sent again, in a queue for each actor.

    A queue has a thread of its own, because the next life may take long, and the thread that loses
    calls may be the client's loop.  All calls of an actor share that thread: thousands may be lost
    at once, and they have to leave in the order in which they were made.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[int, deque[RetriedFuture]] = {}

    def add(self, future: RetriedFuture) -> None:
        """Have a call sent again.  Raises RuntimeError if no thread can be started."""
        actor = id(future.keep)  # which lives while one of its calls waits
        with shield, self._lock:  # a signal handler may lose calls too
            if (queue := self._queues.get(actor)) is not None:
                queue.append(future)
                return
            self._queues[actor] = deque((future,))
            thread = threading.Thread(
                target=self._serve, args=(actor,), name="remotely-retry", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                del self._queues[actor]
                raise

    def _serve(self, actor: int) -> None:
        while True:
            with self._lock:
                queue = self._queues[actor]
                if not queue:
                    del self._queues[actor]
                    return
                future = queue.popleft()
            future.send_again()
            del future


_queues = RetryQueues()


def _after_fork() -> None:
    """The threads do not exist in the child."""
    global _queues
    _queues = RetryQueues()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
