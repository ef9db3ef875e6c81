"""The order of an actor's calls, the threads that they run on, and those that are taken back.

How a call runs depends on the class:

    plain methods               on the main thread, one after the other
    concurrency=n               on n threads, and so do items of streams and attributes; the main
                                thread only receives and replies (`CallThreads`)
    a class with async methods  all on one event loop, on the main thread: async methods interleave
                                at their awaits, plain ones block the loop (or take one of the n
                                threads)
    batched methods             gathered until a batch is full or due, or until another message
                                comes: that one was sent later, and so it runs later

A call begins on the thread, or in the task, that runs it.  An actor reads a message when it is
about to run it, so a cancellation over the connection of its call would come too late.  It comes by
the master and the worker to the background thread, which marks the call; the thread that is about
to run it looks for the mark.  Which of the two was first is decided without a lock on the path of a
call:

    begins      notes that the call begins (activity.py), then looks for a mark
    cancels     marks the call, then looks whether it has begun

So at least one of them sees the other.  If both do, the mark is taken by one of them.  A call that
is noted cannot be taken back, and if this process dies it may have run.

What a call does to the object is the servant's part (servant.py).

A reply leaves at once, from the thread or the task that made it, while nothing else runs there: so
a method may fill the same array for its next caller.
"""

import asyncio
import functools
import inspect
import mmap
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from remotely.actor import exiting
from remotely.actor.servant import RoutedReply, Servant, raised
from remotely.objects.batching import Gathering
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.testing import faults
from remotely.transport.activity import Begun
from remotely.values import codec

MAX_MARKS = 10_000
ANSWER_TRIES = 25  # the caller waits for half a second
TRY_AGAIN_S = 0.02

Call = tuple[bytes, int]  # its route and id


class Cancellations:
    """`begun` has the calls that have begun, `marks` those that are not to.

    A caller that runs calls on one thread uses these two as `begins` does.
    """

    def __init__(
        self,
        page: mmap.mmap,
        answer: Callable[[RoutedReply], bool],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.begun = Begun(page)
        self.marks: set[Call] = set()
        self._answer = answer
        self._after = after
        self._lock = threading.Lock()  # of several threads that begin calls

    def begins(self, route: bytes, call_id: int) -> bool:
        """A call is about to run; return whether it may.  Any thread may ask."""
        with self._lock:
            self.begun.note(route, call_id)
        return not (self.marks and self.takes_mark(route, call_id))

    def takes_mark(self, route: bytes, call_id: int) -> bool:
        """Return whether a call has a mark, and remove that."""
        try:
            self.marks.remove((route, call_id))
        except KeyError:
            return False
        return True

    def hear(self, cancel: control.Cancel) -> None:
        """On the background thread: cancel a call, and tell its caller whether it was in time."""
        pieces = codec.encode(self.cancels(cancel.route, cancel.call)).pieces
        frames = wire.encode(Kind.RESULT, cancel.answer, "", pieces)
        self._tell(RoutedReply(cancel.route, frames), ANSWER_TRIES)

    def _tell(self, answer: RoutedReply, tries: int) -> None:
        """Answer; again a little later, if the connection of the caller is still being made."""
        if not self._answer(answer) and tries > 1:
            self._after(TRY_AGAIN_S, functools.partial(self._tell, answer, tries - 1))

    def cancels(self, route: bytes, call_id: int) -> bool:
        """Mark a call on another thread; return whether that was in time."""
        if len(self.marks) >= MAX_MARKS:
            return False
        self.marks.add((route, call_id))
        last = self.begun.last_of(route)
        may_have_begun = last is None or last >= call_id
        return not (may_have_begun and self.takes_mark(route, call_id))


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


# A client that found the actor by its name, or borrowed it, may call it while its maker is still
# sending files.
NEED_OBJECT = frozenset((Kind.CALL, Kind.GET, Kind.SET, Kind.END))
OF_STREAMS = frozenset((Kind.NEXT, Kind.CLOSE))
ON_THREADS = frozenset((Kind.CALL, Kind.GET, Kind.SET)) | OF_STREAMS
ARE_NOTED = ON_THREADS | frozenset((Kind.INIT,))  # as having begun

Send = Callable[[RoutedReply], object]


class ReplySender(Protocol):
    """What carries replies."""

    def send(self, reply: RoutedReply) -> None:
        """Send one from within `Dispatcher.handle`."""

    def send_soon(self, reply: RoutedReply) -> None:
        """Send one from a task of the event loop."""

    def send_beside(self, reply: RoutedReply) -> object:
        """Send one from any other thread."""

    def wake(self) -> None:
        """Have the thread that uses the dispatcher look up.  Any thread may call this."""


class Dispatcher:
    """Used by one thread, the main one of a process, but for `stop`."""

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
        self._begins = cancellations.begins
        self._begun, self._marks = cancellations.begun, cancellations.marks
        self._last, self._slots = self._begun.last, self._begun.slots
        self._stop_asked = False
        self._ender: tuple[bytes, Message] | None = None  # the call that asked for the end
        self._early: list[tuple[bytes, Message]] = []  # came before there was an object
        self._gathered: dict[str, Gathering] = {}
        self._threads: CallThreads | None = None
        self._begin_threads()
        self._tasks: set[Any] = set()  # the event loop itself holds them but weakly

    def handle(self, route: bytes, message: Message) -> None:
        """Run one message, or have it run."""
        if faults.ON and message.kind is Kind.CALL:
            faults.at("actor.call")
        servant = self._servant
        if not servant.is_made and message.kind in NEED_OBJECT:
            self._early.append((route, message))
            return
        kind = message.kind
        is_batched = kind is Kind.CALL and message.name in servant.batched
        is_awaited = not is_batched and servant.is_async and servant.is_coroutine(message)
        is_noted = kind in ARE_NOTED
        threads = self._threads if is_noted and not is_batched and not is_awaited else None
        if is_batched:
            self._gather(route, message)
            return
        if self._gathered and kind is not Kind.SOURCES:  # calls run in the order made
            self._run_gathered(list(self._gathered))
        if is_awaited:
            self._start(self._answer_async(route, message))
        elif threads is not None:
            if kind in OF_STREAMS:
                work = functools.partial(self._answer_on_thread, route, message)
                threads.run_in_turn(message.name, work)
            else:
                threads.run(self._answer_on_thread, route, message)
        elif kind is Kind.END:
            self._ender = route, message
        else:
            if is_noted:  # as Cancellations.begins, without a lock
                try:
                    self._last[self._slots[route]] = message.call_id
                except KeyError:
                    self._begun.note(route, message.call_id)
                if self._marks and self._cancellations.takes_mark(route, message.call_id):
                    self._send(servant.cancelled(route, message))
                    return
            self._send(servant.answer(route, message))
            self._begin_threads()
            if kind is Kind.INIT and not self.is_over():
                early, self._early = self._early, []
                for from_whom, call in early:
                    self.handle(from_whom, call)

    def _begin_threads(self) -> None:
        """If the object is there by now, and is to serve several calls at a time."""
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
        """Return when the calls on the event loop that were made before the end have run.

        If nobody has asked for the end, the event loop cancels them now.
        """
        if self._ender is not None:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        else:
            self._servant.suppress_cancelled_replies()

    def end(self) -> None:
        """Let what is left of the calls run, then `close`."""
        self.end_calls()
        self.close()

    def end_calls(self) -> None:
        """Run the calls made before the end, or after `stop` wait for those that have begun."""
        if self._threads is not None:
            self._threads.end(drop=self._stop_asked)

    def close(self) -> None:
        """Run the object's `close`, and answer the call that asked for the end if one did."""
        if self._ender is not None:
            self._send(self._servant.answer(*self._ender))
        elif self._stop_asked:
            try:
                self._servant.close_on_stop()
            except Exception:
                traceback.print_exc()

    # --- on threads, and on the event loop --------------------------------------------------------

    def _answer_on_thread(self, route: bytes, message: Message) -> None:
        self._wait_for_lease()
        may_run = self._begins(route, message.call_id)
        answer = self._servant.answer if may_run else self._servant.cancelled
        self._send_beside(answer(route, message))

    async def _answer_async(self, route: bytes, message: Message) -> None:
        if self._begins(route, message.call_id):
            self._send_soon(await self._servant.answer_async(route, message))
        else:
            self._send_soon(self._servant.cancelled(route, message))

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- batched methods --------------------------------------------------------------------------

    def until_due_ms(self) -> float | None:
        """Return the time until a batch is due; None if no call waits in one."""
        if not self._gathered:
            return None
        due = min(gathering.due for gathering in self._gathered.values())
        return max(0.0, 1000 * (due - time.monotonic()))

    def run_due(self) -> bool:
        """Run the batches that are due, as no message waits; return whether there were any."""
        if not self._gathered:
            return False
        now = time.monotonic()
        due = [name for name, gathering in self._gathered.items() if gathering.due <= now]
        self._run_gathered(due)
        return bool(due)

    def _gather(self, route: bytes, message: Message) -> None:
        try:
            arguments = self._servant.arguments(route, message)
        except Exception as error:
            self._send(raised(route, message, error))
            return
        name = message.name
        if name not in self._gathered:
            self._gathered[name] = Gathering(self._servant.batched[name])
        self._gathered[name].add((route, message), arguments, time.monotonic())
        if self._gathered[name].is_full:
            self._run_gathered([name])

    def _run_gathered(self, names: list[str]) -> None:
        for name in names:
            gathering = self._gathered.pop(name)
            for calls in gathering.take():
                if inspect.iscoroutinefunction(gathering.batching.function):
                    self._start(self._run_batch_async(gathering, calls))
                elif self._threads is not None:
                    self._threads.run(self._run_batch, gathering, calls, self._send_beside)
                else:
                    self._run_batch(gathering, calls, self._send)

    def _run_batch(self, gathering: Gathering, calls: Any, send: Send) -> None:
        if calls := self._begin_batch(calls, send):
            for each in self._servant.answer_batch(gathering.batching, calls):
                send(each)

    async def _run_batch_async(self, gathering: Gathering, calls: Any) -> None:
        if calls := self._begin_batch(calls, self._send_soon):
            for each in await self._servant.answer_batch_async(gathering.batching, calls):
                self._send_soon(each)

    def _begin_batch(self, calls: Any, send: Send) -> list[Any]:
        """Return those of the calls that run; answer those that were taken back."""
        begun = []
        for call in calls:
            (route, message), _ = call
            if self._begins(route, message.call_id):
                begun.append(call)
            else:
                send(self._servant.cancelled(route, message, is_decoded=True))
        return begun
