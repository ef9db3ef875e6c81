"""Sections of code that no signal handler interrupts, and locks that none leaves held.

Python runs signal handlers on the main thread, between any two bytecodes, and pyzmq runs them at
the end of each of its operations.  A handler that raises (Ctrl-C) may leave half a message in a
socket, or lose a frame that had just been received.  What cannot be repeated or undone after that
runs `with shield:`, which delays handlers until the end of the section.  All other code is written
so that it can be repeated, or left to another thread: see client/channel.py.

A section costs a microsecond on the main thread, and next to nothing on any other, since no handler
runs there.  Keep out of it whatever may take long, above all the user's code.

A lock whose section may be interrupted is of this file too: `with` must release it wherever a
handler raises.

Only the signals that programs usually handle are delayed, because each costs time.  Refused: to
install a handler of ours for good.  Code that asks for the current handler would find ours instead
of its own (asyncio.run asks, to decide what Ctrl-C means).
"""

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost six times as much as all of this
import _thread
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

if sys.version_info < (3, 14):
    RLock = threading.RLock
else:

    class RLock(_thread.RLock):
        """A lock that `with` has released whenever it is over.

        From Python 3.14 on, handlers run between the call of `__enter__`, if that is in C, and the
        section (https://github.com/python/cpython/issues/148874).  They run at none of the steps
        here from the moment when the lock is taken.
        """

        __slots__ = ()

        def __enter__(self) -> bool:
            for _ in iter(self.acquire, None):
                return True
            raise AssertionError("it returns True")


class Condition(threading.Condition):
    """A condition with such a lock; an interrupted `wait` may yet break it.

    The library's condition enters and leaves by methods in Python, and a thread that is interrupted
    there never releases the lock.  Here `with` finds, through the slots, the methods of the lock.
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
            except BaseException:  # of a signal that was not replaced yet
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

    def forget(self) -> None:
        """After a fork by another thread: the main thread's section does not go on here."""
        self._depth = 0
        self._late.clear()
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self._late:
            self._late.append(number)

    def _restore(self) -> None:
        """Put the handlers back.  Each may run, and raise, as soon as it is back.

        So a handler stays in the list until it is back.  And no call or end of a loop, where Python
        runs handlers, lies between a check and the step that relies on it.
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


def is_for_main(error: BaseException) -> bool:
    """Whether this thread has to raise an error on: Ctrl-C and exits belong to the main thread.

    Any other, such as the client's loop, must survive those that the user's code raised in it.
    """
    return isinstance(error, KeyboardInterrupt | SystemExit) and threading.get_ident() == _main


_main = threading.main_thread().ident


def _after_fork() -> None:
    global _main
    before, _main = _main, threading.get_ident()
    if _main != before:  # else the section goes on here, and ends
        shield.forget()


os.register_at_fork(after_in_child=_after_fork)
