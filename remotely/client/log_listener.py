"""Log records of actors: the script's own handlers get them.

The handlers run on a thread of their own.  A handler may be slow, or wait for a lock; the loop's
thread, which receives the replies, must never wait for it.  If the handlers cannot keep up, the
records beyond MAX_WAITING are counted and reported.

A script without handlers sees what `logging` would print as a last resort, with the name of the
actor before it, just as the output of actors is shown.
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
    """`show` prints the records for which there is no handler."""

    def __init__(self, show: Callable[[Printed], None]) -> None:
        self._show = show
        self._waiting: queue.SimpleQueue[Logged | None] = queue.SimpleQueue()
        self._left_out = 0
        self._is_late = False  # `close` has waited long enough: skip the rest
        self._thread: threading.Thread | None = None

    def hear(self, logged: Logged) -> None:
        """On the loop's thread, which must not wait: any thread may hold the locks of `logging`."""
        if self._waiting.qsize() >= MAX_WAITING:
            self._left_out += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="remotely-log", daemon=True)
            self._thread.start()
        self._waiting.put(logged)

    def close(self) -> None:
        """Return when all records are handled, or after CLOSE_S: then count and report the rest.

        A handler that hangs for CLOSE_S more is abandoned, since it would delay the warning too.
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
            except Exception:  # of the user's filter; `logging` reports those of handlers
                traceback.print_exc()
