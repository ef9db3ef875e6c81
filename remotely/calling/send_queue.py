"""The queues of calls that cannot be sent yet, one for each actor.

    a call waits for                       until
    a future among its arguments           it is done
    a large argument in transfer           it has arrived
    an actor without a connection          its engine has connected to it
    an actor between two lives             its next life is ready
    the calls made before it               they are sent

None of them waits for anything once its actor has ended.

Calls from one thread to one actor run in the order in which they are made.  So an actor has a queue
as soon as one of its calls must wait, and later calls join it until it is empty.  A call that is
retried keeps its number, so it is sent before all calls that were made after it.

A call whose outcome was lost may be retried (retries.py): it is sent again to the actor's next
life, or on a new connection.

Joining a queue never blocks.  The arguments of a queued call are Owned, so the caller may change
its own.

    add       the call joins the queue; if it is the first, the queue is checked
    check     if the first call still waits, checks again when what it waits for is done; otherwise
              has a thread serve the queue
    serve     one thread for each queue calls `send` with the first call, which takes the call out
              of the queue as it is sent (`QueuedCall.take`), then with the next.  An empty queue is
              deleted
    recall    cancelling takes a call out of the queue.  `QueuedCall.take` then returns false, as it
              does if a retried call has come before this one while `send` waited

The number of threads is not limited, because an actor may block its thread for long.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from remotely.calling.actor import CalledActor
from remotely.calling.retries import Retries
from remotely.calling.threads import Threads
from remotely.errors import RemotelyError
from remotely.futures import unfinished, wakeup
from remotely.futures.future import CallFuture
from remotely.futures.reference import DependencyCallback
from remotely.machine.gate import Gate
from remotely.machine.shield import shield
from remotely.values.owned import Owned
from remotely.values.payload import Completion

numbers = itertools.count(1)  # of calls, in the order in which they are made


class RetriedFuture(CallFuture[Any]):
    """The future of a call that is retried if its outcome is lost; `resend` queues it again."""

    def __init__(
        self, what: str, actor: object, resend: Callable[[CallFuture[Any]], None], retries: int
    ) -> None:
        super().__init__(what, actor)
        self._resend: Callable[[CallFuture[Any]], None] | None = resend
        self._retries = Retries(retries)
        self.number = next(numbers)

    def retry(self, error: BaseException) -> bool:
        resend = self._resend
        if resend is None or not self._retries.allow(error):
            return False
        self.lost_by = self._retries.lost_by
        self.call_id = 0
        resend(self)
        return True

    def _finish(self) -> None:
        self.lost_by = None
        self._resend = None  # it holds the arguments
        super()._finish()


class Queueable(Protocol):
    """An engine's message to an actor."""

    @property
    def value(self) -> Owned: ...


M = TypeVar("M", bound=Queueable)

SleepUntil = Callable[[Callable[[], object], float | None, Any, CallFuture[Any]], None]


def _sleep_until(
    is_over: Callable[[], object], timeout_s: float | None, actor: Any, future: CallFuture[Any]
) -> None:
    wakeup.sleep_until(is_over, timeout_s, about=future)


MAX_REMOVED = 8  # calls that were taken out of the middle of a queue and are still in its heap


class QueuedCall(Generic[M]):
    """One call in a queue.  It is sent after all its `needs` are done."""

    __slots__ = ("_queues", "actor", "future", "message", "needs", "number")

    def __init__(
        self,
        queues: "SendQueues[M]",
        actor: CalledActor,
        message: M,
        future: CallFuture[Any],
        needs: Sequence[Completion],
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
        """Take the call out of its queue, to send it now; false if it is not the next one."""
        return self._queues.take(self)

    def give_back(self) -> None:
        """Put the call back in its place after `take`, because it could not be sent."""
        self._queues.put_back(self)


class Queue(Generic[M]):
    """The queued calls of one actor, in the order of their numbers.

    `check`, for their actor, has them sent, or fail, if what they wait for has happened meanwhile.
    """

    def __init__(self, check: Callable[[CalledActor], None]) -> None:
        self.check = check
        self._calls: dict[CallFuture[Any], QueuedCall[M]] = {}
        self._order: list[QueuedCall[M]] = []
        self.is_served = False

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, future: object) -> bool:
        return future in self._calls

    def put(self, call: QueuedCall[M]) -> None:
        """Add a call, unless it is in the queue."""
        if self._calls.get(call.future) is not call:
            self._calls[call.future] = call
            heapq.heappush(self._order, call)

    def futures(self) -> list[CallFuture[Any]]:
        """Return the futures of its calls.  Thread-safe."""
        return [*self._calls]

    def first(self) -> QueuedCall[M] | None:
        while self._order:
            call = self._order[0]
            if self._calls.get(call.future) is call:
                return call
            heapq.heappop(self._order)
        return None

    def take(self, future: CallFuture[Any]) -> QueuedCall[M] | None:
        call = self._calls.pop(future, None)
        if len(self._order) > 2 * len(self._calls) + MAX_REMOVED:
            self._order = sorted(self._calls.values())
        return call


class SendQueues(Generic[M]):
    """The queues of one engine.  The `Receiver` of the calls in them.

    `send` sends the first call of a queue.  It runs on one of the queues' threads, may block, and
    raises an error if the call cannot be sent.  `check_wait` raises an error if this thread would
    wait for itself by waiting for an actor's call; its last argument tells whether the queue waits
    for other calls to be done.  `sleep_until(is_over, timeout_s, actor, future)` is that of wakeup
    unless the engine has its own.
    """

    def __init__(
        self,
        send: Callable[[QueuedCall[M]], None],
        check_wait: Callable[[Any, CallFuture[Any], bool], None],
        sleep_until: SleepUntil = _sleep_until,
    ) -> None:
        self._send = send
        self._check_wait = check_wait
        self._sleep_until = sleep_until
        self._threads = Threads("send")
        self._gate = Gate()  # a done-callback on the same thread may add a call
        self._waiting: set[CalledActor] = set()
        unfinished.watch(self)

    def add(
        self,
        actor: CalledActor,
        message: M,
        future: CallFuture[Any],
        needs: Sequence[Completion] = (),
    ) -> None:
        """Queue a call.  Never waits."""
        number = future.number if isinstance(future, RetriedFuture) else next(numbers)
        self.put_back(QueuedCall(self, actor, message, future, needs, number))

    def put_back(self, call: QueuedCall[M]) -> None:
        actor, future = call.actor, call.future
        with shield:  # a queue that is not checked would block its actor
            with self._gate:
                if is_open := self._gate.is_open:
                    if actor.queue is None:
                        actor.queue = Queue(self._check)
                        self._waiting.add(actor)
                    actor.queue.put(call)
                    future.receiver = self
                    is_first = actor.queue.first() is call
            if not is_open:
                future.settle(None, self._gate.why())
            elif is_first:
                self._check(actor)
        if not is_open:
            future.run_callbacks()

    def take(self, call: QueuedCall[M]) -> bool:
        with self._gate:
            queue = call.actor.queue
            if queue is None or queue.first() is not call:
                return False
            queue.take(call.future)
        if wakeup.sleepers:
            wakeup.wake(call.actor)
        return not call.future.done()

    def unfinished(self) -> list[str]:
        """Return the names of the submitted calls in the queues.  Takes no lock."""
        queues = [actor.queue for actor in [*self._waiting]]
        calls = [call for queue in queues if queue is not None for call in queue.futures()]
        return [call.what for call in calls if call.is_left_behind]

    def close(self, error: RemotelyError) -> None:
        """Fail all queued calls.  None of them has run."""
        lost: list[QueuedCall[M]] = []
        with self._gate:
            self._gate.close(lambda: error)
            for actor in self._waiting:
                while actor.queue and (call := actor.queue.first()) is not None:
                    actor.queue.take(call.future)
                    lost.append(call)
            self._waiting.clear()
        for call in lost:
            call.future.settle(None, error)
            call.future.run_callbacks()
        self._threads.close()

    # --- the `Receiver` of futures ----------------------------------------------------------------

    def wait(self, future: CallFuture[Any], timeout: float | None) -> None:
        """Wait until the call is sent, then with its next receiver for the reply."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if isinstance(actor := future.actor, CalledActor):
            self._check_wait(actor, future, bool(self._unmet_needs(actor)))

        def is_sent() -> bool:
            return future.done() or future.receiver is not self

        self._sleep_until(is_sent, timeout, actor, future)
        receiver = future.receiver
        if not future.done() and receiver is not None and receiver is not self:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            receiver.wait(future, left_s)

    def receive_in_background(self) -> None:
        """Do nothing: queued calls have no replies."""

    def holds(self, future: CallFuture[Any]) -> bool:
        actor = future.actor
        return isinstance(actor, CalledActor) and future in (actor.queue or ())

    def recall(self, future: CallFuture[Any]) -> bool:
        """Take a call out of its queue; false if it was sent."""
        actor = future.actor
        if not isinstance(actor, CalledActor):  # the call is done
            return False
        with self._gate:
            queue = actor.queue
            first = queue.first() if queue is not None else None
            if queue is None or queue.take(future) is None:
                return False
        if first is not None and first.future is future:  # the next call may be ready
            self._check(actor)
        return True

    def cancel(self, future: CallFuture[Any], waits: bool) -> None:
        """Cancel a call that was sent meanwhile, through its next receiver."""
        receiver = future.receiver
        if receiver is not None and receiver is not self:
            receiver.cancel(future, waits)

    # --- the queues -------------------------------------------------------------------------------

    def _check(self, actor: CalledActor) -> None:
        """Serve the queue when its first call can be sent.  An extra check is harmless."""
        if unmet := self._unmet_needs(actor):
            unmet[0].then(DependencyCallback(lambda _: self._check(actor)))
        else:
            self._threads.run(lambda: self._serve(actor))

    def _unmet_needs(self, actor: CalledActor) -> list[Completion]:
        """Return the futures for which the first call of the queue still waits.

        An actor is marked as ended before its queue is checked, and a queue is made before this
        looks at its actor.  So no call of an ended actor keeps waiting.
        """
        with self._gate:
            first = actor.queue.first() if actor.queue is not None else None
        if first is None or actor.ended is not None:
            return []
        return [need for need in first.needs if not need.done()]

    def _serve(self, actor: CalledActor) -> None:
        """Send the calls that can be sent, on one of the queues' threads."""
        with self._gate:
            if actor.queue is None or actor.queue.is_served:
                return
            actor.queue.is_served = True
        while (call := self._next(actor)) is not None:
            try:
                self._send(call)
                wakeup.wake(call.future)
            except Exception as error:
                with self._gate:  # first: `lose` may put the call into the queue again
                    actor.queue.take(call.future)
                call.future.lose(error.with_traceback(None))
                call.future.run_callbacks()
            del call

    def _next(self, actor: CalledActor) -> QueuedCall[M] | None:
        """Return the first call if it can be sent; otherwise stop serving the queue."""
        with self._gate:
            queue: Queue[M] = actor.queue
            first = queue.first()
            if first is not None and not self._unmet_needs(actor):
                return first
            queue.is_served = False
            if first is None:
                actor.queue = None
                self._waiting.discard(actor)
                return None
        self._check(actor)
        return None
