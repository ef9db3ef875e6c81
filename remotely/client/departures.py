"""Calls that cannot leave yet: a large argument still crosses, or a future is not done.

Calls of one thread to one actor run in the order in which they are made.  So an actor has a queue
as soon as one of its calls has to wait, and every later call joins it, until it is empty.  A call
may be taken back until it is about to be sent: the queue is its receiver as long as it waits.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from remotely.client.actor_state import ActorState
from remotely.client.bulk_threads import BulkThreads
from remotely.client.channel import Channel
from remotely.client.referring_call import ReferringCall
from remotely.errors import RemotelyError
from remotely.futures import in_flight, wakeup
from remotely.futures.future import CallFuture
from remotely.futures.reference import Onward
from remotely.protocol.wire import Kind
from remotely.values.memory_peer import OutgoingValue


class Departure(NamedTuple):
    """One call.  `needs` have to be done before it leaves; `counted` has counted its bytes."""

    kind: Kind
    name: str
    outgoing: OutgoingValue | None  # None: it is made of `referring` when the call leaves
    future: CallFuture[Any]
    referring: ReferringCall | None = None
    needs: Sequence[Future[Any]] = ()
    counted: Channel | None = None

    def settle(self) -> None:
        """Its bytes are not in flight.  Calling this twice is harmless."""
        if self.counted is not None:
            self.counted.settle(self.future)

    def lose(self, error: BaseException) -> None:
        """It does not leave, and `error` says why."""
        self.settle()
        self.future.lose(error)
        self.future.tell()


class Departures:
    """`send` sends a call whose time has come, if that `may_leave`.  A `Receiver` of those here."""

    def __init__(self, threads: BulkThreads, send: Callable[[ActorState, Departure], None]) -> None:
        self._threads = threads
        self._send = send
        self._lock = threading.RLock()  # a done-callback may add one on this very thread
        self._waiting: set[ActorState] = set()
        self._served: set[ActorState] = set()  # by one thread each
        self._closed: RemotelyError | None = None

    def add(self, actor: ActorState, departure: Departure, may_wait: bool) -> None:
        """Have a call leave after those that wait already.

        If there are MAX_CALLS of them, wait for one to leave first, with `may_wait`.
        """
        if may_wait and len(actor.departures or ()) >= in_flight.MAX_CALLS:
            wakeup.sleep_until(
                lambda: len(actor.departures or ()) < in_flight.MAX_CALLS, about=actor
            )
        with self._lock:
            closed, is_first = self._closed, actor.departures is None
            if closed is None:
                if actor.departures is None:
                    actor.departures = OrderedDict()
                    self._waiting.add(actor)
                actor.departures[departure.future] = departure
                departure.future.receiver = self
        if closed is not None:
            departure.lose(closed)
        elif is_first:
            self._look(actor)

    def may_leave(self, actor: ActorState, departure: Departure) -> bool:
        """Take a call out of its queue, to be sent now; false if it has been taken back."""
        with self._lock:
            queue = actor.departures
            is_here = queue is not None and queue.get(departure.future) is departure
            if queue is not None and is_here:
                del queue[departure.future]
        if wakeup.sleepers:
            wakeup.wake(actor)
        return is_here and not departure.future.done()

    def close(self, error: RemotelyError) -> None:
        """Fail all calls that wait.  None of them has run."""
        lost: list[Departure] = []
        with self._lock:
            self._closed = error
            for actor in self._waiting:
                if actor.departures is not None:
                    lost += actor.departures.values()
                    actor.departures.clear()
            self._waiting.clear()
        for departure in lost:
            departure.lose(error)

    # --- what a future asks of its receiver -------------------------------------------------------

    def wait(self, future: CallFuture[Any], timeout: float | None) -> None:
        """Return when the future is done; its reply is received as it comes."""
        future.block(timeout)

    def attend(self) -> None:
        """Replies of these calls are received as they come."""

    attend_soon = attend

    def holds(self, future: CallFuture[Any]) -> bool:
        actor = future.keep
        return isinstance(actor, ActorState) and future in (actor.departures or ())

    def recall(self, future: CallFuture[Any]) -> bool:
        """Take a call back; false if it has left."""
        actor = future.keep
        if not isinstance(actor, ActorState):  # it has an outcome
            return False
        with self._lock:
            queue = actor.departures
            departure = queue.get(future) if queue is not None else None
            was_first = queue is not None and next(iter(queue), None) is future
            if departure is None or not self.may_leave(actor, departure):
                return False
        departure.settle()
        if was_first:  # the next one may need less
            self._look(actor)
        return True

    def cancel(self, future: CallFuture[Any]) -> bool:
        """Have the actor not begin a call that has left meanwhile; true if it never will."""
        receiver = future.receiver
        return receiver is not None and receiver is not self and receiver.cancel(future)

    # --- the queues -------------------------------------------------------------------------------

    def _look(self, actor: ActorState) -> None:
        """Come back when the first of the queue may leave.  Once too often is harmless."""
        if due := self._due(actor):
            due[0].add_done_callback(Onward(lambda _: self._look(actor)))
        else:
            self._threads.run(lambda: self._serve(actor))

    def _due(self, actor: ActorState) -> list[Future[Any]]:
        """Return what the first of the queue still waits for."""
        with self._lock:
            first = next(iter((actor.departures or {}).values()), None)
        return [need for need in first.needs if not need.done()] if first else []

    def _serve(self, actor: ActorState) -> None:
        """On a thread of ours: send what may leave."""
        with self._lock:
            if actor in self._served:
                return
            self._served.add(actor)
        while (departure := self._next(actor)) is not None:
            try:
                self._send(actor, departure)
            except Exception as error:
                departure.lose(error.with_traceback(None))
            self.may_leave(actor, departure)  # if it has not: it failed before
            del departure

    def _next(self, actor: ActorState) -> Departure | None:
        """Return what may leave now; if there is none, this thread serves the actor no more."""
        with self._lock:
            queue = actor.departures
            if queue and not self._due(actor):
                return next(iter(queue.values()))
            self._served.discard(actor)
            if not queue:
                actor.departures = None
                self._waiting.discard(actor)
                return None
        self._look(actor)
        return None
