"""The threads on which an actor with `concurrency=n` runs what it is asked for.

Calls, and reads and writes of attributes, begin in the order in which they came, and end in any.
What belongs to one stream runs one at a time and in order, and takes one thread however much of it
waits: what waits is in a line of the stream's own, and after each item the thread goes back to the
others.
"""

import os
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from remotely.actor import exiting

Work = Callable[[], object]


class CallThreads:
    def __init__(self, number: int) -> None:
        self._pool = ThreadPoolExecutor(number, "remotely-call")
        self._lock = threading.Lock()
        self._lines: dict[str, deque[Work]] = {}  # of the streams of which something runs or waits
        self._drops = False

    def run(self, work: Callable[..., object], *args: Any) -> None:
        self._pool.submit(_run, work, *args)

    def run_in_turn(self, stream: str, work: Work) -> None:
        """Run it after all that was asked of the stream before."""
        with self._lock:
            if line := self._lines.get(stream):
                line.append(work)
                return
            self._lines[stream] = deque([work])
        self.run(self._serve, stream)

    def end(self, drop: bool) -> None:
        """Return when all has run; with `drop`, when what has begun has."""
        self._drops = drop
        self._pool.shutdown(cancel_futures=drop)

    def _serve(self, stream: str) -> None:
        line = self._lines[stream]
        while not self._drops:
            line[0]()
            with self._lock:
                del line[0]  # not before: who finds a line empty begins another
                if not line:
                    del self._lines[stream]
                    return
            try:
                self.run(self._serve, stream)
                return
            except RuntimeError:  # the pool takes nothing any more
                continue


def _run(work: Callable[..., object], *args: Any) -> None:
    """End the process by what ends a script; the pool would keep it to itself."""
    try:
        work(*args)
    except SystemExit as error:
        _exit(exiting.exit_code(error))
    except BaseException:
        traceback.print_exc()
        _exit(1)


def _exit(code: int) -> None:
    exiting.flush_files()
    os._exit(code)
