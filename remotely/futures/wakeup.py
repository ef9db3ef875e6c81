"""Sleeping until another thread has done something, with no lock held by either.

A sleeper first registers itself, then checks its condition.  The other thread changes the condition
first, then wakes the sleepers.  So at least one of them sees the other, and an interrupt at any
point does no harm.
"""

import os
import threading
import time
from collections.abc import Callable

sleepers: list[tuple[threading.Lock, object]] = []  # a held lock for each, and its subject


def sleep_until(
    is_over: Callable[[], object], timeout_s: float | None = None, about: object = None
) -> None:
    """Sleep until `is_over()`, for at most `timeout_s`.  What makes it true calls `wake(about)`."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_over():
        left_s = -1.0 if deadline is None else deadline - time.monotonic()
        if deadline is not None and left_s <= 0:
            return
        lock = threading.Lock()
        lock.acquire()
        mine = lock, about
        try:
            sleepers.append(mine)
            if not is_over():
                lock.acquire(timeout=min(left_s, threading.TIMEOUT_MAX))
        finally:
            if mine in sleepers:
                sleepers.remove(mine)


def wake(about: object, also: object = None) -> None:
    """Have the threads that sleep about this, or also about that, check again.

    If interrupted, repeat it.
    """
    for lock, subject in tuple(sleepers):
        if subject is about or (subject is also and also is not None):
            try:
                lock.release()
            except RuntimeError:  # it has been released already
                pass


os.register_at_fork(after_in_child=sleepers.clear)  # a child has none of the parent's threads
