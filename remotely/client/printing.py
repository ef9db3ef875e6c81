"""Printing by a client: output and log records of actors, unretrieved errors, warnings.

Log records of actors go to the script's own handlers, on a thread for that purpose.  A handler may
be slow or wait for a lock, and the loop's thread, which receives replies, must never wait for it.
If the handlers cannot keep up, records beyond MAX_WAITING are dropped, counted and reported.
Without handlers, the script prints what `logging` prints as a last resort, with the actor's name in
front, as for the output of actors.

This is the I/O of reporting/terminal.py and reporting/throttled_log.py.
"""

import contextlib
import logging
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from remotely.client.master_session import MasterSession
from remotely.errors import ActorRaised, NotConnected, RemotelyError
from remotely.futures import unretrieved
from remotely.protocol import control
from remotely.protocol.control import Logged, Printed
from remotely.reporting import log_records
from remotely.reporting.terminal import Screen
from remotely.reporting.throttled_log import ThrottledLog

MAX_WAITING = 10_000
CLOSE_S = 2.0
log = logging.getLogger("remotely")


class Display:
    def __init__(self, shows_output: bool) -> None:
        self._shows_output = shows_output
        # The loop's thread shows output, and the log thread log records.
        self._lock = threading.Lock()
        self._screens = {
            is_error: Screen(clears=_is_terminal(stream))
            for is_error, stream in ((False, sys.stdout), (True, sys.stderr))
        }
        self._throttled = ThrottledLog(lambda text: print(text, file=sys.stderr, flush=True))

    def show(self, output: control.Printed) -> None:
        if self._shows_output:
            with self._lock:
                screen = self._screens[output.error]
                _write(output.error, screen.add(output.name, output.text))

    def warn(self, source: str, sentence: str) -> None:
        """Print a sentence, or only count it if one of the same source was printed recently."""
        self._throttled.add(source, sentence, time.monotonic())

    def close(self) -> None:
        for is_error, screen in self._screens.items():
            if end := screen.close():
                _write(is_error, end)


class ErrorReporter:
    """Prints the unretrieved errors of submitted calls: see futures/unretrieved.py."""

    def __init__(self, session: MasterSession, display: Display) -> None:
        self._session = session
        self._display = display
        self._errors: deque[tuple[str, BaseException]] = deque()

    def note(self, what: str, error: BaseException) -> None:
        """Note the error of a dropped future, on any thread; `report` runs on the loop's thread."""
        session = self._session
        is_ours = isinstance(error, RemotelyError) and not isinstance(error, ActorRaised)
        is_expected = session.is_leaving and is_ours
        if is_expected or isinstance(error, NotConnected) or session.is_forked:
            return
        self._errors.append((what, error))
        if not session.is_closed:
            session.loop.call(self.report)

    def report(self) -> None:
        """Print the errors that were noted."""
        while self._errors:
            what, error = self._errors.popleft()
            text = unretrieved.report_text(what, error)
            self._display.warn(unretrieved.report_key(what, error), text)


class LogListener:
    """Passes log records of actors to the script's handlers; `show` prints them if it has none."""

    def __init__(self, show: Callable[[Printed], None]) -> None:
        self._show = show
        self._waiting: queue.SimpleQueue[Logged | None] = queue.SimpleQueue()
        self._dropped = 0
        self._drops_rest = False  # set when `close` has waited CLOSE_S
        self._thread: threading.Thread | None = None

    def hear(self, logged: Logged) -> None:
        """Queue a record, on the loop's thread.  Never waits, as it would for `logging`'s locks."""
        if self._waiting.qsize() >= MAX_WAITING:
            self._dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="remotely-log", daemon=True)
            self._thread.start()
        self._waiting.put(logged)

    def close(self) -> None:
        """Wait up to CLOSE_S for the handlers, then drop, count and report the remaining records.

        A handler that hangs for another CLOSE_S is abandoned, with the report.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._waiting.put(None)
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                self._drops_rest = True
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

    def _run(self) -> None:
        is_open = True
        while is_open:
            logged = self._waiting.get()
            try:
                if logged is None:
                    is_open = False
                elif self._drops_rest:
                    self._dropped += 1
                else:
                    self._handle(logged)
                if self._waiting.empty() and self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    log.warning("%d log records of actors were dropped: slow handlers", dropped)
            except Exception:  # from a filter of the user; `logging` reports those of handlers
                traceback.print_exc()


def _write(is_error: bool, text: str) -> None:
    stream = sys.stderr if is_error else sys.stdout
    with contextlib.suppress(Exception):  # a closed terminal must not stop the client
        stream.write(text)
        stream.flush()


def _is_terminal(stream: object) -> bool:
    with contextlib.suppress(Exception):  # it may be None, closed, or a user's object
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False
