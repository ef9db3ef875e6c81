"""Sections of code that no signal handler interrupts.

Python runs signal handlers on the main thread, between any two bytecodes, and pyzmq runs them at
the end of each of its operations.  A handler that raises (Ctrl-C) then leaves half a message in a
socket, or takes a frame with it that had just been received; a handler that calls an actor would
send amid another message.  What cannot be done again or undone after that is done `with shield:`,
where handlers are put off until the end of the section.  Everything else is written so that it
can be done again: see inbox.py.

A section costs a microsecond, on the main thread; on any other it costs next to nothing, since no
handler runs there.  What must be left out of it is whatever may take long, above all a user's code.

Only the signals that programs do handle are looked at: each costs time.  Refused: one handler of
ours for good, which whoever asks for the handler would find in the place of his own (asyncio.run
does, to decide what Ctrl-C means).
"""

import _signal  # type: ignore[import-not-found]  # of `signal`, without its enums: they cost six times as much as all of this
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

SIGNALS = tuple(
    int(getattr(signal, name))
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class Shield:
    """Use the one `shield` below.  It may be entered again within itself."""

    def __init__(self) -> None:
        self._depth = 0
        self._replaced: list[tuple[int, Any]] = []
        self._late: list[int] = []
        self._put_off = self._note  # one object, to be known again

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
            except BaseException:  # of one that we had not come to yet
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
        """In a fork by another thread: the main thread's section does not go on there."""
        self._depth = 0
        self._late.clear()
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self._late:
            self._late.append(number)

    def _restore(self) -> None:
        """Put the handlers back.  Each may run, and raise, from the moment when it is back.

        So one stays in the list until it is back, and neither a call nor the end of a loop lies
        between a look and what is done on it: there Python handles signals.
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
        """Run the handlers themselves.  To raise the signals again would also write to the wakeup
        descriptor again, and asyncio would run its handlers twice."""
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
_main = threading.main_thread().ident


def _after_fork() -> None:
    global _main
    before, _main = _main, threading.get_ident()
    if _main != before:  # else the section goes on here, and ends
        shield.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
