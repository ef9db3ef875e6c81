"""The threads of a client that move large values, while the program goes on."""

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("remotely")

MAX_THREADS = 8  # more do not make a line faster
IDLE_S = 5.0  # after which a thread ends


class BulkThreads:
    """Runs each task on one of a few daemon threads, the first to come first."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def run(self, task: Callable[[], object], instead: Callable[[], object] = lambda: None) -> None:
        """Have a task run soon; once this is closed, `instead` runs at once."""
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._add(task, instead)
        if is_closed:
            instead()

    def close(self) -> None:
        """Begin no task any more."""
        with self._changed:
            self._is_closed = True
            dropped = [*self._tasks]
            self._tasks.clear()
            self._changed.notify_all()
        for _, instead in dropped:
            instead()

    def _add(self, task: Callable[[], object], instead: Callable[[], object]) -> None:
        self._tasks.append((task, instead))
        if self._idle >= len(self._tasks) or self._threads == MAX_THREADS:
            self._changed.notify()
            return
        self._threads += 1
        threading.Thread(target=self._serve, name="remotely-bulk", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._tasks or self._is_closed, IDLE_S)
                self._idle -= 1
                if not self._tasks:
                    self._threads -= 1
                    return
                task, instead = self._tasks.popleft()
            try:
                task()
            except Exception:
                log.exception("a large value could not be moved")
            del task, instead  # they may hold what their end frees
