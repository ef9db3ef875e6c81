"""Finds members for a pool: at its beginning, for those that were lost, and when there is room.

It has a thread while the pool wants members, because a new one takes a while, and may have to wait
for room; and while there are members that it may let go of, since they take room from others.  How
many a pool is to have is for its `Staffing` to say.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from remotely.engine import Engine
from remotely.errors import ActorDied
from remotely.machine.shield import RLock

LOOK_AGAIN_S = 0.5  # while jobs wait and the cluster has no room


class Staffing(Protocol):
    """How many members a pool has, of which kind."""

    engine: Engine  # that of the pool, until its end
    is_immediate: bool  # members are made in this process, and run their jobs at once
    idle_s: float  # how long a member has nothing to do before it is let go of

    def wants(self, jobs: int, members: int) -> bool:
        """Tell whether it would have more members.  Asked often: this asks nobody else."""

    def make(self, jobs: int, members: int) -> Iterable[Any]:
        """Make some of them; yield the handle of each when it is there.

        Raises an error if there is no room for another now, or never.
        """

    def hear_of_loss(self) -> None:
        """A member was lost."""


class Recruiter:
    """`demand` returns how many jobs and members there are; `give_up` fails the jobs.

    `let_go` ends the members that have been idle for so long, and returns after how long others may
    have been; None if no member is left.
    """

    def __init__(
        self,
        staffing: Staffing,
        demand: Callable[[], tuple[int, int]],
        add: Callable[[Iterable[Any]], None],
        let_go: Callable[[float], float | None],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self._staffing = staffing
        self._demand = demand
        self._add = add
        self._let_go = let_go
        self._give_up = give_up
        self._lock = RLock()
        self._thread: threading.Thread | None = None
        self._looked = threading.Event()
        self._stopped = threading.Event()
        self._why: BaseException = ActorDied("the pool has no member", may_have_run=False)

    def hear_of_loss(self, error: BaseException) -> None:
        self._why = error
        self._staffing.hear_of_loss()

    def look(self) -> None:
        """There may be something to do.  Never waits, and any thread may call this."""
        jobs, members = self._demand()
        if not self._staffing.wants(jobs, members):
            if jobs and not members and self._thread is None:  # else one may be in the making
                self._give_up(self._why)
        elif self._staffing.is_immediate:
            self._add(self._staffing.make(jobs, members))
        else:
            self._begin()

    def stop(self) -> None:
        """Find no more; a member that is being made is ended when it is there."""
        self._stopped.set()
        self._looked.set()

    def join(self) -> None:
        """Wait a moment for the thread to end, which may be making a member."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(LOOK_AGAIN_S)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopped.is_set():
                self._looked.set()
                return
            name = "remotely-recruiter"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                self._thread.start()
                return
            except RuntimeError as error:  # no further thread can be started
                self._thread, failure = None, error
        self._give_up(failure)

    def _run(self) -> None:
        goes_on = True
        while goes_on and not self._stopped.is_set():
            self._looked.clear()
            jobs, members = self._demand()
            if self._staffing.wants(jobs, members):
                self._find(jobs, members)
            else:
                goes_on = self._rest()
        self._thread = None
        if not goes_on:
            self.look()  # whoever has looked meanwhile has left it to us

    def _find(self, jobs: int, members: int) -> None:
        try:
            self._add(self._staffing.make(jobs, members))
        except Exception as error:  # there is no room, a constructor raised, we are shut down
            if not self._demand()[1]:
                self._give_up(error.with_traceback(None))
            self._stopped.wait(LOOK_AGAIN_S)

    def _rest(self) -> bool:
        """Wait until there may be something to do; false if there is nothing to wait for."""
        pause_s = self._let_go(self._staffing.idle_s)
        if pause_s is not None:
            self._looked.wait(pause_s)
        return pause_s is not None
