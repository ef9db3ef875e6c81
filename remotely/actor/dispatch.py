"""The order of an actor's calls, the threads that they run on, and their cancellation.

How a call runs depends on the class:

    plain methods               on the main thread, one after the other
    concurrency=n               on n threads, as do stream items and attributes; the main thread
                                only receives and replies (`CallThreads`)
    a class with async methods  on one event loop, on the main thread: async methods begin at once
                                (eager_task.py) and interleave at their awaits, plain ones block the
                                loop (or take one of n threads)
    batched methods             collected until the batch is full or due, or until a message arrives
                                that must run later: any that is not for a batched method, and one
                                for another batched method by a client with a call in the batch

A value that is elsewhere, in the store of another machine, is fetched beside the event loop.  The
later messages of its client wait until it is here.

So the calls of a client begin in the order in which they arrive.  Only the two queues of a class
with async methods and `concurrency=n` know nothing of each other: its threads, and its loop.

An actor reads a message only when it is about to run it, so a cancellation on the same connection
would arrive too late.  It is sent by way of the master and the worker to the background thread,
which marks the call; the thread that is about to run the call looks for the mark.  This order
decides which of the two came first, without a lock on the path of a call:

    begin      record that the call begins (activity.py), then look for a mark
    cancel     mark the call, then look whether it has begun

So at least one of them sees the other.  If both do, one of them removes the mark.  A call that is
recorded cannot be cancelled, and if this process dies it may have run.

The servant runs the call on the object (servant.py).

Each reply is sent at once, by the thread or task that made it, before anything else runs there: so
a method may reuse one array for all its results.

Every message gets a reply, whatever is raised on its way.  The servant replies with what the user's
code raises, and `_answer_error` with what is raised beside it: in `handle`, a batch or a task.  On
a thread, that ends the process, as does what `_answer_error` raises; the worker tells the callers.
"""

import asyncio
import contextlib
import functools
import inspect
import mmap
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from remotely.actor import eager_task, exiting
from remotely.actor.servant import RoutedReply, Servant, Unfinished
from remotely.machine import threads
from remotely.objects.batching import PendingBatch
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.testing import faults
from remotely.transport.activity import BegunCalls
from remotely.values import codec

MAX_MARKS = 10_000
ANSWER_TRIES = 25  # the caller waits 0.5 s
TRY_AGAIN_S = 0.02

Call = tuple[bytes, int]  # its route and id


class Cancellations:
    """`begun` records the calls that have begun, `marks` those that must not begin.

    Code that runs calls on one thread only may use the two directly, without the lock of `begin`.
    """

    def __init__(
        self,
        page: mmap.mmap,
        answer: Callable[[RoutedReply], bool],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.begun = BegunCalls(page)
        self.marks: set[Call] = set()
        self._answer = answer
        self._after = after
        self._lock = threading.Lock()  # of several threads that begin calls

    def begin(self, route: bytes, call_id: int) -> bool:
        """Record that a call begins; return false if it is cancelled.  Any thread may call this."""
        with self._lock:
            self.begun.note(route, call_id)
        return not (self.marks and self.remove_mark(route, call_id))

    def remove_mark(self, route: bytes, call_id: int) -> bool:
        """Remove the mark of a call; return whether it had one."""
        try:
            self.marks.remove((route, call_id))
        except KeyError:
            return False
        return True

    def on_cancel(self, cancel: control.Cancel) -> None:
        """On the background thread: cancel a call, and reply to its caller whether in time."""
        pieces = codec.encode(self.cancel(cancel.route, cancel.call)).pieces
        frames = wire.encode(Kind.RESULT, cancel.answer, "", pieces)
        self._reply(RoutedReply(cancel.route, frames), ANSWER_TRIES)

    def _reply(self, answer: RoutedReply, tries: int) -> None:
        """Send the answer; retry while the caller's connection is still being made."""
        if not self._answer(answer) and tries > 1:
            self._after(TRY_AGAIN_S, functools.partial(self._reply, answer, tries - 1))

    def cancel(self, route: bytes, call_id: int) -> bool:
        """Mark a call; return whether that was in time.  Not on the thread that runs the call."""
        if len(self.marks) >= MAX_MARKS:
            return False
        self.marks.add((route, call_id))
        last = self.begun.last_of(route)
        may_have_begun = last is None or last >= call_id
        return not (may_have_begun and self.remove_mark(route, call_id))


Work = Callable[[], object]


class CallThreads:
    """A thread pool that runs the requests for one stream in order."""

    def __init__(self, number: int) -> None:
        self._pool = ThreadPoolExecutor(number, "remotely-call")
        self._lock = threading.Lock()
        self._queues: dict[str, deque[Work]] = {}  # by stream, while a request runs or waits
        self._drops = False

    def run(self, work: Callable[..., object], *args: Any) -> None:
        self._pool.submit(_run, work, *args)

    def run_in_turn(self, stream: str, work: Work) -> None:
        """Run a request after the earlier ones for the same stream."""
        with self._lock:
            if waiting := self._queues.get(stream):
                waiting.append(work)
                return
            self._queues[stream] = deque([work])
        self.run(self._serve, stream)

    def end(self, drop: bool) -> None:
        """Return when all work has run; with `drop`, when all work that has begun has run."""
        self._drops = drop
        self._pool.shutdown(cancel_futures=drop)

    def _serve(self, stream: str) -> None:
        waiting = self._queues[stream]
        while not self._drops:
            waiting[0]()
            with self._lock:
                del waiting[0]  # not earlier: `run_in_turn` starts a second thread if it is empty
                if not waiting:
                    del self._queues[stream]
                    return
            try:
                self.run(self._serve, stream)
                return
            except RuntimeError:  # the pool is shutting down
                continue


def _run(work: Callable[..., object], *args: Any) -> None:
    """Run work; end the process on SystemExit, as in a script: the pool would swallow it."""
    try:
        work(*args)
    except SystemExit as error:
        _exit(exiting.exit_code(error))
    except BaseException:  # nothing above this frame reports it
        traceback.print_exc()
        _exit(1)


def _exit(code: int) -> None:
    exiting.flush_files()
    os._exit(code)


# Clients that found the actor by name or received its handle may call it while its creator still
# sends files.
NEED_OBJECT = frozenset((Kind.CALL, Kind.GET, Kind.SET, Kind.END))
OF_STREAMS = frozenset((Kind.NEXT, Kind.CLOSE))
ON_THREADS = frozenset((Kind.CALL, Kind.GET, Kind.SET)) | OF_STREAMS
# They do not touch the object, so a batch goes on gathering.  A client sends READS as it connects.
BESIDE_CALLS = frozenset((Kind.SOURCES, Kind.READS, Kind.WHOLE, Kind.DEBUG))
RECORDED = ON_THREADS | frozenset((Kind.INIT,))  # in `Cancellations.begun`

Send = Callable[[RoutedReply], object]


class ReplySender(Protocol):
    def send(self, reply: RoutedReply) -> None:
        """Send a reply from within `Dispatcher.handle`."""

    def send_soon(self, reply: RoutedReply) -> None:
        """Send a reply from a task of the event loop."""

    def send_beside(self, reply: RoutedReply) -> object:
        """Send a reply from any other thread."""

    def wake(self) -> None:
        """Wake the thread that uses the dispatcher.  Any thread may call this."""


class Dispatcher:
    """Runs messages, or schedules them.  Only the main thread uses it, except for `stop`."""

    def __init__(
        self,
        servant: Servant,
        line: ReplySender,
        cancellations: Cancellations,
        wait_for_lease: Callable[[], None],
    ) -> None:
        self._servant = servant
        self._send = line.send
        self._send_soon = line.send_soon
        self._send_beside = line.send_beside
        self._wake = line.wake
        self._wait_for_lease = wait_for_lease
        self._cancellations = cancellations
        self._begin = cancellations.begin
        self._begun, self._marks = cancellations.begun, cancellations.marks
        self._last, self._slots = self._begun.last, self._begun.slots
        self._stop_asked = False
        self._ender: tuple[bytes, Message] | None = None  # the call that asked for the end
        self._early: list[tuple[bytes, Message]] = []  # arrived before the object existed
        self._gathered: dict[str, PendingBatch] = {}
        self._threads: CallThreads | None = None
        self._begin_threads()
        self._is_starting = False  # a task takes its first step
        self.loop: asyncio.AbstractEventLoop | None = None  # of a class with async methods
        self._tasks: set[Any] = set()  # the event loop holds only weak references to them
        # By route, the messages that wait for the value of the first of them.
        self._fetching: dict[bytes, deque[Message]] = {}
        self._late_end: tuple[bytes, Message] | None = None  # END, while they wait

    def handle(self, route: bytes, message: Message, is_here: bool = False) -> None:
        """Run one message, or schedule it; `is_here`: its value need not be fetched."""
        try:
            self._handle(route, message, is_here)
        except self._servant.ends:
            raise
        except BaseException as error:
            self._answer_error([(route, message)], error, self._send)

    def _answer_error(
        self, calls: Sequence[tuple[bytes, Message]], error: BaseException, send: Send
    ) -> None:
        """Reply with an error that was raised beside the object's own code."""
        for reply in self._servant.answer_error(calls, error):
            send(reply)

    def _handle(self, route: bytes, message: Message, is_here: bool) -> None:
        if faults.ON and message.kind is Kind.CALL and not is_here:
            faults.at("actor.call")
        servant = self._servant
        if not servant.is_made and message.kind in NEED_OBJECT:
            self._early.append((route, message))
            return
        kind = message.kind
        may_wait = servant.is_async and not is_here and kind not in BESIDE_CALLS
        if may_wait and self._must_wait(route, message):
            return
        is_batched = kind is Kind.CALL and message.name in servant.batched
        is_awaited = not is_batched and servant.is_async and servant.is_coroutine(message)
        is_recorded = kind in RECORDED
        threads = self._threads if is_recorded and not is_batched and not is_awaited else None
        if self._gathered and kind not in BESIDE_CALLS:  # calls run in the order of arrival
            self._run_gathered(
                [
                    name
                    for name, batch in self._gathered.items()
                    if not is_batched or (name != message.name and batch.has(route))
                ]
            )
        if is_batched:
            self._gather(route, message)
        elif is_awaited:
            self._start([(route, message)], self._answer_async(route, message))
        elif threads is not None:
            if kind in OF_STREAMS:
                work = functools.partial(self._answer_on_thread, route, message)
                threads.run_in_turn(message.name, work)
            else:
                threads.run(self._answer_on_thread, route, message)
        elif kind is Kind.END:
            self._ender = route, message
        else:
            if is_recorded:  # as Cancellations.begin, without a lock
                try:
                    self._last[self._slots[route]] = message.call_id
                except KeyError:
                    self._begun.note(route, message.call_id)
                if self._marks and self._cancellations.remove_mark(route, message.call_id):
                    self._send(servant.cancelled(route, message))
                    return
            reply = servant.answer(route, message)
            if isinstance(reply, Unfinished):
                self._finish(route, message, reply)
                return
            self._send(reply)
            self._begin_threads()
            if kind is Kind.INIT and not servant.is_async:
                self.run_early()

    def run_early(self) -> None:
        """Run the calls that arrived before the object existed; on the event loop if it has one."""
        early, self._early = self._early, []
        for call in early:
            if not self.is_over():
                self.handle(*call)

    def _begin_threads(self) -> None:
        """Start the threads if there is an object and it serves several calls at a time."""
        if self._threads is None and self._servant.concurrency > 1:
            self._threads = CallThreads(self._servant.concurrency)

    def stop(self) -> None:
        """Begin no further call.  Any thread may call this."""
        self._stop_asked = True
        self._wake()

    def is_over(self) -> bool:
        """Return whether no further call is to begin."""
        return self._stop_asked or self._ender is not None or self._servant.failed

    async def before_end(self) -> None:
        """Wait for the tasks of earlier calls; cancel them if no caller has asked for the end."""
        if self._ender is None:
            self._servant.suppress_cancelled_replies()
            for task in self._tasks:
                task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def end(self) -> None:
        """Run the remaining calls, then `close`."""
        self.end_calls()
        self.close()

    def end_calls(self) -> None:
        """Wait for the calls on threads; after `stop`, only for those that have begun."""
        if self._threads is not None:
            self._threads.end(drop=self._stop_asked)

    def close(self) -> None:
        """Run the object's `close`, and reply to the call that asked for the end, if any."""
        if self._ender is not None:
            reply = self._servant.answer(*self._ender)
            assert not isinstance(reply, Unfinished)  # only a call is
            self._send(reply)
        elif self._stop_asked:
            try:
                self._servant.close_on_stop()
            except Exception:
                traceback.print_exc()

    async def end_calls_on_loop(self) -> None:
        """Do as `end_calls`, for a class with async methods."""
        if self._threads is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.end_calls)
            await self.before_end()  # a method on a thread may have returned a coroutine

    async def close_on_loop(self) -> None:
        """Do as `close`, for a class with async methods: `close` finds its loop and its tasks."""
        if self._ender is not None:
            self._send(await self._servant.answer_async(*self._ender))
        elif self._stop_asked:
            try:
                await self._servant.close_on_stop_async()
            except Exception:
                traceback.print_exc()

    # --- on threads, and on the event loop --------------------------------------------------------

    def _answer_on_thread(self, route: bytes, message: Message) -> None:
        self._wait_for_lease()
        may_run = self._begin(route, message.call_id)
        answer = self._servant.answer if may_run else self._servant.cancelled
        reply = answer(route, message)
        if not isinstance(reply, Unfinished):
            self._send_beside(reply)
        else:
            assert self.loop is not None  # only a class with async methods has coroutines
            self.loop.call_soon_threadsafe(self._finish, route, message, reply)

    async def _answer_async(self, route: bytes, message: Message) -> None:
        if self._begin(route, message.call_id):
            self._send_from_task(await self._servant.answer_async(route, message))
        else:
            self._send_from_task(self._servant.cancelled(route, message))

    def _finish(self, route: bytes, message: Message, unfinished: Unfinished) -> None:
        """Await what a plain method of a class with async methods has returned."""

        async def finish() -> None:
            self._send_from_task(await self._servant.answer_async(route, message, unfinished))

        self._start([(route, message)], finish())

    def _start(
        self, calls: Sequence[tuple[bytes, Message]], work: Coroutine[Any, Any, None]
    ) -> None:
        """Begin to work on calls, on the event loop."""

        def on_done(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._answer_error(calls, error, self._send_soon)

        self._is_starting = True
        try:
            task = eager_task.start(work)
        finally:
            self._is_starting = False
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(on_done)

    def _send_from_task(self, reply: RoutedReply) -> None:
        """Send a reply as `handle` does if its task has not been suspended."""
        (self._send if self._is_starting else self._send_soon)(reply)

    # --- values that are elsewhere, for a class with async methods --------------------------------

    def _must_wait(self, route: bytes, message: Message) -> bool:
        """Have a message that has arrived wait, if something is to happen before it."""
        if self._late_end is not None:
            return True  # it came after END, and is never run
        if message.kind is Kind.END and self._fetching:
            self._late_end = route, message
            return True
        if (waiting := self._fetching.get(route)) is not None:
            waiting.append(message)
            return True
        return self._begin_to_fetch(route, message)

    def _begin_to_fetch(self, route: bytes, message: Message) -> bool:
        """Fetch the value of a message on a thread, if it is elsewhere; return whether it is."""
        if not self._servant.is_elsewhere(route, message):
            return False
        try:
            threads.start("fetch", self._fetch, route, message)
        except RuntimeError:  # no further thread can be started: the loop waits
            return False
        self._fetching[route] = deque([message])
        return True

    def _fetch(self, route: bytes, message: Message) -> None:
        self._servant.fetch(route, message)
        assert self.loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._fetched, route)

    def _fetched(self, route: bytes) -> None:
        """Run the messages that have waited, up to one whose value is elsewhere, too."""
        waiting = self._fetching.pop(route)
        self.handle(route, waiting.popleft(), True)
        while waiting and not self.is_over():
            message = waiting.popleft()
            if self._begin_to_fetch(route, message):
                self._fetching[route].extend(waiting)
                break
            self.handle(route, message, True)
        if self._late_end is not None and not self._fetching and not self.is_over():
            self.handle(*self._late_end, True)
        self._wake()  # it may be over; and sending may have consumed the socket's event

    # --- batched methods --------------------------------------------------------------------------

    def until_due_ms(self) -> float | None:
        """Return the time until a batch is due; None if there is no batch."""
        if not self._gathered:
            return None
        due = min(gathering.due for gathering in self._gathered.values())
        return max(0.0, 1000 * (due - time.monotonic()))

    def run_due(self) -> bool:
        """Run the batches that are due; return whether there were any."""
        if not self._gathered:
            return False
        now = time.monotonic()
        due = [name for name, gathering in self._gathered.items() if gathering.due <= now]
        self._run_gathered(due)
        return bool(due)

    def _gather(self, route: bytes, message: Message) -> None:
        arguments = self._servant.arguments(route, message)
        name = message.name
        if name not in self._gathered:
            self._gathered[name] = PendingBatch(self._servant.batched[name])
        self._gathered[name].add((route, message), arguments, time.monotonic())
        if self._gathered[name].is_full:
            self._run_gathered([name])

    def _run_gathered(self, names: list[str]) -> None:
        for name in names:
            gathering = self._gathered.pop(name)
            for calls in gathering.take():
                asked = [call for call, _ in calls]
                if inspect.iscoroutinefunction(gathering.batching.function):
                    self._start(asked, self._run_batch_async(gathering, calls))
                elif self._threads is not None:
                    self._threads.run(self._run_batch, gathering, calls, self._send_beside)
                else:
                    try:
                        self._run_batch(gathering, calls, self._send)
                    except self._servant.ends:
                        raise
                    except BaseException as error:
                        self._answer_error(asked, error, self._send)

    def _run_batch(self, gathering: PendingBatch, calls: Any, send: Send) -> None:
        if calls := self._begin_batch(calls, send):
            for each in self._servant.answer_batch(gathering.batching, calls):
                send(each)

    async def _run_batch_async(self, gathering: PendingBatch, calls: Any) -> None:
        if calls := self._begin_batch(calls, self._send_from_task):
            for each in await self._servant.answer_batch_async(gathering.batching, calls):
                self._send_from_task(each)

    def _begin_batch(self, calls: Any, send: Send) -> list[Any]:
        """Return the calls to run; reply to those that were cancelled."""
        begun = []
        for call in calls:
            (route, message), _ = call
            if self._begin(route, message.call_id):
                begun.append(call)
            else:
                send(self._servant.cancelled(route, message, is_decoded=True))
        return begun
