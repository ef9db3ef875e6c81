"""Calls on Ray: sending them, and receiving their outcomes.

1  A call is sent immediately if its actor has a host and no queue; otherwise through the queue of
   the actor (calling/send_queue.py).  It has a number, and its large buffers are sent out of band.
   Once the call is sent, Ray has copied the value.
2  A thread of Ray receives the outcome.  It must not run users' code, which unpickling may do, so
   it hands the outcome to the replies thread.
3  The replies thread settles the future, which wakes its waiters.  No signal reaches it, so it
   also runs the runtime's own callbacks, and lends itself to the main thread for those
   (futures/callbacks.py).
4  A lost call may be sent again (calling/send_queue.py): back to 1.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from remotely.calling import back_pressure
from remotely.calling.send_queue import QueuedCall, RetriedFuture, SendQueues
from remotely.engine import RemoteActor
from remotely.engines.ray.actor import HostedActor
from remotely.engines.ray.host import LOST, NOT_RUN, received
from remotely.engines.ray.stored import Referred, put_buffers
from remotely.errors import ActorDied, NotConnected, RemotelyError
from remotely.futures import callbacks, unfinished
from remotely.futures.future import CallFuture
from remotely.futures.stream import Stream
from remotely.futures.unretrieved import OnUnretrieved
from remotely.machine.interrupts import is_for_main
from remotely.machine.shield import shield
from remotely.machine.task_thread import TaskThread
from remotely.protocol import wire
from remotely.protocol.lease import DRAIN_S
from remotely.protocol.wire import Kind
from remotely.values import codec, sources
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import NOTHING, own

SHUT_DOWN = "this process has left the Ray cluster: it called remotely.shutdown(), or ends"
CANCEL_S = 0.5  # how long a caller waits to learn whether its call was cancelled
_NOTHING_REFERRED = Referred()


class HostMessage(NamedTuple):
    """A message: the same bytes for each actor, and for each attempt."""

    kind: Kind
    name: str
    value: Any  # Encoded; Owned when queued
    referred: Referred = _NOTHING_REFERRED
    stored_buffers: Any = None  # its buffers, if they are in Ray's store already

    def owned(self) -> "HostMessage":
        return self._replace(value=own(self.value, lends=False))


class HostReply:
    """The pending outcome of one call: the receiver of its future."""

    def __init__(self, actor: HostedActor, route: bytes, ref: Any, replies: TaskThread) -> None:
        self.ref = ref  # Ray's, until the outcome arrives; it can be passed on as an argument
        self.life = actor.life
        self._host, self._route = actor.host, route
        self._replies = replies

    def wait(self, future: CallFuture[Any], timeout: float | None) -> None:
        if self._replies.is_own_thread():
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
        with contextlib.suppress(RayError):
            asked = self._host.cancel.remote(self._route, future.call_id)
            if waits and ray.get(asked, timeout=CANCEL_S):
                future.cancel_now()


class HostCalls:
    """Sends messages to hosts, numbered in order, and settles their futures.

    `find` returns the host of an actor, None between two lives, or raises if there is none.  `lost`
    returns the error of a call to a life of an actor, from Ray's error and `may_have_run`.
    """

    def __init__(
        self,
        find: Callable[[HostedActor], Any],
        lost: Callable[[HostedActor, int, RayError, bool], BaseException],
        on_unretrieved: OnUnretrieved,
    ) -> None:
        self._find = find
        self._lost = lost
        self._on_unretrieved = on_unretrieved
        self._pending: set[CallFuture[Any]] = set()
        self._is_closed = False
        self._replies = TaskThread("replies")
        self._queues: SendQueues[HostMessage] = SendQueues(self._leave, lambda *_: None)
        callbacks.lend(self._replies)
        unfinished.watch(self)

    def run_in_background(self, task: Callable[[], object]) -> None:
        """Run a task soon, which must not block.  Any thread may call this at any moment."""
        self._replies.call(functools.partial(_unless_leaving, task))

    def unfinished(self) -> list[str]:
        """Return the names of the submitted calls that were sent.  Takes no lock."""
        return [call.what for call in [*self._pending] if call.is_left_behind]

    def close(self) -> None:
        """Fail every pending call.

        Does not wait for callbacks that take longer than DRAIN_S.
        """
        callbacks.withdraw(self._replies)
        self._queues.close(NotConnected(SHUT_DOWN))
        self._replies.finish(DRAIN_S)
        self._is_closed = True
        self._lose_pending()
        callbacks.users.finish(DRAIN_S)

    def send(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: Encoded,
        background: bool,
        retries: int = 0,
        named: Sequence[NamedReference] = (),
    ) -> list[CallFuture[Any]]:
        """Send one message to each actor; without `background` the caller is about to wait."""
        sources.library.look()
        stored_buffers = put_buffers(encoded) if len(remotes) > 1 else None
        message = HostMessage(kind, name, encoded, Referred(named), stored_buffers)
        if retries:
            message = message.owned()
        nbytes = sum(buffer.nbytes for buffer in encoded.buffers)
        calls: list[tuple[HostedActor, CallFuture[Any]]] = []
        for actor in remotes:
            assert isinstance(actor, HostedActor)
            what = f"{actor.name}.{name}"
            future: CallFuture[Any]
            if retries:
                again = functools.partial(self._queues.add, actor, message)
                future = RetriedFuture(what, actor, again, retries)
            else:
                future = CallFuture(what, actor)
            if encoded.travelling:
                future.travelling = encoded.travelling
            if background and kind is Kind.CALL:
                future.on_unretrieved = self._on_unretrieved
            calls.append((actor, future))
        futures = [future for _, future in calls]
        try:
            if background and kind is Kind.CALL:
                # The thread of the replies makes room.
                may_wait = not self._replies.is_own_thread()
                wait = back_pressure.wait_for_others if may_wait else None
                back_pressure.limits.admit(calls, nbytes, wait)
            for actor, future in calls:
                self._send(actor, message, future, background)
        except BaseException:
            back_pressure.settle_unsent(futures)
            raise
        return futures

    def send_to_new(
        self, actor: HostedActor, message: HostMessage, future: CallFuture[Any]
    ) -> None:
        """Send a message that sets up a new life of an actor."""
        with shield, actor.lock:
            if actor.host is None:
                raise ActorDied(f"{actor.name} was closed during creation", may_have_run=False)
            self._transmit(actor, message, future)

    def stream_of(self, name: str, actor: Any) -> Stream[Any]:
        life = actor.life

        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", actor)
            if actor.life == life:
                self._send(actor, HostMessage(Kind.NEXT, name, NOTHING), future)
            else:  # the next life does not have it, and may have another stream of this name
                why = f"{actor.name} died, and its stream with it"
                future.set_exception(ActorDied(why, may_have_run=False))
            return future

        def end() -> None:
            # In the background: the last reference may be dropped anywhere, even within a call.
            last: CallFuture[Any] = CallFuture("a stream", actor)
            if actor.life == life:
                close = HostMessage(Kind.CLOSE, name, NOTHING)
                self.run_in_background(lambda: self._send(actor, close, last))

        return Stream(ask, end)

    def _send(
        self,
        actor: HostedActor,
        message: HostMessage,
        future: CallFuture[Any],
        background: bool = True,
    ) -> None:
        """Send a message now, or queue it.  If it cannot be sent, the future gets the error.

        With `background` it never blocks; without it, the caller is about to wait anyway.
        """
        try:
            if not background and actor.queue is None:
                actor.wait_until_alive()
                self._find(actor)
            needs = message.referred.needs()
            is_sent = not needs and self._send_if(actor, actor.host, message, future)
        except BaseException as error:
            if is_for_main(error) or not (
                isinstance(error, RemotelyError) or hasattr(error, "of_argument")
            ):
                raise
            future.lose(error.with_traceback(None))  # its frames hold the future (future.py)
            future.run_callbacks()
            return
        if not is_sent:
            self._queues.add(actor, message.owned(), future, needs)

    def _leave(self, call: QueuedCall[HostMessage]) -> None:
        """On a thread of the queue: send the call at its head."""
        actor, message, future = call.actor, call.message, call.future
        assert isinstance(actor, HostedActor)
        actor.wait_until_alive()
        host = self._find(actor)
        try:
            message.referred.refs()
        except Exception as error:  # a future among the arguments has failed
            if call.take():
                future.settle(None, error.with_traceback(None))
                future.run_callbacks()
            return
        self._send_if(actor, host, message, future, call)

    def _send_if(
        self,
        actor: HostedActor,
        host: Any,
        message: HostMessage,
        future: CallFuture[Any],
        call: QueuedCall[HostMessage] | None = None,
    ) -> bool:
        """Send a message if the actor still has this host and it is its turn; return whether."""
        with shield, actor.lock:  # an interrupt between number and message would leave a gap
            if host is None or actor.host is not host or actor.restarting:
                return False
            if call is None and actor.queue is not None:
                return False
            if call is not None and not call.take():
                return False
            if message.kind in (Kind.CALL, Kind.GET, Kind.SET):
                self._send_sources(actor)
            self._transmit(actor, message, future)
        return True

    def _transmit(self, actor: HostedActor, message: HostMessage, future: CallFuture[Any]) -> None:
        """Pass a message to Ray.  The caller holds the actor's lock; the actor has a host.

        1  The number is taken first: the garbage collector may call the same actor from in here.
        2  If Ray does not accept the message, its number never arrives, and later messages would
           wait for it forever; so they take a new route.
        """
        kind, name, encoded, referred, stored_buffers = message
        refs = referred.refs()
        route, actor.number = actor.route, actor.number + 1
        number = actor.number
        try:
            head, *buffers = wire.encode(kind, number, name, encoded.pieces, encoded.buffers)
            sent: list[Any] = [b"".join((route, head))]
            if buffers or refs:
                sent.append(stored_buffers or codec.out_of_band(buffers))
            if refs:
                sent += [referred.names, *(refs if actor.is_serial else [refs])]
            ref = actor.host.do.remote(*sent)
        except BaseException:
            actor.take_new_route()
            raise
        future.call_id = number
        future.receiver = reply = HostReply(actor, route, ref, self._replies)
        self._pending.add(future)

        def on_done(done: Future[Any]) -> None:
            data = done.exception() or done.result()
            self.run_in_background(lambda: self._deliver(actor, reply, future, data))

        ref.future().add_done_callback(on_done)
        if self._is_closed:
            self._lose_pending()

    def _send_sources(self, actor: HostedActor) -> None:
        """Send the modules that an actor may lack."""
        unsent = sources.library.unsent_for(actor, actor.life, actor.sources_sent)
        batches, actor.sources_sent = unsent
        for digest, content in batches:
            value = Encoded((), (memoryview(content),))
            self._transmit(actor, HostMessage(Kind.SOURCES, digest, value), CallFuture("the actor"))

    def _deliver(
        self, actor: HostedActor, reply: HostReply, future: CallFuture[Any], data: Any
    ) -> None:
        """Give a call its outcome: the host's reply, or Ray's error."""
        self._pending.discard(future)  # first: it may be sent again, and be pending again
        reply.ref = None  # Ray keeps the value as long as there is a reference
        try:
            if future.answered:  # it was cancelled
                pass
            elif isinstance(data, RayError):
                future.lose(self._lost(actor, reply.life, data, True))
            elif data in (NOT_RUN, LOST):
                error = RayError("it was closed, or its owner has ended")
                future.lose(self._lost(actor, reply.life, error, data == LOST))
            else:
                message = wire.decode(received(data), "actor")
                future.settle_by(message, self.stream_of, lends=False)
        except Exception as error:  # every call must get an outcome
            future.lose(error.with_traceback(None), may_have_run=True)
        future.run_callbacks()

    def _lose_pending(self) -> None:
        with contextlib.suppress(KeyError):  # another thread may have taken the last one
            while self._pending:
                future = self._pending.pop()
                future.lose(NotConnected(SHUT_DOWN), may_have_run=True)
                future.run_callbacks()


def _unless_leaving(task: Callable[[], object]) -> None:
    with contextlib.suppress(RemotelyError, RayError):  # this process is leaving the cluster
        task()
