"""The threads on which an actor with `concurrency=n` runs its calls.

Calls, and reads and writes of attributes, begin in the order in which they arrived, and end in any
order.  Requests for one stream run one at a time and in order, and never take more than one thread:
they wait in a queue of that stream, and after each item the thread returns to the other work.
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
        self._lines: dict[str, deque[Work]] = {}  # by stream, if something of it runs or waits
        self._drops = False

    def run(self, work: Callable[..., object], *args: Any) -> None:
        self._pool.submit(_run, work, *args)

    def run_in_turn(self, stream: str, work: Work) -> None:
        """Run it after the earlier requests for the stream."""
        with self._lock:
            if line := self._lines.get(stream):
                line.append(work)
                return
            self._lines[stream] = deque([work])
        self.run(self._serve, stream)

    def end(self, drop: bool) -> None:
        """Return when everything has run; with `drop`, when everything that has begun has run."""
        self._drops = drop
        self._pool.shutdown(cancel_futures=drop)

    def _serve(self, stream: str) -> None:
        line = self._lines[stream]
        while not self._drops:
            line[0]()
            with self._lock:
                del line[0]  # not earlier: `run_in_turn` starts another thread for an empty queue
                if not line:
                    del self._lines[stream]
                    return
            try:
                self.run(self._serve, stream)
                return
            except RuntimeError:  # the pool is shutting down
                continue


def _run(work: Callable[..., object], *args: Any) -> None:
    """End the process on SystemExit, as in a script; the pool would swallow it."""
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
