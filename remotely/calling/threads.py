"""Pools of daemon threads that end when they are idle."""

import logging
from collections import deque
from collections.abc import Callable

from remotely.machine import threads
from remotely.machine.gate import Gate
from remotely.machine.shield import Condition, shield

log = logging.getLogger("remotely")

THREAD_IDLE_S = 5.0  # after which a thread ends


class Threads:
    """Runs tasks on daemon threads, at most `most` at a time, in the order in which they came."""

    def __init__(self, name: str, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._tasks: deque[tuple[Callable[[], object], Callable[[], object]]] = deque()
        self._gate = Gate()
        self._changed = Condition(self._gate)
        self._threads = 0
        self._idle = 0

    def run(self, task: Callable[[], object], instead: Callable[[], object] = lambda: None) -> None:
        """Run a task soon; if the pool is closed before it begins, `instead` is called."""
        with shield, self._changed:  # a task in the list has a thread
            if is_open := self._gate.is_open:
                self._add(task, instead)
        if not is_open:
            instead()

    def close(self) -> None:
        """Begin no more tasks; call `instead` of those that have not begun."""
        with self._changed:
            self._gate.close()
            dropped = [*self._tasks]
            self._tasks.clear()
            self._changed.notify_all()
        for _, instead in dropped:
            instead()

    def _add(self, task: Callable[[], object], instead: Callable[[], object]) -> None:
        self._tasks.append((task, instead))
        if self._idle >= len(self._tasks) or self._threads == self._most:
            self._changed.notify()
            return
        self._threads += 1
        threads.start(self._name, self._serve)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._tasks or not self._gate.is_open, THREAD_IDLE_S)
                self._idle -= 1
                if not self._tasks:
                    self._threads -= 1
                    return
                task, instead = self._tasks.popleft()
            try:
                task()
            except Exception:
                log.exception("%s failed", self._name)
            del task, instead  # free what they hold before the next wait
