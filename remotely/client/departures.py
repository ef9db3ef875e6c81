"""Calls that cannot leave yet: a large argument still crosses, or a future is not done.

Calls of one thread to one actor run in the order in which they are made.  So an actor has a queue
as soon as one of its calls has to wait, and every later call joins it, until it is empty.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from remotely.client.actor_state import ActorState
from remotely.client.back_pressure import MAX_CALLS
from remotely.client.bulk_threads import BulkThreads
from remotely.client.referring_call import ReferringCall
from remotely.errors import RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.futures.reference import Onward
from remotely.protocol.wire import Kind
from remotely.values.memory_peer import OutgoingValue


class Departure(NamedTuple):
    """One call.  `needs` have to be done before it leaves."""

    kind: Kind
    name: str
    outgoing: OutgoingValue | None  # None: it is made of `referring` when the call leaves
    future: CallFuture[Any]
    referring: ReferringCall | None = None
    needs: Sequence[Future[Any]] = ()


class Departures:
    """`send` sends a call whose time has come."""

    def __init__(self, threads: BulkThreads, send: Callable[[ActorState, Departure], None]) -> None:
        self._threads = threads
        self._send = send
        self._lock = threading.RLock()  # a done-callback may add one on this very thread
        self._waiting: set[ActorState] = set()

    def add(self, actor: ActorState, departure: Departure, may_wait: bool) -> None:
        """Have a call leave after those that wait already.

        If there are MAX_CALLS of them, wait for one to leave first, with `may_wait`.
        """
        if may_wait and len(actor.departures or ()) >= MAX_CALLS:
            wakeup.sleep_until(lambda: len(actor.departures or ()) < MAX_CALLS, about=actor)
        with self._lock:
            is_first = actor.departures is None
            if actor.departures is None:
                actor.departures = deque()
                self._waiting.add(actor)
            actor.departures.append(departure)
        if is_first:
            self._look(actor)

    def close(self, error: RemotelyError) -> None:
        """Fail all calls that wait.  None of them has run."""
        with self._lock:
            queues = [actor.departures or () for actor in self._waiting]
            self._waiting.clear()
        for departure in [departure for queue in queues for departure in queue]:
            departure.future.lose(error)
            departure.future.tell()

    def _look(self, actor: ActorState) -> None:
        """Come back when the first of the queue may leave."""
        assert actor.departures is not None
        due = [need for need in actor.departures[0].needs if not need.done()]
        if due:
            due[0].add_done_callback(Onward(lambda _: self._look(actor)))
        else:
            self._threads.run(lambda: self._serve(actor))

    def _serve(self, actor: ActorState) -> None:
        """On a thread of ours: send what may leave."""
        while True:
            with self._lock:
                queue = actor.departures
                assert queue is not None
                if not queue:
                    actor.departures = None
                    self._waiting.discard(actor)
                    return
                departure = queue[0]
            if any(not need.done() for need in departure.needs):
                self._look(actor)
                return
            try:
                self._send(actor, departure)
            except Exception as error:
                departure.future.lose(error.with_traceback(None))
                departure.future.tell()
            queue.popleft()
            if wakeup.sleepers:
                wakeup.wake(actor)
            del departure
