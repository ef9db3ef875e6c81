"""Where a script hears what its actors log: its own handlers get the records.

They run on a thread of their own.  A handler may take its time, or hold a lock that another thread
has; the thread of the client's loop, on which the replies come in, must never wait for that.  If
the handlers cannot keep up, the records beyond MAX_WAITING are counted and told.

A script that has no handlers sees what `logging` would print in its place (`lastResort`), with the
name of the actor before it, as what actors print is shown.
"""

import logging
import queue
import threading
import traceback
from collections.abc import Callable

from remotely.protocol.control import Logged, Printed
from remotely.reporting import log_records

MAX_WAITING = 10_000
CLOSE_S = 2.0
log = logging.getLogger("remotely")


class LogListener:
    """`show` prints what nobody handles."""

    def __init__(self, show: Callable[[Printed], None]) -> None:
        self._show = show
        self._waiting: queue.SimpleQueue[Logged | None] = queue.SimpleQueue()
        self._left_out = 0
        self._is_late = False  # `close` has waited: the rest is left out
        self._thread: threading.Thread | None = None

    def hear(self, logged: Logged) -> None:
        """On the loop, which is to wait for nobody: `logging` has locks that anyone may hold."""
        if self._waiting.qsize() >= MAX_WAITING:
            self._left_out += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="remotely-log", daemon=True)
            self._thread.start()
        self._waiting.put(logged)

    def close(self) -> None:
        """Return when the records that have come are handled, or counted and told after CLOSE_S.

        A handler that hangs for as long again is left to itself: it would hold up the warning too.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._waiting.put(None)
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                self._is_late = True
                self._thread.join(CLOSE_S)

    def _handle(self, logged: Logged) -> None:
        logger = logging.getLogger(logged.logger)
        if not logger.isEnabledFor(logged.level):
            return
        if logger.hasHandlers():
            logger.handle(log_records.unpack(logged))
        else:
            self._show_last_resort(logged)

    def _show_last_resort(self, logged: Logged) -> None:
        last = logging.lastResort
        if last is not None and logged.level >= last.level:
            text = f"{last.format(log_records.unpack(logged))}\n"
            actor, name, job = logged.actor, logged.name, logged.job
            self._show(Printed(actor=actor, name=name, job=job, error=True, text=text))

    def _tell_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            log.warning("%d records of actors were left out: handlers are slow", left_out)

    def _run(self) -> None:
        is_open = True
        while is_open:
            logged = self._waiting.get()
            try:
                if logged is None:
                    is_open = False
                elif self._is_late:
                    self._left_out += 1
                else:
                    self._handle(logged)
                if self._waiting.empty():
                    self._tell_left_out()
            except Exception:  # of a filter of the user's; `logging` tells of its handlers' own
                traceback.print_exc()
