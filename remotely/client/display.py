"""What a client prints: the output of actors, and messages of its own.

This is the I/O of terminal.py and throttled_log.py.
"""

import contextlib
import sys
import threading
import time

from remotely.protocol import control
from remotely.reporting.terminal import Screen
from remotely.reporting.throttled_log import ThrottledLog


class Display:
    def __init__(self, shows_output: bool) -> None:
        self._shows_output = shows_output
        # The loop shows what actors print, and another thread what they log.
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

    def complain(self, source: str, sentence: str) -> None:
        """Print it, or count it if a sentence of the same source was printed a moment ago."""
        self._throttled.add(source, sentence, time.monotonic())

    def close(self) -> None:
        for is_error, screen in self._screens.items():
            if end := screen.close():
                _write(is_error, end)


def _write(is_error: bool, text: str) -> None:
    stream = sys.stderr if is_error else sys.stdout
    with contextlib.suppress(Exception):  # a closed terminal must not stop the client
        stream.write(text)
        stream.flush()


def _is_terminal(stream: object) -> bool:
    with contextlib.suppress(Exception):  # it may be None, closed, or an object of the user
        return bool(stream.isatty())  # type: ignore[attr-defined]
    return False
