"""The scheduler of a pool: gives jobs to its members, each its next one when it has answered.

    a job comes      to an idle member, on the thread of the caller; else it waits
    an answer comes  its member gets the next jobs first, on the thread that received the answer;
                     then the caller gets the answer
    a member is lost (its process has ended, or its machine is gone) its jobs go to other members
                     if they have not run, or may be repeated; else their callers get the error
    jobs wait        and nobody is idle: the recruiter may find more members
    nothing to do    a member may be let go of, if it has had no job for a while.  So that this
                     happens to those that are not needed, a job goes to the one that had the last

There is no thread of its own between a caller and the members, so a job costs little more than the
call that it is.  Jobs are sent without the lock, since a job that cannot be sent runs the callbacks
of its caller.

A member that gets its next job only when it has answered the last one is idle for a round trip in
between, which is longer than a tiny function runs.  So it is sent work for the next `AHEAD_S`,
which it is found to take by its own pace.  That is one job if a job is longer; no job waits behind
a long one while another member is idle.  Near the end nobody takes more than its share of what is
left.

The recruiter has a thread while the pool wants members, because a new one takes a while, and may
have to wait for room; and while there are members that it may let go of, since they take room from
others.  How many a pool is to have is for its `Staffing` to say.
"""

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from remotely.api.handle import end, remote_of
from remotely.engine import Engine, Prepared
from remotely.errors import ActorDied, NotConnected, WorkerLost
from remotely.machine.shield import Condition, RLock, shield
from remotely.protocol.lease import DRAIN_S
from remotely.values import raised_error
from remotely.values.unpicklable import PartNames

AHEAD_S = 0.02
MOST_AHEAD = 64
LOOK_AGAIN_S = 0.5  # while jobs wait and the cluster has no room
_WEIGHT = 0.25  # of the newest call in the mean


class Staffing(Protocol):
    """The staffing of a pool: how many members it has, of which kind."""

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


class Pace:
    """The pace of one member, which serves `at_a_time` calls at a time."""

    def __init__(self, at_a_time: int = 1) -> None:
        self._at_a_time = at_a_time
        self._mean_s = 0.0  # between two answers; 0 until there is one
        self._answered = 0.0

    def note(self, sent: float, answered: float) -> None:
        """Take in that a call sent at one moment was answered at another."""
        took_s = max(1e-6, answered - max(sent, self._answered))
        self._answered = answered
        self._mean_s += (took_s - self._mean_s) * (_WEIGHT if self._mean_s else 1.0)

    def most(self, waiting: int, members: int) -> int:
        """Return how many calls it may have, where so many wait for one of so many members."""
        by_time = int(AHEAD_S / self._mean_s) if self._mean_s else 1
        share = -(-waiting // members)
        return max(self._at_a_time, min(by_time, share, MOST_AHEAD))


class Job:
    """One call that any member may run, and the future that its caller has of it.

    send     sends it to a member: the same bytes each time, as it may wait, and be sent again
    retries  how often it may be repeated if its outcome is lost
    """

    __slots__ = ("future", "has_begun", "lost", "retries", "send", "sent")

    def __init__(self, retries: int) -> None:
        self.send: Prepared
        self.retries = retries
        self.future: Future[Any] = Future()
        self.has_begun = False
        self.sent = 0.0
        self.lost: BaseException | None = None  # the error of an earlier try

    def begin(self) -> bool:
        """Return whether it is to run: false if its caller has cancelled it."""
        if not self.has_begun:
            self.has_begun = self.future.set_running_or_notify_cancel()
        return self.has_begun

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Give its caller the outcome.  Hold no lock: this runs the user's callbacks."""
        if error is None:
            self.future.set_result(value)
        elif self.begin():  # else it was cancelled in time
            self.future.set_exception(error)


class Member:
    """An actor of a pool, and the jobs that it was sent."""

    def __init__(self, handle: Any, at_a_time: int) -> None:
        self.handle = handle
        self.jobs: set[Job] = set()
        self.idle_since = 0.0
        self.pace = Pace(at_a_time)
        self.is_gone = False


class Scheduler:
    """`staffing` says how many members there are to be, and makes them."""

    def __init__(self, staffing: Staffing, at_a_time: int = 1) -> None:
        self._prepare = staffing.engine.prepare
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._waiting: deque[Job] = deque()
        self._members: dict[int, Member] = {}  # in the order in which they came
        self._idle: dict[int, Member] = {}  # that serve fewer than they could
        self._at_a_time = at_a_time
        self._unsettled = 0  # jobs
        self._is_closed = False
        self._has_ended = False
        self._ends_alone = False  # when the last job has its outcome
        self._recruiter = Recruiter(self, staffing)

    # --- members ----------------------------------------------------------------------------------

    @property
    def handles(self) -> list[Any]:
        with self._lock:
            return [member.handle for member in self._members.values()]

    @property
    def appetite(self) -> int:
        """How many jobs keep all members busy, with as many again for the answers to be read."""
        with self._lock:
            members = list(self._members.values())
            wanted = sum(member.pace.most(1_000_000, 1) for member in members)
            return 2 * max(wanted, self._at_a_time)

    def add(self, handles: Iterable[Any]) -> None:
        """Take in new members."""
        for handle in handles:
            member = Member(handle, self._at_a_time)
            with self._lock:
                is_late = self._has_ended or (self._is_closed and not self._unsettled)
                if not is_late:
                    self._members[id(member)] = member
            if is_late:
                end((handle,), 0.0)
            else:
                self._feed(member)

    def demand(self) -> tuple[int, int]:
        """Return how many jobs and members there are."""
        with self._lock:
            return self._unsettled, len(self._members)

    def let_go(self, idle_s: float) -> float | None:
        """Let members end that have had no job for so long.

        Returns after how many seconds others may have had none; None if no member will.
        """
        with self._lock:
            since = time.monotonic() - idle_s
            gone = [m for m in self._idle.values() if not m.jobs and m.idle_since <= since]
            for member in gone:
                member.is_gone = True
                del self._members[id(member)], self._idle[id(member)]
            if not self._members or idle_s == math.inf:
                return None
            idle = [m.idle_since for m in self._idle.values() if not m.jobs]
        return min(idle, default=since + idle_s) - since  # those that are gone end here

    def fail_waiting(self, error: BaseException) -> None:
        """There is no member, and there will be none."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            self._settle(job, None, error)

    # --- jobs -------------------------------------------------------------------------------------

    def submit(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retries: int,
        names: PartNames = "",
    ) -> "Future[Any]":
        """Have a method of a member run.  Raises RuntimeError after `close`.

        It is repeated, at most `retries` times, if its outcome is lost.
        """
        job = Job(retries)
        try:
            job.send = self._prepare(method, args, kwargs, names)
        except Exception as error:
            job.settle(None, error.with_traceback(None))
            return job.future
        with shield, self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if (member := self._next_idle()) is not None:
                job.begin()
                member.jobs.add(job)
                self._note_idle(member)
            else:
                self._waiting.append(job)
            self._unsettled += 1
        if member is None:
            self._recruiter.look()
        elif not self._send(member, job):
            self._feed(member)
        return job.future

    def _feed(self, member: Member) -> None:
        """Send a member the jobs that it has room for."""
        while True:
            with self._lock:
                if member.is_gone or self._has_ended:
                    return
                most = member.pace.most(len(self._waiting), len(self._members))
                if not self._waiting or len(member.jobs) >= most:
                    self._note_idle(member)
                    return
                job = self._waiting.popleft()
                begins = job.begin()
                if begins:
                    member.jobs.add(job)
            if begins:
                self._send(member, job)
            else:
                self._forget()

    def _note_idle(self, member: Member) -> None:
        """With the lock: see whether a member is idle.  Those that were idle longest come first."""
        self._idle.pop(id(member), None)
        if len(member.jobs) < self._at_a_time:
            member.idle_since = time.monotonic()
            self._idle[id(member)] = member

    def _next_idle(self) -> Member | None:
        """With the lock: return the idle member that gets the next job."""
        if self._at_a_time > 1:  # spread
            return next(iter(self._idle.values()), None)
        return next(reversed(self._idle.values()), None)

    def _send(self, member: Member, job: Job) -> bool:
        """Send a job to a member; false if that cannot be done, as its caller is told."""
        job.sent = time.monotonic()
        try:
            future = job.send(remote_of(member.handle))
            future.add_done_callback(functools.partial(self._answered, member, job))
        except BaseException as error:  # the cluster is gone, or Ctrl-C
            with self._lock:
                member.jobs.discard(job)
            self._settle(job, None, error)
            if not isinstance(error, Exception):
                raise
            return False
        return True

    def _answered(self, member: Member, job: Job, future: Future[Any]) -> None:
        error = future.exception()
        is_lost = isinstance(error, ActorDied | WorkerLost) and not raised_error.was_raised(error)
        with self._lock:
            member.jobs.discard(job)
            if not is_lost:
                member.pace.note(job.sent, time.monotonic())
        if is_lost:
            assert error is not None
            self._lost(member, job, error)
        else:
            self._feed(member)
            self._settle(job, None if error else future.result(), error)

    def _lost(self, member: Member, job: Job, error: BaseException) -> None:
        may_have_run = getattr(error, "may_have_run", True)
        with self._lock:
            is_news = not member.is_gone
            member.is_gone = True
            self._members.pop(id(member), None)
            self._idle.pop(id(member), None)
            is_to_run = not self._has_ended and (job.retries > 0 or not may_have_run)
            if is_to_run:
                job.lost = error
                job.retries -= may_have_run
                self._waiting.appendleft(job)
        if is_news:
            self._recruiter.hear_of_loss(error)
        if is_to_run:
            self._feed_idle()
        else:
            self._settle(job, None, error)
        self._recruiter.look()

    def _feed_idle(self) -> None:
        """A job waits again: somebody may be idle."""
        with self._lock:
            member = self._next_idle()
        if member is not None:
            self._feed(member)

    def _settle(self, job: Job, value: Any, error: BaseException | None) -> None:
        try:
            job.settle(value, error)
        finally:
            self._forget()

    def _forget(self) -> None:
        """A job is done with."""
        with self._changed:
            self._unsettled -= 1
            if self._unsettled:
                return
            self._changed.notify_all()
            if not self._ends_alone:
                return
            self._has_ended = True
            members, self._members = self._members, {}
            self._idle.clear()
        self._recruiter.stop()
        members.clear()  # they end when their handles are gone, and nobody waits for that

    # --- the end ----------------------------------------------------------------------------------

    def close(self, cancel: bool, wait: bool) -> None:
        """Take no further job.

        cancel  cancels the jobs that no member was sent
        wait    return when every job has its outcome, and every member has ended; else the
                members end when the last job has its outcome
        """
        cancelled: deque[Job] = deque()
        with self._changed:
            self._is_closed = True
            self._ends_alone = not wait
            self._unsettled += 1  # for as long as we are here
            if cancel:
                cancelled, self._waiting = self._waiting, cancelled
        for job in cancelled:
            if job.future.cancel():
                job.begin()  # tells `wait` and `as_completed`
                self._forget()
            else:
                self._settle(job, None, job.lost)
        self._forget()
        if wait:
            self.wait()
            self.end(DRAIN_S)

    @property
    def is_busy(self) -> bool:
        """Whether a job has no outcome yet."""
        return self._unsettled > 0

    def wait(self) -> None:
        """Return when every job has its outcome."""
        with self._changed:
            while self._unsettled:
                self._changed.wait()

    def end(self, grace_s: float) -> None:
        """End the members; without grace, at once, whatever they are doing."""
        with self._lock:
            self._is_closed = self._has_ended = True
            members, self._members = list(self._members.values()), {}
            self._idle.clear()
        self._recruiter.stop()
        self._recruiter.join()
        with suppress(NotConnected):  # the cluster, or this process's part of it, has ended
            end([member.handle for member in members], grace_s)


class Recruiter:
    """Finds members: at the beginning, for those that were lost, and when there is room."""

    def __init__(self, scheduler: Scheduler, staffing: Staffing) -> None:
        self._scheduler = scheduler
        self._staffing = staffing
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
        jobs, members = self._scheduler.demand()
        if not self._staffing.wants(jobs, members):
            if jobs and not members and self._thread is None:  # else one may be in the making
                self._scheduler.fail_waiting(self._why)
        elif self._staffing.is_immediate:
            self._scheduler.add(self._staffing.make(jobs, members))
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
        self._scheduler.fail_waiting(failure)

    def _run(self) -> None:
        goes_on = True
        while goes_on and not self._stopped.is_set():
            self._looked.clear()
            jobs, members = self._scheduler.demand()
            if self._staffing.wants(jobs, members):
                self._find(jobs, members)
            else:
                goes_on = self._rest()
        self._thread = None
        if not goes_on:
            self.look()  # whoever has looked meanwhile has left it to us

    def _find(self, jobs: int, members: int) -> None:
        try:
            self._scheduler.add(self._staffing.make(jobs, members))
        except Exception as error:  # there is no room, a constructor raised, we are shut down
            if not self._scheduler.demand()[1]:
                self._scheduler.fail_waiting(error.with_traceback(None))
            self._stopped.wait(LOOK_AGAIN_S)

    def _rest(self) -> bool:
        """Wait until there may be something to do; false if there is nothing to wait for."""
        pause_s = self._scheduler.let_go(self._staffing.idle_s)
        if pause_s is not None:
            self._looked.wait(pause_s)
        return pause_s is not None
