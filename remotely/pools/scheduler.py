"""The scheduler of a pool: sends each member its next job when it has replied.

    submit           the job goes to an idle member, on the caller's thread; otherwise it waits
    a reply arrives  the member gets its next jobs first, on the thread that received the reply or,
                     if signals reach that thread, on one of the engine; then the caller gets the
                     reply
    a member is lost (its process has ended, or its machine is gone) its jobs go to other members
                     if they have not run or may be retried; otherwise their callers get the error
    jobs wait        and no member is idle: the recruiter may start more members
    a machine is drained  its members work on until the recruiter has started others; then each ends
                     after the jobs that it has begun, and another gets the next.  One that nobody
                     will replace, as an idle one of an executor, does so at once, unless it is the
                     last
    no jobs          a member that has had no job for a while may be retired.  A job goes to the
                     member that became idle last, so the members that are not needed stay idle

No thread sits between a caller and the members, so a job costs little more than a plain call.

A submitted job is counted and has its place in one step, from which it has an outcome, whatever
interrupts `submit`.  If Ctrl-C comes later than that, a thread of the engine does the rest.

If a member got its next job only after replying to the last one, it would be idle for a round trip
in between, which is longer than a tiny function runs.  So it is sent jobs for the next `AHEAD_S`,
estimated from its pace.  If a job takes longer than that, this is one job.  Near the end, no member
gets more than its share of the remaining jobs.  If a job that others were sent behind takes long
after all, these are taken back: its member is asked not to begin them, and confirms each.  They are
the next to be sent, to other members.

A job with a future among its arguments is assigned once that is done, so that it keeps no member
waiting.

When the script ends, jobs are waited for before the connection is closed, as the standard library
does for its executors, and by the same means: a hook that runs after the main thread has ended, and
before functions of `atexit`.  From then on, jobs are refused.

The recruiter has a thread while the pool wants members, because starting one takes time, and may
have to wait for room; while it may retire members, since they take room from others; and while jobs
are sent ahead, to take them back.  The `Staffing` of a pool decides how many members it has.
"""

import functools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from remotely.api.handle import end, remote_of
from remotely.calling import spare
from remotely.calling.retries import Retries, is_lost
from remotely.engine import Engine, Prepared
from remotely.errors import ActorDied, NotConnected, RemotelyError, in_doubt, not_run
from remotely.futures import callbacks, forked, unfinished, wakeup
from remotely.futures.awaitable import AwaitableFuture
from remotely.futures.future import CallFuture
from remotely.futures.reference import DependencyCallback
from remotely.machine import threads
from remotely.machine.gate import Gate
from remotely.machine.interrupts import is_for_main
from remotely.machine.living import Living
from remotely.machine.shield import RLock, shield
from remotely.objects.marks import Marks
from remotely.protocol.lease import DRAIN_S
from remotely.values.unpicklable import PartNames

AHEAD_S = 0.02
MOST_AHEAD = 64
TAKE_BACK_S = 0.1  # five times as long as a member was expected to take
NO_ROOM_S = 0.5  # while jobs wait and the cluster has no room
_WEIGHT = 0.25  # of the newest call in the mean


class Staffing(Protocol):
    """The number and kind of a pool's members."""

    engine: Engine
    is_immediate: bool  # whether members are in this process, and run jobs within `submit`
    idle_s: float  # time without a job after which a member is retired

    def wants(self, jobs: int, members: int) -> bool:
        """Return whether the pool needs more members.  Called often, so it sends no request."""

    def make(self, jobs: int, members: int) -> Iterable[Any]:
        """Create some members; yield the handle of each when it has started.

        Raises an error if there is no room for another, now or ever.
        """

    def member_lost(self) -> None:
        """Record that a member was lost."""

    def member_leaves(self) -> bool:
        """Record that the machine of a member is being drained; return whether another member may
        take its place."""


class Pace:
    """The pace of one member, which serves `at_a_time` calls at a time."""

    def __init__(self, at_a_time: int = 1) -> None:
        self._at_a_time = at_a_time
        self._mean_s = 0.0  # between two replies; 0 until there is one
        self._answered = 0.0

    def note(self, sent: float, answered: float) -> None:
        """Record the times at which a call was sent and answered."""
        took_s = max(1e-6, answered - max(sent, self._answered))
        self._answered = answered
        self._mean_s += (took_s - self._mean_s) * (_WEIGHT if self._mean_s else 1.0)

    def limit(self, waiting: int, members: int) -> int:
        """Return how many calls it may have, if `waiting` jobs wait for one of `members`."""
        by_time = int(AHEAD_S / self._mean_s) if self._mean_s else 1
        share = -(-waiting // members)
        return max(self._at_a_time, min(by_time, share, MOST_AHEAD))


class Job:
    """One call that any member may run, and its caller's future.

    what      names it in messages
    prepared  sends it to a member: the same bytes each time, since it may wait or be retried
    retries   what is left of its retries, if its outcome is lost
    call      its call to the member that it was sent to
    """

    __slots__ = (
        *("call", "future", "has_begun", "may_have_run", "prepared", "retries", "sent"),
        "what",
    )

    def __init__(self, what: str, marks: Marks) -> None:
        self.what = what
        self.prepared: Prepared
        self.retries = Retries(marks.retries, unrun_are_free=True)
        self.call: CallFuture[Any] | None = None
        self.future: AwaitableFuture[Any] = AwaitableFuture()
        self.future.what = what
        if marks.timeout_s is not None:
            self.future.limit_waits(marks.timeout_s, time.monotonic() + marks.timeout_s)
        self.has_begun = False
        self.sent = 0.0
        self.may_have_run = False  # an attempt whose outcome is lost

    def begin(self) -> bool:
        """Mark it as running; return false if its caller has cancelled it."""
        if not self.has_begun:
            is_running = self.may_have_run and self.future.running()  # since an earlier attempt
            self.has_begun = is_running or self.future.set_running_or_notify_cancel()
        return self.has_begun

    def take_back(self) -> None:
        """Mark it as waiting again: its member has not begun it."""
        self.has_begun = False
        if not self.may_have_run:  # else it must not be cancelled
            self.future.set_waiting()

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Give its caller the outcome.  Call without a lock: this runs the user's callbacks."""
        if error is None:
            self.future.set_result(value)
        elif self.begin():  # else it was cancelled in time
            self.future.set_exception(in_doubt(error) if self.may_have_run else error)


class Member:
    """An actor of a pool, and the jobs that it was sent."""

    def __init__(self, handle: Any, at_a_time: int) -> None:
        self.handle = handle
        self.jobs: dict[Job, None] = {}  # in the order in which they were sent
        self.idle_since = 0.0
        self.answered = 0.0  # when it last replied, or was sent a job while it had none
        self.pace = Pace(at_a_time)
        self.is_gone = False
        self.leaves = False  # its machine is being drained
        self.is_replaced = False  # it leaves, and gets no job any more
        self.successor: Member | None = None  # gets its first job when this one has none left

    def add(self, job: Job) -> None:
        if not self.jobs:
            self.answered = time.monotonic()
        self.jobs[job] = None


class Scheduler:
    """`staffing` decides how many members there are, and creates them."""

    def __init__(self, staffing: Staffing, at_a_time: int = 1) -> None:
        self._process = forked.process
        self._prepare = staffing.engine.prepare
        self._gate = Gate(lambda: RuntimeError("cannot schedule new futures after shutdown"))
        self._waiting: deque[Job] = deque()
        # Those that wait for futures among their arguments, by their own futures.
        self._unready: dict[Future[Any], Job] = {}
        self._members: dict[int, Member] = {}  # oldest first
        self._leaving = 0  # how many of them leave
        self._idle: dict[int, Member] = {}  # with fewer jobs than `at_a_time`, longest idle first
        self._at_a_time = at_a_time
        self._unsettled = 0  # jobs without an outcome
        self._has_ended = False  # no member gets a job any more
        self._takes_back = False  # whether the recruiter's thread looks after jobs sent ahead
        self._ends_when_done = False  # whether members end with the last job
        self._recruiter = Recruiter(self, staffing)
        with _script:
            if _script.is_open:
                _schedulers.add(self)
            else:
                self._gate.close(_script.why)
        unfinished.watch(self)

    # --- members ----------------------------------------------------------------------------------

    @property
    def handles(self) -> list[Any]:
        with self._gate:
            return [m.handle for m in self._members.values() if not m.is_replaced]

    @property
    def read_ahead(self) -> int:
        """How many jobs keep all members busy, and as many again while replies are consumed."""
        with self._gate:
            members = list(self._members.values())
            wanted = sum(member.pace.limit(1_000_000, 1) for member in members)
            return 2 * max(wanted, self._at_a_time)

    def add(self, handles: Iterable[Any]) -> None:
        """Add new members."""
        for handle in handles:
            member = Member(handle, self._at_a_time)
            with self._gate:
                is_late = self._has_ended or not (self._gate.is_open or self._unsettled)
                before = None
                if not is_late:
                    self._members[id(member)] = member
                    members = self._members.values()
                    before = next((m for m in members if m.leaves and not m.is_replaced), None)
            if is_late:
                end((handle,), 0.0)
                continue
            if before is None:
                self._feed(member)
            else:  # no more jobs run at a time than there are members
                before.successor = member
                self._replaced(before)

    def demand(self) -> tuple[int, int]:
        """Return how many jobs could run, and how many members there are that do not leave."""
        with self._gate:
            return self._unsettled - len(self._unready), len(self._members) - self._leaving

    @property
    def has_members(self) -> bool:
        return bool(self._members)

    def replace(self, actors: Collection[str]) -> None:
        """Replace those of these actors that are members: their machines are being drained."""
        with self._gate:
            members = list(self._members.values())
            leaving = [m for m in members if not m.leaves and remote_of(m.handle).actor in actors]
            for member in leaving:
                member.leaves = True
            self._leaving += len(leaving)
        comes = [self._recruiter.member_leaves() for _ in leaving]
        if leaving:
            self._recruiter.check()
        if self.demand()[1] and not all(comes):
            unreplaced = leaving
        elif self._recruiter.idle_s < math.inf:
            unreplaced = [m for m in members if m.leaves and not m.jobs]
        else:
            unreplaced = []
        for member in unreplaced:
            self._replaced(member)

    def _replaced(self, member: Member) -> None:
        """Have a member that leaves end after the jobs that it has begun."""
        with self._gate:
            member.is_replaced = True
            self._idle.pop(id(member), None)
            calls = [job.call for job in member.jobs][self._at_a_time :]
        for call in reversed(calls):
            if call is not None:
                call.cancel_soon()
        self._feed(member)

    def _remove(self, member: Member) -> None:
        """With the lock: forget a member, which gets no job any more."""
        member.is_gone = True
        self._idle.pop(id(member), None)
        if self._members.pop(id(member), None) is not None:
            self._leaving -= member.leaves

    def _remove_all(self) -> list[Member]:
        """With the lock: forget all members; none gets a job any more."""
        self._has_ended = True
        members, self._members = list(self._members.values()), {}
        self._leaving = 0
        self._idle.clear()
        return members

    def retire_idle(self, idle_s: float) -> float | None:
        """Retire members that have had no job for `idle_s`.

        Returns the seconds until others may have had none; None if none can be retired.
        """
        with self._gate:
            since = time.monotonic() - idle_s
            gone = [m for m in self._idle.values() if not m.jobs and m.idle_since <= since]
            for member in gone:
                self._remove(member)
            if not self._members or idle_s == math.inf:
                return None
            idle = [m.idle_since for m in self._idle.values() if not m.jobs]
        return min(idle, default=since + idle_s) - since  # the retired end as `gone` is dropped

    def give_back_idle(self) -> None:
        """Retire all idle members at once, unless idle members are kept."""
        if self._recruiter.idle_s < math.inf:
            self.retire_idle(0.0)

    def take_back(self) -> float | None:
        """Take back the jobs that were sent ahead to members whose current job takes long.

        Returns the seconds until others may have to be taken back; None if none are sent ahead.
        """
        behind: list[CallFuture[Any]] = []
        with self._gate:
            late = time.monotonic() - TAKE_BACK_S
            ahead = [m for m in self._members.values() if len(m.jobs) > self._at_a_time]
            if len(self._members) > 1:
                for member in ahead:
                    if member.answered < late:
                        sent = [job.call for job in member.jobs][self._at_a_time :]
                        behind += [call for call in sent if call is not None]
                        member.answered = math.inf  # until its next reply
            self._takes_back = bool(ahead)
        for call in reversed(behind):  # each goes to the front of those that wait
            call.cancel_soon()
        return TAKE_BACK_S if ahead else None

    def fail_waiting(self, error: BaseException) -> None:
        """Fail the waiting jobs: there is no member, and there will be none.

        None of them has run, even if the call whose error this is may have.  What an earlier
        attempt of one may have done, the job knows.
        """
        error = not_run(error)
        while True:
            with self._gate:
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
        marks: Marks,
        names: PartNames = "",
    ) -> "AwaitableFuture[Any]":
        """Run a method on a member, with these marks.  Raises RuntimeError after `close`."""
        job = Job(_name_of(names) or method, marks)
        try:
            job.prepared = self._prepare(method, args, kwargs, names)
            is_ready = all(need.done() for need in job.prepared.needs)
        except Exception as error:
            if is_for_main(error):
                raise
            job.settle(None, error.with_traceback(None))
            return job.future
        is_counted = False
        member: Member | None = None
        try:
            with shield, self._gate:  # the job is counted, and waits or has its member
                if not self._gate.is_open:
                    raise self._gate.why()
                self._unsettled += 1
                is_counted = True
                if is_ready:
                    member = self._assign(job)
                else:
                    self._unready[job.future] = job
            if is_ready:
                self._begin(job, member)
            else:
                self._await_needs(job)
        except BaseException:
            if is_counted:
                callbacks.off_main(functools.partial(self._resume, job, member))
            raise
        return job.future

    def _resume(self, job: Job, member: Member | None) -> None:
        """Do what an interrupted `submit` has left.  Its caller has no future of the job."""
        if job.future in self._unready:
            self._await_needs(job)
        elif member is None:
            self._recruiter.check()
        elif (call := job.call) is not None:
            call.then(functools.partial(self._answered, member, job))
        else:  # it may have been sent, and then its reply is not received
            self._unsent(member, job, InterruptedError(f"{job.what} was interrupted"))
            self._feed(member)

    def _await_needs(self, job: Job) -> None:
        """Assign a job when the futures among its arguments are done."""
        job.future.then(functools.partial(_count_cancelled, weakref.ref(self)))
        self._check_needs(job)

    def _check_needs(self, job: Job) -> None:
        for need in job.prepared.needs:
            if not need.done():
                need.then(DependencyCallback(lambda _: self._check_needs(job)))
                return
        callbacks.off_main(functools.partial(self._assign_ready, job))

    def _assign_ready(self, job: Job) -> None:
        with self._gate:
            if self._unready.pop(job.future, None) is None:  # it is cancelled
                return
            member = self._assign(job)
        self._begin(job, member)

    def count_cancelled(self, future: Future[Any]) -> None:
        """Count a job down if its caller has cancelled it while it waited for its arguments."""
        with self._gate:
            job = self._unready.pop(future, None)
        if job is not None:
            job.begin()  # notifies `wait` and `as_completed`
            self._job_done()

    def _assign(self, job: Job) -> Member | None:
        """With the lock: assign a job to an idle member; if there is none, it waits."""
        member = self._next_idle()
        if member is None:
            self._waiting.append(job)
        elif job.begin():
            member.add(job)
            self._update_idle(member)
        return member

    def _begin(self, job: Job, member: Member | None) -> None:
        """Send a job to the member that it was assigned to."""
        if member is None:
            self._recruiter.check()
        elif not job.has_begun:  # its caller has cancelled it
            self._job_done()
        elif not self._send(member, job):
            callbacks.off_main(functools.partial(self._feed, member))

    def _feed(self, member: Member) -> None:
        """Send a member waiting jobs, up to its limit."""
        while True:
            with self._gate:
                if member.is_gone or self._has_ended:
                    return
                if member.is_replaced:
                    if member.jobs:
                        return
                    self._remove(member)  # it ends as it is dropped
                    if member.successor is None:
                        return
                    member = member.successor
                    continue
                limit = member.pace.limit(len(self._waiting), len(self._members))
                if not self._waiting or len(member.jobs) >= limit:
                    self._update_idle(member)
                    break
                job = self._waiting.popleft()
                begins = job.begin()
                if begins:
                    member.add(job)
            if begins:
                self._send(member, job)
            else:
                self._job_done()
        if len(member.jobs) > self._at_a_time and not self._takes_back:
            self._takes_back = True
            self._recruiter.look()

    def _update_idle(self, member: Member) -> None:
        """With the lock: move a member to the end of the idle ones if it is idle."""
        self._idle.pop(id(member), None)
        if len(member.jobs) < self._at_a_time:
            member.idle_since = time.monotonic()
            self._idle[id(member)] = member

    def _next_idle(self) -> Member | None:
        """With the lock: return the idle member that gets the next job."""
        if self._at_a_time > 1:  # spread the jobs
            return next(iter(self._idle.values()), None)
        return next(reversed(self._idle.values()), None)

    def _send(self, member: Member, job: Job) -> bool:
        """Send a job to a member; if that fails, give its caller the error and return false."""
        try:
            job.sent = time.monotonic()
            job.call = future = job.prepared.send(remote_of(member.handle))
            future.on_unretrieved = None  # the caller has the job's future
            future.then(functools.partial(self._answered, member, job))
        except Exception as error:  # for example, the cluster is gone
            if is_for_main(error):
                raise
            callbacks.off_main(functools.partial(self._unsent, member, job, error))
            return False
        return True

    def _unsent(self, member: Member, job: Job, error: BaseException) -> None:
        """Give a job that could not be sent its error."""
        with self._gate:
            is_mine = job in member.jobs  # else it was answered already
            member.jobs.pop(job, None)
        if is_mine:
            self._settle(job, None, error)
        if member.is_replaced:
            self._feed(member)

    def _answered(self, member: Member, job: Job, future: CallFuture[Any]) -> None:
        job.call = None
        if job not in member.jobs:  # an interrupted `submit` has had this called twice
            return
        outcome = future.outcome()
        if outcome is None:
            self._taken_back(member, job)
            return
        value, error = outcome
        lost = error if error is not None and is_lost(error) else None
        with self._gate:
            member.jobs.pop(job, None)
            if lost is None:
                member.answered = time.monotonic()
                member.pace.note(job.sent, member.answered)
                if job.may_have_run and not isinstance(error, RemotelyError):
                    job.may_have_run = False  # it has an outcome
        if lost is not None:
            self._lost(member, job, lost)
        else:
            self._feed(member)
            self._settle(job, value, error)

    def _taken_back(self, member: Member, job: Job) -> None:
        """Give a job that its member has not begun to another one."""
        with self._gate:
            member.jobs.pop(job, None)
            job.take_back()
            is_to_run = not self._has_ended
            if is_to_run:
                self._waiting.appendleft(job)
            idle = self._next_idle()
        if not is_to_run:
            self._cancel(job)
        elif idle is not None:
            self._feed(idle)
        if member.is_replaced:
            self._feed(member)
        self._recruiter.check()

    def _lost(self, member: Member, job: Job, error: BaseException) -> None:
        with self._gate:
            is_first = not member.is_gone
            self._remove(member)
            job.may_have_run |= getattr(error, "may_have_run", True)
            is_to_run = not self._has_ended and job.retries.allow(error)
            if is_to_run:
                self._waiting.appendleft(job)
        if is_first:
            self._recruiter.member_lost(error, is_replaced=member.leaves)
            if member.successor is not None:
                self._feed(member.successor)
        if is_to_run:
            with self._gate:
                idle = self._next_idle()
            if idle is not None:
                self._feed(idle)
        else:
            self._settle(job, None, error)
        self._recruiter.check()

    def _settle(self, job: Job, value: Any, error: BaseException | None) -> None:
        try:
            job.settle(value, error)
        finally:
            self._job_done()

    def _job_done(self) -> None:
        """Count down; after the last job, wake `wait`, and end the members if asked to."""
        with self._gate:
            self._unsettled -= 1
            if self._unsettled:
                return
            members = self._remove_all() if (ends := self._ends_when_done) else []
        wakeup.wake(self)
        if ends:
            self._recruiter.stop()
            members.clear()  # they end with their handles, without waiting

    # --- the end ----------------------------------------------------------------------------------

    def close(self, cancel: bool, wait: bool) -> None:
        """Accept no further job.

        cancel  cancel the jobs that were not sent to a member
        wait    return when every job has its outcome, and every member has ended; otherwise the
                members end when the last job has its outcome
        """
        if forked.is_of_parent(self._process):
            return
        cancelled: deque[Job] = deque()
        with shield:  # a job that no longer waits is cancelled and counted down
            with self._gate:
                self._gate.close()
                self._ends_when_done = not wait
                self._unsettled += 1  # so that the members do not end during this function
                if cancel:
                    cancelled, self._waiting = self._waiting, cancelled
                    cancelled.extend(self._unready.values())
                    self._unready.clear()
            for job in cancelled:
                self._cancel(job)
            self._job_done()
        if wait:
            self.wait()
            self.end(DRAIN_S)

    def _cancel(self, job: Job) -> None:
        """Cancel a job that no member has."""
        if job.future.cancel():
            job.begin()  # notifies `wait` and `as_completed`
            self._job_done()
        else:
            self._settle(job, None, job.retries.lost_by)

    def unfinished(self) -> list[str]:
        """Return the names of the jobs without an outcome.  Takes no lock."""
        sent = [job for member in [*self._members.values()] for job in [*member.jobs]]
        return [job.what for job in (*sent, *self._waiting.copy(), *self._unready.copy().values())]

    def finish(self) -> None:
        """When the script has ended: accept no further job, and wait for those that there are."""
        with self._gate:
            self._gate.close(_script.why)
        self.wait()

    def wait(self) -> None:
        """Return when every job has its outcome."""
        if self._unsettled:
            forked.check(self._process, "a call of this pool")
        wakeup.sleep_until(lambda: not self._unsettled, about=self)

    def end(self, grace_s: float) -> None:
        """End the members; with `grace_s` 0, kill them."""
        if forked.is_of_parent(self._process):
            return
        with self._gate:
            self._gate.close()
            members = self._remove_all()
        self._recruiter.stop()
        self._recruiter.join()
        with suppress(NotConnected):  # the cluster, or this process's connection to it, has ended
            end([member.handle for member in members], grace_s)


def _count_cancelled(scheduler: "weakref.ref[Scheduler]", future: Future[Any]) -> None:
    """Do as `Scheduler.count_cancelled`; the future of a job keeps no pool."""
    if (found := scheduler()) is not None:
        found.count_cancelled(future)


def _name_of(names: PartNames) -> str:
    while not isinstance(names, str):
        names = names[0]
    return names


_schedulers: "Living[Scheduler]" = Living()
_script = Gate(lambda: RuntimeError("cannot schedule new futures after interpreter shutdown"))
os.register_at_fork(after_in_child=_script.forget)


def _finish_jobs() -> None:
    """When the script has ended: wait for all jobs.  Ctrl-C ends the wait."""
    with _script:
        _script.close()
    for scheduler in _schedulers.all():
        scheduler.finish()


def give_back_idle() -> None:
    """End the idle processes of all executors, since somebody waits for room.  Thread-safe."""
    for scheduler in _schedulers.all():
        scheduler.give_back_idle()


def replace(actors: Collection[str]) -> None:
    """Replace those of these actors that are members of pools.  Thread-safe."""
    for scheduler in _schedulers.all():
        scheduler.replace(actors)


spare.givers.append(give_back_idle)
spare.replacers.append(replace)
with suppress(RuntimeError):  # the script has ended already
    threading._register_atexit(_finish_jobs)  # type: ignore[attr-defined]


class Recruiter:
    """Starts members: at the beginning, to replace lost ones, and when there is room."""

    def __init__(self, scheduler: Scheduler, staffing: Staffing) -> None:
        self._scheduler = scheduler
        self._staffing = staffing
        self._lock = RLock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._why: BaseException = ActorDied("the pool has no member", may_have_run=False)

    def member_lost(self, error: BaseException, is_replaced: bool) -> None:
        self._why = error
        if not is_replaced:
            self._staffing.member_lost()

    def member_leaves(self) -> bool:
        return self._staffing.member_leaves()

    @property
    def idle_s(self) -> float:
        """The time without a job after which a member is retired."""
        return self._staffing.idle_s

    def look(self) -> None:
        """Have the thread look after the members.  Never blocks, and any thread may call this."""
        if not self._staffing.is_immediate:
            self._begin_thread()

    def check(self) -> None:
        """Start members if they are needed.  Never blocks, and any thread may call this."""
        jobs, members = self._scheduler.demand()
        if not self._staffing.wants(jobs, members):
            has_none = not members and not self._scheduler.has_members
            if jobs and has_none and self._thread is None:  # else one may be starting
                self._fail_waiting(self._why)
        elif self._staffing.is_immediate:
            self._scheduler.add(self._staffing.make(jobs, members))
        elif (error := self._begin_thread()) is not None:
            self._fail_waiting(error)

    def stop(self) -> None:
        """Start no more members; one that is starting is ended when it has started."""
        with shield:
            self._stopped.set()
            self._wake.set()

    def join(self) -> None:
        """Wait up to NO_ROOM_S for the thread to end, which may be starting a member."""
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(NO_ROOM_S)

    def _fail_waiting(self, error: BaseException) -> None:
        callbacks.off_main(functools.partial(self._scheduler.fail_waiting, error))

    def _begin_thread(self) -> Exception | None:
        """Start the thread, or wake it; return the error if no further thread can be started."""
        with shield, self._lock:  # an interrupted `set` leaves the lock of its event held
            if self._thread is not None or self._stopped.is_set():
                self._wake.set()
                return None
            try:
                threads.start("recruiter", self._run)
            except RuntimeError as error:
                return error
        return None

    def _run(self) -> None:
        with self._lock:
            if self._thread is not None:  # several were started at once
                return
            self._thread = threading.current_thread()
        continues = True
        while continues and not self._stopped.is_set():
            self._wake.clear()
            jobs, members = self._scheduler.demand()
            if self._staffing.wants(jobs, members):
                self._start_members(jobs, members)
            else:
                continues = self._rest()
        self._thread = None
        if not continues:
            self.check()  # calls of `check` and `look` meanwhile have left it to this thread
            if self._wake.is_set():
                self.look()

    def _start_members(self, jobs: int, members: int) -> None:
        try:
            self._scheduler.add(self._staffing.make(jobs, members))
        except Exception as error:  # no room, a constructor raised, or this process is shut down
            error.with_traceback(None)  # its frames keep members, and with them their processes
            if not self._scheduler.has_members:
                self._scheduler.fail_waiting(error)
            self._stopped.wait(NO_ROOM_S)

    def _rest(self) -> bool:
        """Wait until there may be work; return false if there is nothing to wait for."""
        pauses_s = self._scheduler.retire_idle(self.idle_s), self._scheduler.take_back()
        wanted_s = [pause_s for pause_s in pauses_s if pause_s is not None]
        if wanted_s:
            self._wake.wait(min(wanted_s))
        return bool(wanted_s)
