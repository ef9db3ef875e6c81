"""The pool: actors of one class that share out the items of an iterable.

Unlike a group, whose members all get the same call, each member of a pool gets its next item when
it has replied, so a slow member does not hold up the others.  Tiny items are sent ahead
(scheduler.py).  An iterator of results holds a limited number of items, so the iterable may be
endless, and the consumer slow.

The iterable is read on a thread of its own, since it may block: on a file, on a queue that the
consumer fills from these results, or forever.

    the reader              reads an item while fewer than `read_ahead` results wait to be consumed
    the consumer            takes results in the order of the items, or as they complete
    the iterable ends       or raises: the consumer sees this after the results of all items
    the consumer stops      calls that have not begun are cancelled, and the reader ends at its next
                            item, since it cannot be interrupted within the iterable
"""

import contextvars
import functools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

import msgspec

from remotely import arguments
from remotely.api import connection
from remotely.api.group import Group
from remotely.api.handle import MISSING, member_of, result_of
from remotely.api.remote_class import as_placeable, check_several, make_on
from remotely.engine import Engine
from remotely.errors import CallTimeout, MasterLost, NoResources
from remotely.futures import forked
from remotely.futures.awaitable import AwaitableFuture, give_up
from remotely.futures.future import wait_for
from remotely.machine import threads
from remotely.machine.gate import Gate
from remotely.machine.shield import Condition, RLock
from remotely.objects.marks import Marks, marks_of
from remotely.objects.members import is_method
from remotely.pools.scheduler import Scheduler, Staffing
from remotely.protocol.restart_limit import RestartLimit
from remotely.values.unpicklable import NotToBePickled

A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Progress(Protocol):
    """Wraps an iterable and shows its progress: `tqdm.tqdm`, `rich.progress.track`."""

    def __call__(self, iterable: Iterable[Any], /, *, total: int | None) -> Iterable[Any]: ...


class Pool(Generic[A]):
    """`count` actors of one class: `Pool(Actor, 8, *args)`, or of `options(Actor, cpus=2)`.

    A member that died is replaced by one created from the same arguments, `max_restarts` times in
    ten minutes for each member.  Its calls raise ActorDied or WorkerLost, unless the method is
    marked `@remotely.idempotent`: then another member runs them.  If the machine of a member is
    drained, this costs no restart and no call: the member is replaced once another machine has
    room, or without `max_restarts` gets no further calls.

    Raises ValueError if `count` is 0, NoResources if there is no room for all members.
    """

    def __init__(
        self, cls: Callable[P, A], count: int, /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        placeable = as_placeable(cls)
        arguments.whole_number("count", count, 1)
        check_several(placeable.options, count)
        self._class: type = placeable.cls  # type: ignore[assignment]
        limit = placeable.options.max_restarts
        options = msgspec.structs.replace(placeable.options, max_restarts=0, wait=True)
        engine = connection.current()
        self._is_immediate = not engine.cluster  # calls run within `submit`
        members = make_on(engine, self._class, args, kwargs, options, count)
        if limit:  # so that replacements get the arguments as they are now
            args = engine.put(args)
            kwargs = {name: engine.put(value) for name, value in kwargs.items()}  # type: ignore[assignment]
        place = functools.partial(make_on, engine, self._class, args, kwargs, options)
        staffing = _FixedSize(engine, count, limit * count, place)
        self._scheduler = Scheduler(staffing, options.concurrency)
        self._scheduler.add(members)

    @property
    def actors(self) -> Group[A]:
        """The live members, as a group; a replacement has no state from earlier calls."""
        return Group(self._scheduler.handles)

    def submit(
        self,
        method: Callable[Concatenate[A, P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AwaitableFuture[R]:
        """Run a method on the next idle member: `pool.submit(Actor.play, 3)`."""
        name, marks = self._named(method)
        return self._scheduler.submit(name, args, kwargs, marks)

    def map(
        self,
        method: Callable[[A, T], R],
        items: Iterable[T],
        *,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> list[R]:
        """Return the result of a method for each item, in order: `pool.map(Actor.play, items)`.

        return_exceptions  return an item's error in place of its result; else the first is raised
        progress           shows the progress: `tqdm.tqdm`, `rich.progress.track`
        """
        return list(
            self.imap(method, items, return_exceptions=return_exceptions, progress=progress)
        )

    def starmap(
        self,
        method: Callable[..., R],
        items: Iterable[Iterable[Any]],
        *,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> list[R]:
        """Like `map`, with the arguments of each call as one item: `[(1, 2), (3, 4)]`."""
        results = self._results(method, map(tuple, items), return_exceptions)
        return list(_with_progress(results, items, progress))

    def imap(
        self,
        method: Callable[[A, T], R],
        items: Iterable[T],
        *,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[R]:
        """Like `map`, but yield each result as soon as it and those before it are available.

        It reads an endless iterable as fast as you consume results.  The items are read on a thread
        of their own, so the iterable may wait for what you do with results.
        """
        results = self._results(method, ((item,) for item in items), return_exceptions)
        return iter(_with_progress(results, items, progress))

    def imap_unordered(
        self,
        method: Callable[[A, T], R],
        items: Iterable[T],
        *,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[R]:
        """Like `imap`, but yield results in the order in which they complete."""
        calls = ((item,) for item in items)
        results = self._results(method, calls, return_exceptions, in_order=False)
        return iter(_with_progress(results, items, progress))

    def close(self) -> None:
        """End the members once all submitted calls have run.  Closing again does nothing."""
        self._scheduler.close(cancel=False, wait=True)

    def __len__(self) -> int:
        return len(self._scheduler.handles)

    def __enter__(self) -> "Pool[A]":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the pool; after an error, without waiting for pending calls."""
        if kind is None:
            self.close()
        else:
            self._scheduler.close(cancel=True, wait=False)
            self._scheduler.end(0.0)

    def __del__(self) -> None:
        if hasattr(self, "_scheduler"):
            self._scheduler.close(cancel=False, wait=False)

    def __reduce__(self) -> NoReturn:
        why = "is a Pool, and cannot be sent: pass its actors (pool.actors), or make one there"
        raise NotToBePickled(self, why)

    def __repr__(self) -> str:
        return f"<pool of {len(self)} {self._class.__name__}>"

    def _named(self, method: Callable[..., Any]) -> tuple[str, Marks]:
        """Return the name and the marks of a method of the pool's class.  Raises TypeError."""
        name = getattr(method, "__name__", "")
        member = MISSING if name.startswith("<") else member_of(self._class, name)
        if member is MISSING or not is_method(member):
            of = self._class.__name__
            raise TypeError(
                f"{method!r} is not a method of {of}: a pool runs methods of its class, as in "
                f"pool.map({of}.method, items); remotely.Executor runs functions"
            )
        return name, marks_of(member)

    def _results(
        self,
        method: Callable[..., R],
        items: Iterable[tuple[Any, ...]],
        return_exceptions: bool,
        in_order: bool = True,
    ) -> Iterator[R]:
        (name, marks), submit = self._named(method), self._scheduler.submit
        calls = (submit(name, args, {}, marks) for args in items)  # must not refer to the pool
        if self._is_immediate:
            return map(functools.partial(outcome, return_exceptions=return_exceptions), calls)
        reading = Reading(calls, self._scheduler, in_order, marks.timeout_s)
        return reading.results(return_exceptions, keep=self)


class _FixedSize(Staffing):
    """A fixed number of members; at most `limit` lost ones are replaced in ten minutes."""

    is_immediate = False
    idle_s = math.inf

    def __init__(
        self, engine: Engine, count: int, limit: int, place: Callable[[int], list[Any]]
    ) -> None:
        self.engine = engine
        self._count = count
        self._limit = limit
        self._place = place
        self._restarts = RestartLimit()
        self._replacements = 0
        self._moves = 0  # those of them whose members live, on drained machines
        self._lock = RLock()

    def wants(self, jobs: int, members: int) -> bool:
        return members < self._count and self._replacements > 0

    def make(self, jobs: int, members: int) -> list[Any]:
        count = min(self._count - members, self._replacements)
        if self._moves:  # one by one, since there may not be room for all, and nobody waits
            count = 1
        try:
            made = self._place(count)
        except (NoResources, MasterLost):  # tried again, since there may be room later
            raise
        except BaseException:  # of the constructor
            self._use(count)
            raise
        self._use(count)
        return made

    def _use(self, count: int) -> None:
        with self._lock:
            self._replacements -= count
            self._moves = max(0, self._moves - count)

    def member_leaves(self) -> bool:
        if self._limit:
            with self._lock:
                self._replacements += 1
                self._moves += 1
        return bool(self._limit)

    def member_lost(self) -> None:
        with self._lock:
            self._replacements += self._restarts.allow(self._limit, time.monotonic())


def _with_progress(
    results: Iterator[R], items: Iterable[Any], progress: Progress | None
) -> Iterable[R]:
    if progress is None:
        return results
    total = len(items) if isinstance(items, Sized) else None
    return progress(results, total=total)


class Reading:
    """The reader of an iterable.  Each step of `calls` submits one call to the scheduler."""

    def __init__(
        self,
        calls: Iterator[AwaitableFuture[Any]],
        scheduler: Scheduler,
        in_order: bool,
        timeout_s: float | None,
    ) -> None:
        self._process = forked.process
        self._calls = calls
        self._scheduler = scheduler
        self._in_order = in_order
        self._timeout_s = timeout_s  # of each call
        # With a reentrant lock, since garbage collection may run `_stop` on any thread.
        self._gate = Gate()
        self._changed = Condition(self._gate)
        self._pending: set[AwaitableFuture[Any]] = set()  # submitted, not consumed
        self._error: BaseException | None = None  # raised by the iterable
        # The calls in the order in which to consume them, done or not; None after the last.
        self._to_take: queue.SimpleQueue[AwaitableFuture[Any] | None] = queue.SimpleQueue()
        self._next: AwaitableFuture[Any] | None = None
        self._has_ended = False  # whether None was taken
        self._thread = threads.start("reader", contextvars.copy_context().run, self._read)

    def results(self, return_exceptions: bool, keep: object) -> Iterator[Any]:
        """Return an iterator that stops the reader when it is dropped; it keeps `keep` alive."""
        results = self._results(return_exceptions, keep)
        next(results)  # enters the `try`, so that its `finally` runs even if no result is taken
        return results

    def _results(self, return_exceptions: bool, keep: object) -> Iterator[Any]:
        try:
            yield None
            while self._has_next():
                yield self._take(return_exceptions)
            self._thread.join()
            if (error := self._error) is not None:
                try:
                    raise error
                finally:
                    del error
        finally:
            self._stop()

    def _has_next(self) -> bool:
        """Wait for the next call to consume; return false if there is none."""
        while self._pending or not self._has_ended:
            call = self._await_call()
            if call is None:
                self._has_ended = True
            elif call in self._pending:  # else it was late, and taken then
                self._next = call
                return True
        return False

    def _await_call(self) -> AwaitableFuture[Any] | None:
        """Wait for the next call to consume, or until one is late; return None after the last."""
        while True:
            if self._to_take.empty():
                forked.check(self._process, "a call of this pool")
            if self._timeout_s is None:
                return self._to_take.get()
            with self._changed:
                first = min(self._pending, key=_deadline_of, default=None)
            left_s = self._timeout_s  # of a call that is submitted now
            if first is not None:
                left_s = max(0.0, _deadline_of(first) - time.monotonic())
            with suppress(queue.Empty):
                return self._to_take.get(timeout=min(left_s, threading.TIMEOUT_MAX))
            if first is not None:
                return first

    def _take(self, return_exceptions: bool) -> Any:
        assert self._next is not None
        try:
            return outcome(self._next, return_exceptions)
        finally:
            with self._changed:
                self._pending.discard(self._next)
                self._changed.notify()
            self._next = None  # its error refers to this frame

    def _stop(self) -> None:
        with self._changed:
            self._gate.close()
            self._error = None
            pending, self._pending = self._pending, set()
            self._changed.notify()
        give_up(pending)

    # --- on the thread ----------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while self._await_room() and (call := next(self._calls, None)) is not None:
                self._add(call)
        except BaseException as error:
            self._error = error
        del self._calls  # releases the iterable
        self._to_take.put(None)

    def _await_room(self) -> bool:
        """Wait until another item may be read; return false if the reader is stopped."""
        while True:
            room = self._scheduler.read_ahead
            with self._changed:
                if not self._gate.is_open or len(self._pending) < room:
                    return self._gate.is_open
                self._changed.wait()

    def _add(self, call: AwaitableFuture[Any]) -> None:
        with self._changed:
            if is_open := self._gate.is_open:
                self._pending.add(call)
        if not is_open:
            call.cancel()
        elif self._in_order:
            self._to_take.put(call)
        else:
            call.then(self._to_take.put)


def _deadline_of(call: AwaitableFuture[Any]) -> float:
    return math.inf if call.deadline is None else call.deadline


def outcome(call: AwaitableFuture[Any], return_exceptions: bool) -> Any:
    """Return the result of a call; return or raise its error, or that it is late."""
    try:
        if return_exceptions:
            wait_for([call])
            if call.done() and (error := call.exception()) is not None:
                return error
        return result_of([call])
    except CallTimeout as late:
        if return_exceptions:
            return late.with_traceback(None)
        raise
    finally:
        del call
