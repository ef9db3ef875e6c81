"""The channel to one life of an actor on Ray: sends its calls, and receives their outcomes.

1  A call gets the next number of the channel's route, and its large buffers are sent out of band.
   Once it is sent, Ray has copied the value.
2  A thread of Ray receives the outcome.  It must not run users' code, which unpickling may do, so
   it hands the outcome to the replies thread.
3  The replies thread settles the future, which wakes its waiters.  No signal reaches it, so it
   also runs the runtime's own callbacks, and lends itself to the main thread for those
   (futures/callbacks.py).
"""

import contextlib
import functools
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError

from remotely.engines.ray.host import LOST, NOT_RUN, ROUTE_BYTES, HostPlace, received
from remotely.engines.ray.stored import HostOutgoing
from remotely.errors import ActorDied, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.stream import Stream
from remotely.machine.gate import Gate
from remotely.machine.shield import shield
from remotely.machine.task_thread import TaskThread
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec
from remotely.values.codec import Encoded
from remotely.values.owned import NOTHING

CANCEL_S = 0.5  # how long a caller waits to learn whether its call was cancelled

# Returns the error of a call whose outcome is lost, from Ray's error and `may_have_run`.
Lost = Callable[["HostChannel", Any, RayError, bool], BaseException]


class Replies:
    """The thread on which outcomes settle, and the calls of all channels that have none.

    `lost` handles the loss of an outcome: see `Lost`.
    """

    def __init__(self, lost: Lost) -> None:
        self.thread = TaskThread("replies")
        self.lost = lost
        self.pending: set[CallFuture[Any]] = set()
        self._gate = Gate()

    def unfinished(self) -> list[str]:
        """Return the names of the submitted calls that were sent.  Takes no lock."""
        return [call.what for call in [*self.pending] if call.is_left_behind]

    def add(self, future: CallFuture[Any]) -> None:
        """Note a call that has just been sent."""
        with self._gate:
            if is_open := self._gate.is_open:
                self.pending.add(future)
        if not is_open:
            self._lose(future)

    def close(self, left: Callable[[], Exception]) -> None:
        """Fail the calls without an outcome, also later ones: this process leaves the cluster."""
        with self._gate:
            self._gate.close(left)
            pending, self.pending = self.pending, set()
        for future in pending:
            self._lose(future)

    def _lose(self, future: CallFuture[Any]) -> None:
        future.lose(self._gate.why(), may_have_run=True)
        future.run_callbacks()

    def run(self, task: Callable[[], object]) -> None:
        """Run a task soon, which must not block.  Any thread may call this at any moment."""
        self.thread.call(functools.partial(_unless_leaving, task))


class HostChannel:
    """The connection to one life of an actor: a `carrier.CallChannel`.

    host          Ray's handle of the process
    place         the place of the process, if this one knows it
    is_serial     whether it is a SerialHost
    is_open       whether calls can be sent: it has its object, and has not ended
    route         identifies this client to the host, which handles its messages in numbered order
    sources_sent  the number of batches of sources.py that were sent on this route
    pending       for each call without an outcome, Ray's reference to that, which can be passed on
                  as an argument, and its route
    """

    is_introduced = True
    lends = False

    def __init__(self, replies: Replies, host: Any, life: int, is_serial: bool) -> None:
        self.host = host
        self.life = life
        self.is_serial = is_serial
        self.place: HostPlace | None = None
        self.is_open = False
        self._replies = replies
        self._gate = Gate(  # what is sent before its object exists
            lambda: ActorDied("the actor was closed during creation", may_have_run=False)
        )
        self.pending: dict[CallFuture[Any], tuple[Any, bytes]] = {}
        self.take_new_route()

    def wait_until_introduced(self) -> None:
        """Do nothing: Ray carries values of any size."""

    def open(self) -> "HostChannel":
        """Note that the process has its object, and has not had a call yet."""
        with self._gate:
            self.is_open = self._gate.is_open
        return self

    def end(self) -> None:
        """Send no more calls; Ray tells the outcome of those that were sent."""
        with self._gate:
            self.is_open = False
            self._gate.close()

    def take_new_route(self) -> None:
        """Restart numbering: the host would wait forever for a lost message of the old route."""
        with self._gate:
            self._number = self.sources_sent = 0
            self.route = secrets.token_bytes(ROUTE_BYTES)

    # --- sending ----------------------------------------------------------------------------------

    def send(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: HostOutgoing | None = None,
        may_requeue: bool = False,
    ) -> bool:
        if large is not None:
            large.store()  # not under the lock
        with shield, self._gate:  # an interrupt between number and message would leave a gap
            if is_sent := self.is_open:
                self._transmit(kind, name, value, future, large)
        if not is_sent and not may_requeue:
            future.lose(ActorDied("the actor has ended", may_have_run=False))
            future.run_callbacks()
        return is_sent

    def send_to_new(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        large: HostOutgoing | None = None,
    ) -> None:
        """Send a message that sets up the process.  Raises ActorDied if it was ended meanwhile."""
        with shield, self._gate:
            self._gate.check()
            self._transmit(kind, name, value, future, large)

    def _transmit(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        large: HostOutgoing | None,
    ) -> None:
        """Pass a message to Ray, with the lock.

        1  The number is taken first: the garbage collector may call the same actor from in here.
        2  If Ray does not accept the message, its number never arrives, and later messages would
           wait for it forever; so they take a new route.
        """
        route, self._number = self.route, self._number + 1
        number = self._number
        large = large or HostOutgoing(value)
        try:
            head, *buffers = wire.encode(kind, number, name, value.pieces, value.buffers)
            sent: list[Any] = [b"".join((route, head))]
            if buffers or large.refs:
                sent.append(large.stored_buffers or codec.out_of_band(buffers))
            if large.refs:
                sent += [large.names, *(large.refs if self.is_serial else [large.refs])]
            ref = self.host.do.remote(*sent)
        except BaseException:
            self.take_new_route()
            raise
        future.call_id = number
        future.receiver = self
        self.pending[future] = ref, route
        deliver = functools.partial(self._deliver, future.actor, future)

        def on_done(done: Future[Any]) -> None:
            data = done.exception() or done.result()
            self._replies.run(functools.partial(deliver, data))

        ref.future().add_done_callback(on_done)
        self._replies.add(future)

    # --- the receiver of its calls ----------------------------------------------------------------

    def ref_of(self, future: CallFuture[Any]) -> Any:
        """Return Ray's reference to the outcome of a pending call; None if there is none."""
        ref, _ = self.pending.get(future, (None, b""))
        return ref

    def wait(self, future: Any, timeout: float | None = None) -> None:
        if self._replies.thread.is_own_thread():
            raise RemotelyError(
                f"{future.what} cannot be waited for here, where the outcome of another call is "
                "unpickled: its own outcome would arrive on this very thread"
            )
        future.block(timeout)

    def receive_in_background(self) -> None:
        """Do nothing: outcomes always arrive on the replies thread."""

    def holds(self, future: CallFuture[Any]) -> bool:
        return False

    def recall(self, future: CallFuture[Any]) -> bool:
        return False

    def cancel(self, future: CallFuture[Any], waits: bool) -> None:
        ref, route = self.pending.get(future, (None, b""))
        if ref is None:
            return
        with contextlib.suppress(RayError):
            asked = self.host.cancel.remote(route, future.call_id)
            if waits and ray.get(asked, timeout=CANCEL_S):
                self._forget(future)  # first: this wakes those that wait for room
                future.cancel_now()

    def _forget(self, future: CallFuture[Any]) -> None:
        self.pending.pop(future, None)
        self._replies.pending.discard(future)

    def _deliver(self, actor: Any, future: CallFuture[Any], data: Any) -> None:
        """Give a call its outcome: the host's reply, or Ray's error."""
        # First: it may be sent again, and be pending again.  Ray keeps the value of a reference.
        self._forget(future)
        lost = self._replies.lost
        try:
            if future.answered:  # it was cancelled
                pass
            elif isinstance(data, RayError):
                future.lose(lost(self, actor, data, True))
            elif data in (NOT_RUN, LOST):
                error = RayError("it was closed, or its owner has ended")
                future.lose(lost(self, actor, error, data == LOST))
            else:
                message = wire.decode(received(data), "actor")
                future.settle_by(message, self._stream, lends=False)
        except Exception as error:  # every call must get an outcome
            future.lose(error.with_traceback(None), may_have_run=True)
        future.run_callbacks()

    def _stream(self, name: str, actor: Any) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", actor)
            if not self.send(Kind.NEXT, name, NOTHING, future, background=True, may_requeue=True):
                why = f"{actor.name} died, and its stream with it"
                ended = actor.ended
                future.set_exception(ended(False) if ended else ActorDied(why, may_have_run=False))
            return future

        def end() -> None:
            # In the background: the last reference may be dropped anywhere, even within a call.
            last: CallFuture[Any] = CallFuture("a stream", actor)
            close = functools.partial(self.send, Kind.CLOSE, name, NOTHING, last, background=True)
            self._replies.run(close)

        return Stream(ask, end)


def _unless_leaving(task: Callable[[], object]) -> None:
    with contextlib.suppress(RemotelyError, RayError):  # this process is leaving the cluster
        task()
