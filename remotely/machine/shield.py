"""Sections of code that signal handlers cannot interrupt, and locks that they cannot leave held.

Python runs signal handlers on the main thread, between any two bytecodes, and pyzmq runs them at
the end of each of its operations.  A handler that raises (Ctrl-C) may leave half a message in a
socket, or lose a frame that was just received.  Code that cannot be repeated or undone after that
runs `with shield:`, which delays handlers until the end of the section.  All other code can be
repeated, or left to another thread: see client/channel.py.

A section costs 1 us on the main thread, and next to nothing on other threads, where no handler
runs.  Keep slow code out of it, above all the user's code.

Use the locks of this file wherever a handler may interrupt their section: `with` releases them
wherever the handler raises.

Only the signals that programs usually handle are delayed, because each costs time.  Refused: to
install a handler permanently.  Code that asks for the current handler would find that one instead
of its own (asyncio.run asks, to decide what Ctrl-C means).
"""

# `signal` converts its results to enums, which costs six times as much as a whole section.
import _signal  # type: ignore[import-not-found]
import _thread
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from remotely.machine import interrupts

if sys.version_info < (3, 14):
    RLock = _thread.RLock  # the class, which threading.RLock only calls
else:

    class RLock(_thread.RLock):
        """A lock that `with` always releases.

        Since Python 3.14, handlers may run between an `__enter__` implemented in C and the section
        (https://github.com/python/cpython/issues/148874).  In this `__enter__` no handler runs
        once the lock is acquired.
        """

        __slots__ = ()

        def __enter__(self) -> bool:
            for _ in iter(self.acquire, None):
                return True
            raise AssertionError("acquire returned None")


class Condition(threading.Condition):
    """A condition with such a lock; an interrupted `wait` may still break it.

    The `__enter__` and `__exit__` of threading.Condition are Python code, and a thread interrupted
    there never releases the lock.  Here the slots make `with` use the methods of the lock.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, lock: Any = None) -> None:
        super().__init__(RLock() if lock is None else lock)
        self._lock: Any
        self.__enter__ = self._lock.__enter__  # type: ignore[method-assign]
        self.__exit__ = self._lock.__exit__  # type: ignore[method-assign]


SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class Shield:
    """Use the one `shield` below.  Sections may be nested."""

    def __init__(self) -> None:
        self._depth = 0
        self._replaced: list[tuple[int, Any]] = []
        self._late: list[int] = []
        self._put_off = self._note  # a single object, so that `is` recognises it

    def __enter__(self) -> None:
        if threading.get_ident() != _main:
            return
        self._depth += 1
        if self._depth == 1:
            try:
                for number in SIGNALS:
                    handler = _signal.getsignal(number)
                    if callable(handler):  # neither the default nor ignored
                        self._replaced.append((number, handler))
                        _signal.signal(number, self._put_off)
            except BaseException:  # raised by a handler that was not replaced yet
                self._depth = 0
                try:
                    self._restore()
                finally:
                    if self._late:
                        self._catch_up()
                raise

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != _main:
            return
        self._depth -= 1
        if self._depth == 0:
            try:
                self._restore()
            finally:
                if self._late:
                    self._catch_up()

    def is_open(self) -> bool:
        """Return whether this thread is in a section, and handlers are delayed."""
        return self._depth > 0 and threading.get_ident() == _main

    def forget(self) -> None:
        """Reset after a fork by another thread: the main thread's section ends in the child."""
        self._depth = 0
        self._late.clear()
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self._late:
            self._late.append(number)

    def _restore(self) -> None:
        """Restore the handlers.  Each may run, and raise, as soon as it is restored.

        So a handler stays in the list until it is restored.  And no call or end of a loop, where
        Python runs handlers, lies between a check and the step that relies on it.
        """
        try:
            while last := self._replaced[-1:]:
                number, handler = last[0]
                if _signal.getsignal(number) is self._put_off:
                    _signal.signal(number, handler)
                if self._replaced and self._replaced[-1] is last[0]:
                    del self._replaced[-1]
        finally:
            if self._replaced:
                self._restore()

    def _catch_up(self) -> None:
        """Run the delayed handlers.  Raising the signals again would write to the wakeup descriptor
        a second time, and asyncio would run its handlers twice."""
        try:
            while last := self._late[-1:]:
                number = last[0]
                handler, frame = _signal.getsignal(number), sys._getframe(2)
                if self._late[-1:] == last:
                    del self._late[-1]
                    if callable(handler):
                        handler(number, frame)
        finally:
            if self._late:
                self._catch_up()


shield = Shield()


_main = interrupts.main_thread = threading.main_thread().ident


def _after_fork() -> None:
    global _main
    before, _main = _main, threading.get_ident()
    interrupts.main_thread = _main
    if _main != before:  # else the main thread forked, and its section continues here
        shield.forget()


os.register_at_fork(after_in_child=_after_fork)
