"""Finds members for a pool: at its beginning, for those that were lost, and when there is room.

It has a thread only while the pool wants members, because a new one takes a while, and may have to
wait for room.  How many a pool is to have is for its `Staffing` to say.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from remotely.engine import Engine
from remotely.errors import ActorDied

LOOK_AGAIN_S = 0.5  # while jobs wait and the cluster has no room


class Staffing(Protocol):
    """How many members a pool has, of which kind."""

    engine: Engine  # that of the pool, until its end
    is_immediate: bool  # members are made in this process, and run their jobs at once

    def wants(self, jobs: int, members: int) -> bool:
        """Tell whether it would have more members.  Asked often: this asks nobody else."""

    def room(self, jobs: int, members: int) -> int:
        """Return how many there is room for now."""

    def make(self, count: int) -> Iterable[Any]:
        """Make so many; yield the handle of each when it is there."""

    def hear_of_loss(self) -> None:
        """A member was lost."""


class Recruiter:
    """`demand` returns how many jobs and members there are; `give_up` fails the jobs."""

    def __init__(
        self,
        staffing: Staffing,
        demand: Callable[[], tuple[int, int]],
        add: Callable[[Iterable[Any]], None],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._staffing = staffing
        self._demand = demand
        self._add = add
        self._give_up = give_up
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._why: BaseException = ActorDied("the pool has no member", may_have_run=False)

    def hear_of_loss(self, error: BaseException) -> None:
        self._why = error
        self._staffing.hear_of_loss()

    def look(self) -> None:
        """There may be something to do.  Never waits, and any thread may call this."""
        jobs, members = self._demand()
        if not self._staffing.wants(jobs, members):
            if jobs and not members:
                self._give_up(self._why)
        elif self._staffing.is_immediate:
            self._add(self._staffing.make(1))
        else:
            self._begin()

    def stop(self) -> None:
        """Find no more; a member that is being made is ended when it is there."""
        self._stopped.set()
        if (thread := self._thread) is not None and thread is not threading.current_thread():
            thread.join(LOOK_AGAIN_S)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set():
                return
            thread = threading.Thread(target=self._run, name="remotely-recruiter", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no further thread can be started
                failure = error
            else:
                self._thread = thread
                return
        self._give_up(failure)

    def _run(self) -> None:
        while self._goes_on():
            jobs, members = self._demand()
            try:
                if count := self._staffing.room(jobs, members):
                    self._add(self._staffing.make(count))
                    continue
            except Exception as error:  # there is no room, a constructor raised, we are shut down
                if not self._demand()[1]:
                    self._give_up(error.with_traceback(None))
            self._stopped.wait(LOOK_AGAIN_S)

    def _goes_on(self) -> bool:
        with self._lock:
            goes_on = not self._stopped.is_set() and self._staffing.wants(*self._demand())
            if not goes_on:
                self._thread = None
            return goes_on
