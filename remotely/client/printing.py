"""Printing by a client: output and log records of actors, unretrieved errors, warnings.

Nobody waits for a terminal.  `script | less`, Ctrl-S, a slow handler of `logging` and one that
waits for a lock would stop the thread that writes to them, and the loop's thread receives replies.
So what is to be written is put into a `Backlog`, whose own thread writes it, in order.  If it falls
too far behind, what comes next is dropped, counted and reported; `remotely logs` has all output.
At the end, a backlog has CLOSE_S to finish.

Log records of actors go to the script's own handlers.  Without handlers, the script prints what
`logging` prints as a last resort, with the actor's name in front, as for the output of actors.

This is the I/O of reporting/terminal.py and reporting/throttled_log.py.
"""

import contextlib
import logging
import queue
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from remotely.client.master_session import MasterSession
from remotely.errors import ActorRaised, NotConnected, RemotelyError
from remotely.futures import unretrieved
from remotely.machine import threads
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.control import Logged, Printed
from remotely.reporting import log_records
from remotely.reporting.terminal import TerminalScreen
from remotely.reporting.throttled_log import ThrottledLog

MOST_RECORDS = 10_000
MOST_CHARACTERS = 4 << 20
CLOSE_S = 2.0
LOOK_EVERY_MS = 50  # whether a stream that takes no more has to be given up
PIECE = 1000  # characters: a pipe with room takes 4 KiB at once
log = logging.getLogger("remotely")

T = TypeVar("T")


class Backlog(Generic[T]):
    """Items that a thread handles in order; whoever adds one never waits.

    If no thread can be started, as when the script has ended, the one that adds an item handles it.
    Items are dropped while those that wait have a size of `most` together, and all of them once
    `close` has waited CLOSE_S: then `is_given_up`.  `report` gets their number on the thread, as
    soon as it has caught up.
    """

    def __init__(
        self, name: str, handle: Callable[[T], None], report: Callable[[int], None], most: int
    ) -> None:
        self.is_given_up = False
        self._name = name
        self._handle = handle
        self._report = report
        self._most = most
        self._waiting: queue.SimpleQueue[tuple[T, int, int] | None] = queue.SimpleQueue()
        self._lock = RLock()  # of the next three; a signal handler may add an item too
        self._size = 0  # of those that wait
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def add(self, item: T, size: int = 1, count: int = 1) -> None:
        """Queue an item, which counts as `count` if it is dropped.  Any thread may call this."""
        with self._lock:
            if self._size >= self._most:
                self._dropped += count
                return
            self._size += size
            self._waiting.put((item, size, count))
            if self._thread is not None:
                return
            try:
                self._thread = threads.start(self._name, self._run)
                return
            except RuntimeError:  # none can be started
                pass
        self._run_here()

    def close(self) -> None:
        """Wait up to CLOSE_S for the items, then drop, count and report the remaining ones.

        A handler that hangs for another CLOSE_S is abandoned, with the report.
        """
        if self._thread is not None and self._thread is not threading.current_thread():
            self._waiting.put(None)
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                self.is_given_up = True
                self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            self._run_one(*entry)
        self._report_dropped()

    def _run_here(self) -> None:
        """Handle what waits on this thread, for want of another."""
        with contextlib.suppress(queue.Empty):
            while (entry := self._waiting.get_nowait()) is not None:
                self._run_one(*entry)
            self._waiting.put(None)  # for a thread that could be started meanwhile

    def _run_one(self, item: T, size: int, count: int) -> None:
        is_handled = not self.is_given_up
        try:
            if is_handled:
                self._handle(item)
        except Exception:  # from a filter of the user; `logging` reports those of handlers
            traceback.print_exc()
        with self._lock:
            self._size -= size
            self._dropped += 0 if is_handled else count
        if self._waiting.empty():
            self._report_dropped()

    def _report_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._report(dropped)


class Printer:
    """Writes text to `sys.stdout` and `sys.stderr`, on a thread."""

    def __init__(self) -> None:
        self._backlog: Backlog[tuple[bool, str]] = Backlog(
            "print", self._write, self._report, MOST_CHARACTERS
        )

    def write(self, is_error: bool, text: str) -> None:
        self._backlog.add((is_error, text), len(text), text.count("\n") or 1)

    def close(self) -> None:
        self._backlog.close()

    def _report(self, lines: int) -> None:
        text = f"remotely: {lines} lines were not printed: nothing took them in time\n"
        self._write((True, text))

    def _write(self, item: tuple[bool, str]) -> None:
        is_error, text = item
        stream = sys.stderr if is_error else sys.stdout
        with contextlib.suppress(Exception):  # a closed terminal must not stop the client
            for begin in range(0, len(text), PIECE):
                if not self._takes_more(stream):
                    return
                stream.write(text[begin : begin + PIECE])
                stream.flush()

    def _takes_more(self, stream: object) -> bool:
        """Wait until a stream takes more; return false if it must be given up.

        A thread that waited within `write` would hold the stream's lock, and the interpreter, which
        flushes the stream as it exits, would abort.
        """
        try:
            fd = stream.fileno()  # type: ignore[attr-defined]
        except Exception:  # a notebook's, or a user's object
            return True
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while not poll.poll(LOOK_EVERY_MS):
            if self._backlog.is_given_up:
                return False
        return True


class Display:
    def __init__(self, shows_output: bool) -> None:
        self._shows_output = shows_output
        # The loop's thread shows output, and the log thread log records.
        self._lock = threading.Lock()
        terminals = {False: _is_terminal(sys.stdout), True: _is_terminal(sys.stderr)}
        self._screens = {
            is_error: TerminalScreen(clears=clears) for is_error, clears in terminals.items()
        }
        # On a terminal, the two keep their order; of a pipe and a terminal, one may be stuck.
        output = Printer()
        self._printers = {False: output, True: output if all(terminals.values()) else Printer()}
        self._throttled = ThrottledLog(lambda text: self._printers[True].write(True, f"{text}\n"))

    def show(self, output: control.Printed) -> None:
        if self._shows_output:
            with self._lock:
                text = self._screens[output.error].add(output.name, output.text)
                self._printers[output.error].write(output.error, text)

    def warn(self, source: str, sentence: str) -> None:
        """Print a sentence, or only count it if one of the same source was printed recently."""
        self._throttled.add(source, sentence, time.monotonic())

    def close(self) -> None:
        """Write what is left, for at most CLOSE_S twice, and end open lines."""
        for is_error, screen in self._screens.items():
            if end := screen.close():
                self._printers[is_error].write(is_error, end)
        for printer in {*self._printers.values()}:
            printer.close()


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
        if session.gate.is_open:
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
        self._records: Backlog[Logged] = Backlog("log", self._handle, self._report, MOST_RECORDS)
        self.hear = self._records.add
        self.close = self._records.close

    def _report(self, dropped: int) -> None:
        log.warning("%d log records of actors were dropped: slow handlers", dropped)

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


def _is_terminal(stream: object) -> bool:
    with contextlib.suppress(Exception):  # it may be None, closed, or a user's object
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False
