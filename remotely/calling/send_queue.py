"""Calls that cannot leave yet, in a queue for each actor.

    a call waits for                       until
    a future among its arguments           it is done
    a large argument that crosses          it is there
    an actor without a connection          its engine has made one
    an actor between two lives             the next one is there
    the calls made before it               they have left

Calls of one thread to one actor run in the order in which they are made.  So an actor has a queue
as soon as one of its calls has to wait, and every later call joins it until it is empty.  A call
whose outcome was lost, and that may be repeated, comes back with the number that it had: before all
that were made after it.

A call may be repeated if its method allows that (objects/marks.py).  When its actor died, or
its machine was lost, it may have run; it leaves once more in the actor's next life, or on a new
connection.  An error that the method itself raises is an outcome, and is never retried.

Nobody waits to join a queue.  What is kept there is Owned, so its caller may go on and change it.

    add       joins; the first looks whether it may leave
    look      comes back when what the first waits for is done; else has a thread serve the queue
    serve     one thread a queue: `send` the first, which takes it out as it leaves (`QueuedCall.take`);
              then the next.  With the last, the queue is gone
    recall    a call is taken out by its caller, who cancels it; `QueuedCall.take` is false then, as it is
              if a call that is repeated has come before it while `send` waited

A thread may be held up by its actor for long, so there are as many as there are queues to serve.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from remotely.calling.actor import CalledActor
from remotely.calling.threads import Threads
from remotely.errors import ActorDied, RemotelyError, WorkerLost
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.futures.reference import DependencyCallback
from remotely.machine.shield import RLock, shield
from remotely.values.owned import Owned

numbers = itertools.count(1)  # of calls, in the order in which they were made


class RetriedFuture(CallFuture[Any]):
    """The future of a call that is repeated if its outcome is lost; `again` has it sent."""

    def __init__(
        self, what: str, actor: object, again: Callable[[CallFuture[Any]], None], retries: int
    ) -> None:
        super().__init__(what, actor)
        self._again: Callable[[CallFuture[Any]], None] | None = again
        self._left = retries
        self._may_have_run = False  # in an earlier try
        self.number = next(numbers)

    def lose(self, error: BaseException) -> None:
        """Send the call again if that may help.  Never waits."""
        again = self._again
        if not isinstance(error, ActorDied | WorkerLost) or again is None:
            super().lose(error)
        elif self._left:
            self._left -= 1
            self._may_have_run |= error.may_have_run
            self.call_id = 0
            again(self)
        else:
            if self._may_have_run and not error.may_have_run:
                error.may_have_run = True
                error.add_note("An earlier try of this call may have run.")
            super().lose(error)

    def _finish(self) -> None:
        self._again = None  # it holds the arguments
        super()._finish()


class Message(Protocol):
    """What is sent to an actor, as its engine knows it."""

    @property
    def value(self) -> Owned: ...


M = TypeVar("M", bound=Message)

FORGOTTEN = 8  # calls that were taken out of the middle of a queue, and still have a place there


class QueuedCall(Generic[M]):
    """One call that waits.  `needs` have to be done before it leaves."""

    __slots__ = ("_queues", "actor", "future", "message", "needs", "number")

    def __init__(
        self,
        queues: "SendQueues[M]",
        actor: CalledActor,
        message: M,
        future: CallFuture[Any],
        needs: Sequence[Future[Any]],
        number: int,
    ) -> None:
        self._queues = queues
        self.actor = actor
        self.message = message
        self.future = future
        self.needs = needs
        self.number = number

    def __lt__(self, other: "QueuedCall[M]") -> bool:
        return self.number < other.number

    def take(self) -> bool:
        """Take the call out of its queue, to be sent now; false if it is not its call any more."""
        return self._queues.take(self)

    def give_back(self) -> None:
        """Put a call back in its place that was taken, and could not be sent."""
        self._queues.put_back(self)


class Queue(Generic[M]):
    """The calls of one actor.  The first is that with the lowest number."""

    def __init__(self) -> None:
        self._calls: dict[CallFuture[Any], QueuedCall[M]] = {}
        self._order: list[QueuedCall[M]] = []
        self.is_served = False

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, future: object) -> bool:
        return future in self._calls

    def put(self, call: QueuedCall[M]) -> None:
        """Add a call, unless it is there."""
        if self._calls.get(call.future) is not call:
            self._calls[call.future] = call
            heapq.heappush(self._order, call)

    def first(self) -> QueuedCall[M] | None:
        while self._order:
            call = self._order[0]
            if self._calls.get(call.future) is call:
                return call
            heapq.heappop(self._order)
        return None

    def take(self, future: CallFuture[Any]) -> QueuedCall[M] | None:
        call = self._calls.pop(future, None)
        if len(self._order) > 2 * len(self._calls) + FORGOTTEN:
            self._order = sorted(self._calls.values())
        return call


class SendQueues(Generic[M]):
    """The queues of one engine.  The `Receiver` of the calls in them.

    `send` sends a call when its call has come.  It may wait, runs on a thread of ours, and raises
    why the call cannot be sent.  `check_wait` raises an error if this thread cannot wait for a call
    of an actor, as it would wait for itself; its last argument tells whether the queue waits for
    other calls to be done.
    """

    def __init__(
        self,
        send: Callable[[QueuedCall[M]], None],
        check_wait: Callable[[Any, CallFuture[Any], bool], None],
    ) -> None:
        self._send = send
        self._check_wait = check_wait
        self._threads = Threads("remotely-send")
        self._lock = RLock()  # a done-callback may add one on this very thread
        self._waiting: set[CalledActor] = set()
        self._closed: RemotelyError | None = None

    def add(
        self,
        actor: CalledActor,
        message: M,
        future: CallFuture[Any],
        needs: Sequence[Future[Any]] = (),
    ) -> None:
        """Have a call leave when it may.  Never waits."""
        number = future.number if isinstance(future, RetriedFuture) else next(numbers)
        self.put_back(QueuedCall(self, actor, message, future, needs, number))

    def put_back(self, call: QueuedCall[M]) -> None:
        actor, future = call.actor, call.future
        with shield:  # a queue that nobody looks at would hold up its actor
            with self._lock:
                closed = self._closed
                if closed is None:
                    if actor.queue is None:
                        actor.queue = Queue()
                        self._waiting.add(actor)
                    actor.queue.put(call)
                    future.receiver = self
                    is_first = actor.queue.first() is call
            if closed is not None:
                future.settle(None, closed)
            elif is_first:
                self._look(actor)
        if closed is not None:
            future.run_callbacks()

    def take(self, call: QueuedCall[M]) -> bool:
        with self._lock:
            queue = call.actor.queue
            if queue is None or queue.first() is not call:
                return False
            queue.take(call.future)
        if wakeup.sleepers:
            wakeup.wake(call.actor)
        return not call.future.done()

    def close(self, error: RemotelyError) -> None:
        """Fail all calls that wait.  None of them has run."""
        lost: list[QueuedCall[M]] = []
        with self._lock:
            self._closed = error
            for actor in self._waiting:
                while actor.queue and (call := actor.queue.first()) is not None:
                    actor.queue.take(call.future)
                    lost.append(call)
            self._waiting.clear()
        for call in lost:
            call.future.settle(None, error)
            call.future.run_callbacks()
        self._threads.close()

    # --- what a future asks of its receiver -------------------------------------------------------

    def wait(self, future: CallFuture[Any], timeout: float | None) -> None:
        """Wait until the call has left, and then with those who receive its reply."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if isinstance(actor := future.actor, CalledActor):
            self._check_wait(actor, future, bool(self._due(actor)))

        def has_left() -> bool:
            return future.done() or future.receiver is not self

        wakeup.sleep_until(has_left, timeout, future)
        receiver = future.receiver
        if not future.done() and receiver is not None and receiver is not self:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            receiver.wait(future, left_s)

    def receive_in_background(self) -> None:
        """Replies of these calls are received as they come."""

    def holds(self, future: CallFuture[Any]) -> bool:
        actor = future.actor
        return isinstance(actor, CalledActor) and future in (actor.queue or ())

    def recall(self, future: CallFuture[Any]) -> bool:
        """Take a call back; false if it has left."""
        actor = future.actor
        if not isinstance(actor, CalledActor):  # it has an outcome
            return False
        with self._lock:
            queue = actor.queue
            first = queue.first() if queue is not None else None
            if queue is None or queue.take(future) is None:
                return False
        if first is not None and first.future is future:  # the next one may need less
            self._look(actor)
        return True

    def cancel(self, future: CallFuture[Any], waits: bool) -> bool:
        """Have the actor not begin a call that has left meanwhile."""
        receiver = future.receiver
        return receiver is not None and receiver is not self and receiver.cancel(future, waits)

    # --- the queues -------------------------------------------------------------------------------

    def _look(self, actor: CalledActor) -> None:
        """Come back when the first of the queue may leave.  Once too often is harmless."""
        with shield:  # as in `put_back`: this may be a done-callback on any thread
            if due := self._due(actor):
                due[0].add_done_callback(DependencyCallback(lambda _: self._look(actor)))
            else:
                self._threads.run(lambda: self._serve(actor))

    def _due(self, actor: CalledActor) -> list[Future[Any]]:
        """Return what the first of the queue still waits for."""
        with self._lock:
            first = actor.queue.first() if actor.queue is not None else None
        return [need for need in first.needs if not need.done()] if first else []

    def _serve(self, actor: CalledActor) -> None:
        """On a thread of ours: send what may leave."""
        with self._lock:
            if actor.queue is None or actor.queue.is_served:
                return
            actor.queue.is_served = True
        while (call := self._next(actor)) is not None:
            try:
                self._send(call)
                wakeup.wake(call.future)
            except Exception as error:
                with self._lock:  # first: a call that may be repeated joins the queue again
                    actor.queue.take(call.future)
                call.future.lose(error.with_traceback(None))
                call.future.run_callbacks()
            del call

    def _next(self, actor: CalledActor) -> QueuedCall[M] | None:
        """Return what may leave now; if there is none, this thread serves the queue no more."""
        with self._lock:
            queue: Queue[M] = actor.queue
            first = queue.first()
            if first is not None and not self._due(actor):
                return first
            queue.is_served = False
            if first is None:
                actor.queue = None
                self._waiting.discard(actor)
                return None
        self._look(actor)
        return None
