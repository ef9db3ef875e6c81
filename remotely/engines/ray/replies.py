"""How the outcomes of calls arrive: in the thread that waits, or where nobody does, on one of ours.

Ray tells of an outcome on a thread of its own, which must not run users' code.  So callbacks run on
a thread of this engine, and may make calls themselves.
"""

import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from remotely.engines.ray.frames import LATER, NOT_RUN, received
from remotely.errors import RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture, Receiver
from remotely.machine.shield import RLock, shield
from remotely.objects import outcome
from remotely.objects.outcome import StreamOf
from remotely.protocol import wire
from remotely.protocol.lease import DRAIN_S

log = logging.getLogger("remotely")

LOOK_EVERY_S = 0.5  # how soon a caller who waits notices that this process has left the cluster
CANCEL_S = 0.5  # how long a caller waits to learn whether its call was taken back

Lost = Callable[[RayError, bool], BaseException]  # the error of a call, from Ray's and a doubt


class Reply:
    """Receives the outcome of one call.  `lost` says what an error of Ray's means."""

    __slots__ = (
        *("_attended", "_completions", "_future", "_host", "_lock", "_lost", "_ref", "_route"),
        "_stream_of",
    )

    def __init__(
        self,
        future: CallFuture[Any],
        ref: Any,
        host: Any,
        route: bytes,
        completions: "Completions",
        lost: Lost,
        stream_of: StreamOf,
    ) -> None:
        self._future = weakref.ref(future)  # which has this for its receiver
        self._ref = ref
        self._host = host
        self._route = route
        self._completions = completions
        self._lost = lost
        self._stream_of = stream_of
        self._lock = RLock()
        self._attended = False

    def wait(self, future: CallFuture[Any], timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._completions.waiting():
            self._wait_for_ray(future, deadline)
        if not future.answered:
            self._wait_for_next(future, deadline)

    def _wait_for_ray(self, future: CallFuture[Any], deadline: float | None) -> None:
        """Wait as `wait` does, but not for a call that is sent again."""
        while (ref := self._ref) is not None and not self._completions.lose_if_closed(future):
            left_s = _left(deadline)
            try:
                data = ray.get(
                    ref, timeout=LOOK_EVERY_S if left_s is None else min(left_s, LOOK_EVERY_S)
                )
            except GetTimeoutError:
                if _left(deadline) == 0.0:
                    return
                continue
            except RayError as error:
                if self._completions.is_closed:
                    continue
                data = error
            except SystemExit as error:
                if not (self._completions.is_closed and _is_of_ray(error)):
                    raise
                continue
            if self.deliver(future, data):
                future.tell()
                return

    def _wait_for_next(self, future: CallFuture[Any], deadline: float | None) -> None:
        """Another thread sends the call again; wait for that, and for its outcome."""

        def next_one() -> Receiver | None:
            receiver = future.receiver
            return None if receiver is self else receiver

        wakeup.sleep_until(lambda: future.done() or next_one(), _left(deadline), future)
        if not future.done() and (receiver := next_one()) is not None:
            receiver.wait(future, _left(deadline))

    @property
    def ref(self) -> Any:
        """What Ray knows the outcome by, until it is there: it may be passed on, and arrives as
        what it is then."""
        return self._ref

    def receive_in_background(self) -> None:
        """Have the outcome delivered as it comes, though nobody waits."""
        future = self._future()
        if future is not None and not self._attended:
            self._attended = True
            self._completions.add(self, future)

    def holds(self, future: CallFuture[Any]) -> bool:
        return False

    def recall(self, future: CallFuture[Any]) -> bool:
        return False

    def cancel(self, future: CallFuture[Any], waits: bool) -> bool:
        with contextlib.suppress(RayError):
            asked = self._host.cancel.remote(self._route, future.call_id)
            return waits and bool(ray.get(asked, timeout=CANCEL_S))
        return False

    def deliver(self, future: CallFuture[Any], data: Any) -> bool:
        """Give the call its outcome: what the host returned, or Ray's error.

        Returns false if the host has only said that it is to be asked later.
        """
        with self._lock:  # a stream that was made twice would close its generator
            if future.answered or self._ref is None:  # the latter if it was sent again
                return True
            if isinstance(data, bytes) and data == LATER:
                self._ref = self._host.later.remote(self._route, future.call_id)
                return False
            self._ref = None  # Ray keeps what it has of the value as long as there is a reference
            if isinstance(data, RayError):
                future.lose(self._lost(data, True))
            elif data == NOT_RUN:
                future.lose(self._lost(RayError("it was closed, or its owner has ended"), False))
            else:
                message = wire.decode(received(data), "actor")
                outcome.settle(future, message, self._stream_of, lends=False)
            return True


class Completions:
    """The thread on which calls are completed that nobody waits for."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._pending: dict[int, CallFuture[Any]] = {}  # by their identity
        self._closed_by: Callable[[], BaseException] | None = None
        self._callers: dict[object, int] = {}  # the threads that wait for Ray themselves
        self._thread = threading.Thread(target=self._run, name="remotely-replies", daemon=True)
        self._thread.start()

    def add(self, reply: Reply, future: CallFuture[Any]) -> None:
        """Complete a call when Ray has its outcome."""
        if (ref := reply.ref) is None:  # another thread has just completed it
            return
        self._pending[id(future)] = future

        def hear(done: Future[Any]) -> None:
            data = done.exception() or done.result()
            self._work.put(lambda: self._complete(reply, future, data))

        with shield:  # an interrupt could leave a lock held for which a thread of Ray's waits
            ref.future().add_done_callback(hear)
        if self._closed_by is not None:
            self._lose_pending(self._closed_by)

    def is_here(self) -> bool:
        """Tell whether this is the thread on which calls are completed."""
        return threading.current_thread() is self._thread

    def run(self, work: Callable[[], object]) -> None:
        """Do something where no caller waits for it."""
        self._work.put(work)

    def close(self, error: Callable[[], BaseException], within_s: float = DRAIN_S) -> None:
        """Do what is left to do, and give every call that is pending an error.

        A callback that takes longer is left behind.
        """
        self._work.put(None)
        if not self.is_here():
            self._thread.join(within_s)
        self._closed_by = error
        self._lose_pending(error)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that this thread waits for Ray."""
        mine = object()
        try:
            self._callers[mine] = threading.get_ident()
            yield
        finally:
            self._callers.pop(mine, None)

    def await_callers(self, within_s: float = 4 * LOOK_EVERY_S) -> None:
        """Once this is closed, return when no other thread waits for Ray.

        A wait that goes on while Ray is shut down may last for ever, whatever its timeout.
        """
        here, deadline = threading.get_ident(), time.monotonic() + within_s
        while set(self._callers.values()) - {here} and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S / 10)

    @property
    def is_closed(self) -> bool:
        return self._closed_by is not None

    def lose_if_closed(self, future: CallFuture[Any]) -> bool:
        """If this is closed, give a call that error."""
        if (error := self._closed_by) is None:
            return False
        future.lose(error())
        future.tell()
        return True

    def _lose_pending(self, error: Callable[[], BaseException]) -> None:
        with contextlib.suppress(KeyError):  # the last may have gone to another thread
            while self._pending:
                _, future = self._pending.popitem()
                future.lose(error())
                future.tell()

    def _complete(self, reply: Reply, future: CallFuture[Any], data: Any) -> None:
        self._pending.pop(id(future), None)  # first: it may be sent again, and be pending anew
        try:
            if not reply.deliver(future, data):
                self.add(reply, future)
                return
        except Exception as error:  # it is to have an outcome, whatever it is
            future.lose(error.with_traceback(None))
        future.tell()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except (RemotelyError, RayError):  # the cluster is being left
                pass
            except Exception:  # other calls still have to be completed
                log.exception("an outcome from Ray could not be delivered")
            del work


def _is_of_ray(error: SystemExit) -> bool:
    """Tell whether Ray ends a wait since this process has left it; a signal handler may, too."""
    return "core worker is shut down" in getattr(error, "ray_terminate_msg", "")


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
