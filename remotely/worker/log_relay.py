"""What one actor logs, on its worker: all of it goes to its file, some to its client.

Records and printed lines share one token bucket (output.py).  What does not pass is counted, and
the client hears of it in a record of ours, once a second and at the actor's end, so that a log file
of the script says where to find the rest.
"""

import logging
import time
from collections.abc import Callable

import msgspec

from remotely.protocol.control import Logged
from remotely.reporting import log_records
from remotely.worker.output import Later, Output

TELL_AFTER_S = 1.0


class LogRelay:
    """`pass_on` has a record go to the client; `later(seconds, action)` is the loop's."""

    def __init__(self, output: Output, pass_on: Callable[[Logged], None], later: Later) -> None:
        self._output = output
        self._pass_on = pass_on
        self._later = later
        self._left_out = 0
        self._first: Logged | None = None  # of those

    def take(self, logged: Logged) -> None:
        line = log_records.line(logged).encode(errors="replace")
        self._output.keep(line, is_error=True)
        if self._output.tokens.take(len(line), time.monotonic()):
            self._pass_on(logged)
            return
        if self._first is None:
            self._first = logged
            self._later(TELL_AFTER_S, self._tell_left_out)
        self._left_out += 1

    def end(self) -> None:
        """The actor has ended: what is told later finds nobody who would show it."""
        self._tell_left_out()

    def _tell_left_out(self) -> None:
        first, self._first = self._first, None
        if first is None:
            return
        left_out, self._left_out = self._left_out, 0
        self._pass_on(
            msgspec.structs.replace(
                first,
                logger="remotely",
                level=logging.WARNING,
                level_name="WARNING",
                message=f"it logs too fast: {left_out:,} records were left out"
                f"{self._output.kept_in}",
                exc_text="",
                stack="",
                extra={},
            )
        )
