"""How threads sleep until another one has done something, without a lock that either holds.

A sleeper first leaves its bell, and then looks whether there is anything to sleep for; whoever has
done something rings after it is done.  So one of the two sees the other.  A signal handler may
strike anywhere in here, and itself wait for whatever it likes: nobody waits for its thread.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

hung: list[tuple[threading.Lock, object]] = []  # the bells of all who sleep, and for what


def sleep_until(
    is_over: Callable[[], object], timeout_s: float | None = None, about: object = None
) -> None:
    """Return when it is over, or after a time.  Who ends it is to ring `about` the same."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_over():
        left_s = -1.0 if deadline is None else deadline - time.monotonic()
        if deadline is not None and left_s <= 0:
            return
        bell = threading.Lock()
        bell.acquire()
        mine = bell, about
        try:
            hung.append(mine)
            if not is_over():
                bell.acquire(timeout=min(left_s, threading.TIMEOUT_MAX))
        finally:
            if mine in hung:
                hung.remove(mine)


def ring(about: object = None) -> None:
    """Have those who sleep for this look again.  Whoever is interrupted in it may do it again."""
    for bell, subject in tuple(hung):
        if subject is about:
            with suppress(RuntimeError):  # it has been rung already
                bell.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=hung.clear)  # the parent's threads do not sleep there
