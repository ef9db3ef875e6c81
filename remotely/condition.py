"""The condition on which threads of this process sleep until another one has done something.

There is one for all of them.  A signal handler may strike while its thread, the main one, holds the
lock, and may itself wait, for what takes other threads that lock: whoever sleeps lets go of it,
whatever the frames below hold.  With a lock for each thing that is waited for, a handler would hold
one and wait for another.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from remotely.shield import shield


class Condition(threading.Condition):
    """A condition that an interrupt leaves as it was, wherever it strikes.

    That of the library enters and leaves by methods in Python, and whoever is interrupted there
    keeps the lock for good.  Here `with` finds, through the slots, the lock's own methods in C.
    And whoever is interrupted while it goes to sleep has the lock again before `with` lets it go.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self) -> None:
        super().__init__()
        self._lock: Any
        self._waiters: deque[Any]
        self.__enter__ = self._lock.__enter__  # type: ignore[method-assign]
        self.__exit__ = self._lock.__exit__  # type: ignore[method-assign]

    def wait(self, timeout: float | None = None) -> bool:
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        released: Any = None
        woken = False
        try:
            with shield:
                released = self._lock._release_save()
            woken = waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
            return woken
        finally:
            if released is not None:
                self._lock._acquire_restore(released)
            if not woken:
                with suppress(ValueError):
                    self._waiters.remove(waiter)

    def notify_all(self) -> None:
        """Wake all who wait.  Whoever is interrupted in it may do it again."""
        if self._waiters:
            for waiter in tuple(self._waiters):
                with suppress(RuntimeError):  # it was woken before the interrupt
                    waiter.release()
                with suppress(ValueError):
                    self._waiters.remove(waiter)


shared = Condition()


def sleep_until(is_over: Callable[[], object], timeout_s: float | None = None) -> None:
    """Return when it is over, or after a time.  Who ends it is to `wake` us."""
    with shared:
        shared.wait_for(is_over, timeout_s)


def wake() -> None:
    """Have all who sleep look again.  Whoever is interrupted in it may do it again."""
    with shared:
        shared.notify_all()


def _after_fork() -> None:
    """Another thread of the parent may have held it, and is not here to let it go."""
    global shared
    shared = Condition()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
