"""A thread that runs tasks one after the other, in the order in which they came.

call     puts the task into the queue, in one step that no signal interrupts, then sees to it
         that there is a thread.  So signal handlers and destructors may call it, wherever they
         have interrupted this thread
a start  of a thread: it enters itself.  Several may be started at once; one enters, and the
         others end
the end  of a thread that has been idle: it leaves first, and then looks for tasks once more.
         A caller adds its task first, and then looks for a thread.  So one sees the other
"""

import logging
import queue
import threading
from collections.abc import Callable

from remotely.machine import threads
from remotely.machine.shield import RLock

log = logging.getLogger("remotely")

LEAVE_AFTER_S = 5.0  # after which the thread ends; the next task starts another


class TaskThread:
    """Runs tasks on a daemon thread, which exists while there are tasks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.forget()

    def forget(self) -> None:
        """In a forked child, which has no such thread: drop the tasks of the parent."""
        self._tasks: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._ident: int | None = None  # of the thread
        self._lock = RLock()

    def call(self, task: Callable[[], object]) -> None:
        """Run a task soon.  Any thread may call this at any moment; if interrupted, repeat it."""
        self._tasks.put(task)
        if self._ident is None:
            try:
                threads.start(self._name, self._run)
            except RuntimeError:  # Python 3.12 starts no thread after the script has ended
                self._run(idle_s=0.0)

    def is_own_thread(self) -> bool:
        """Return whether the caller is one of the tasks."""
        return self._ident == threading.get_ident()

    def finish(self, within_s: float) -> None:
        """Run the tasks that there are, and end the thread; return after `within_s` at the latest.

        A later task starts another thread.
        """
        if self._ident is None and self._tasks.empty():
            return
        done = threading.Event()
        self.call(done.set)
        self._tasks.put(None)
        if not self.is_own_thread():
            done.wait(within_s)

    def _run(self, idle_s: float | None = None) -> None:
        with self._lock:
            if self._ident is not None:
                return
            self._ident = threading.get_ident()
        while True:
            try:
                task = self._tasks.get(timeout=LEAVE_AFTER_S if idle_s is None else idle_s)
            except queue.Empty:
                task = None
            if task is None:
                if self._leaves():
                    return
                continue
            try:
                task()
            except BaseException:  # also an exit of the user's: the other tasks still have to run
                log.exception("%s failed", self._name)
            del task  # free what it holds before the next wait

    def _leaves(self) -> bool:
        with self._lock:
            mine, self._ident = self._ident, None
            if not self._tasks.empty():
                self._ident = mine
                return False
        return True
