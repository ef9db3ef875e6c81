"""Calls on Ray: how they leave, and how their outcomes arrive.

1  A call leaves at once if its actor has a host and no queue; else in its turn, through the queue
   of the actor (calling/send_queue.py).  It goes to the host with a number, and with its large
   buffers beside it.  Ray has copied a value when the call has left.
2  A thread of Ray's brings the outcome.  It must not run users' code, and unpickling may, so it
   hands over to a thread of ours.
3  That thread settles the future, which wakes whoever waits for it.  It runs no callbacks, so a
   callback may wait for another call.
4  A third thread runs the done-callbacks, one after the other.
5  A loss may have the call sent again (calling/send_queue.py): 1 follows.
"""

import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from remotely.calling.back_pressure import Room
from remotely.calling.send_queue import RetriedFuture, SendQueues, Turn
from remotely.engine import RemoteActor
from remotely.engines.ray.actor import HostedActor
from remotely.engines.ray.host import LOST, NOT_RUN, received
from remotely.engines.ray.stored import Referred, put_beside
from remotely.errors import ActorDied, NotConnected, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.stream import Stream
from remotely.futures.unretrieved import Tell
from remotely.machine.shield import shield
from remotely.protocol import wire
from remotely.protocol.lease import DRAIN_S
from remotely.protocol.wire import Kind
from remotely.values import codec, sources
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import NOTHING, own

log = logging.getLogger("remotely")

SHUT_DOWN = "this process has left the Ray cluster: it called remotely.shutdown(), or ends"
CANCEL_S = 0.5  # how long a caller waits to learn whether its call was taken back
_NOTHING_REFERRED = Referred()


class Message(NamedTuple):
    """A message: the same bytes for each actor, and for each try."""

    kind: Kind
    name: str
    value: Any  # Encoded; Owned before it waits
    referred: Referred = _NOTHING_REFERRED
    beside: Any = None  # its buffers, if Ray has them already

    def owned(self) -> "Message":
        return self._replace(value=own(self.value, lends=False))


class Worker:
    """A thread that does one thing after the other."""

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def close(self, within_s: float) -> None:
        """Do what is left to do; what takes longer is left behind."""
        self._work.put(None)
        if not self.is_here():
            self._thread.join(within_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except (RemotelyError, RayError):  # the cluster is being left
                pass
            except Exception:  # the rest still has to be done
                log.exception("%s failed", self._thread.name)
            del work


class Reply:
    """The outcome that is to come for one call: the receiver of its future."""

    def __init__(self, actor: HostedActor, route: bytes, ref: Any, arrivals: Worker) -> None:
        self.ref = ref  # Ray's, until it is there; passed on meanwhile, it arrives as what it is
        self.life = actor.life
        self._host, self._route = actor.host, route
        self._arrivals = arrivals

    def wait(self, future: CallFuture[Any], timeout: float | None) -> None:
        if self._arrivals.is_here():
            raise RemotelyError(
                f"{future.what} cannot be waited for here, where the outcome of another call is "
                "unpickled: its own outcome would arrive on this very thread"
            )
        future.block(timeout)

    def receive_in_background(self) -> None:
        """It is delivered in any case."""

    def holds(self, future: CallFuture[Any]) -> bool:
        return False

    def recall(self, future: CallFuture[Any]) -> bool:
        return False

    def cancel(self, future: CallFuture[Any], waits: bool) -> bool:
        with contextlib.suppress(RayError):
            asked = self._host.cancel.remote(self._route, future.call_id)
            return waits and bool(ray.get(asked, timeout=CANCEL_S))
        return False


class Calls:
    """Sends messages to hosts, numbered in their order, and settles their futures.

    `find` returns the host of an actor, None between two lives, or raises why there is none; `lost`
    returns the error of a call to a life of an actor, from Ray's and a doubt.
    """

    def __init__(
        self,
        find: Callable[[HostedActor], Any],
        lost: Callable[[HostedActor, int, RayError, bool], BaseException],
        on_unretrieved: Tell,
    ) -> None:
        self._find = find
        self._lost = lost
        self._on_unretrieved = on_unretrieved
        self._pending: set[CallFuture[Any]] = set()
        self._is_closed = False
        self._arrivals = Worker("remotely-replies")
        self._callbacks = Worker("remotely-callbacks")
        self._queues: SendQueues[Message] = SendQueues(self._leave, self._check_wait)
        self.run_soon = self._arrivals.run  # where no caller waits; it must not wait itself

    def close(self) -> None:
        """Give every call an error that has no outcome yet.

        A callback that takes longer than DRAIN_S is left behind.
        """
        self._queues.close(NotConnected(SHUT_DOWN))
        self._arrivals.close(DRAIN_S)
        self._is_closed = True
        self._lose_pending()
        self._callbacks.close(DRAIN_S)

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
        """Send one message to each; without `background` the caller is about to wait."""
        sources.library.look()
        beside = put_beside(encoded) if len(remotes) > 1 else None
        message = Message(kind, name, encoded, Referred(named), beside)
        if retries:
            message = message.owned()
        nbytes = sum(buffer.nbytes for buffer in encoded.buffers)
        futures: list[CallFuture[Any]] = []
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
                actor.back_pressure.wait_for_room(actor, nbytes, Room.block)
                actor.back_pressure.count(future, nbytes, may_wait=True)
            self._send(actor, message, future, background)
            futures.append(future)
        return futures

    def send_to_new(self, actor: HostedActor, message: Message, future: CallFuture[Any]) -> None:
        """Send a message that a new life of an actor is made of."""
        with shield, actor.lock:
            if actor.host is None:
                raise ActorDied(f"{actor.name} was closed while it was made", may_have_run=False)
            self._transmit(actor, message, future)

    def stream_of(self, name: str, actor: Any) -> Stream[Any]:
        life = actor.life

        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", actor)
            if actor.life == life:
                self._send(actor, Message(Kind.NEXT, name, NOTHING), future)
            else:  # the next life knows nothing of it, and may have another of this name
                why = f"{actor.name} died, and its stream with it"
                future.set_exception(ActorDied(why, may_have_run=False))
            return future

        def end() -> None:
            # The last reference may go anywhere, even in the middle of a call: so not here.
            last: CallFuture[Any] = CallFuture("a stream", actor)
            if actor.life == life:
                close = Message(Kind.CLOSE, name, NOTHING)
                self.run_soon(lambda: self._send(actor, close, last))

        return Stream(ask, end)

    def _send(
        self,
        actor: HostedActor,
        message: Message,
        future: CallFuture[Any],
        background: bool = True,
    ) -> None:
        """Send a message now, or have it wait.  If it cannot be sent, the future gets the error.

        Never waits, unless the caller is about to wait: without `background`.
        """
        try:
            if not background and actor.queue is None:
                actor.wait_for_life()
                self._find(actor)
            needs = message.referred.needs()
            is_sent = not needs and self._send_if(actor, actor.host, message, future)
        except BaseException as error:
            if not isinstance(error, RemotelyError) and not hasattr(error, "of_argument"):
                raise
            future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
            future.tell()
            return
        if not is_sent:
            self._queues.add(actor, message.owned(), future, needs)

    def _leave(self, turn: Turn[Message]) -> None:
        """On a thread of the queue: send a call whose turn has come."""
        actor, message, future = turn.actor, turn.message, turn.future
        assert isinstance(actor, HostedActor)
        actor.wait_for_life()
        host = self._find(actor)
        try:
            message.referred.refs()
        except Exception as error:  # of a future among the arguments
            if turn.take():
                future.settle(None, error.with_traceback(None))
                future.tell()
            return
        self._send_if(actor, host, message, future, turn)

    def _send_if(
        self,
        actor: HostedActor,
        host: Any,
        message: Message,
        future: CallFuture[Any],
        turn: Turn[Message] | None = None,
    ) -> bool:
        """Send a message if the actor still lives there, and it is its turn; tell whether."""
        with shield, actor.lock:  # an interrupt between number and message leaves a gap
            if host is None or actor.host is not host or not actor.settled:
                return False
            if turn is None and actor.queue is not None:
                return False
            if turn is not None and not turn.take():
                return False
            if message.kind in (Kind.CALL, Kind.GET, Kind.SET):
                self._send_sources(actor)
            self._transmit(actor, message, future)
        return True

    def _transmit(self, actor: HostedActor, message: Message, future: CallFuture[Any]) -> None:
        """Hand a message to Ray; the lock of the actor is held, and it has a host.

        1  The number is taken first: the garbage collector may call the same actor from in here.
        2  If Ray does not take the message, the number never arrives, and what follows would wait
           for it for ever; so it goes by a new route.
        """
        kind, name, encoded, referred, beside = message
        refs = referred.refs()
        route, actor.number = actor.route, actor.number + 1
        number = actor.number
        try:
            head, *buffers = wire.encode(kind, number, name, encoded.pieces, encoded.buffers)
            sent: list[Any] = [b"".join((route, head))]
            if buffers or refs:
                sent.append(beside or codec.out_of_band(buffers))
            if refs:
                sent += [referred.names, *(refs if actor.is_serial else [refs])]
            ref = actor.host.do.remote(*sent)
        except BaseException:
            actor.take_new_route()
            raise
        future.call_id = number
        future.receiver = reply = Reply(actor, route, ref, self._arrivals)
        self._pending.add(future)

        def hear(done: Future[Any]) -> None:
            data = done.exception() or done.result()
            self._arrivals.run(lambda: self._deliver(actor, reply, future, data))

        ref.future().add_done_callback(hear)
        if self._is_closed:
            self._lose_pending()

    def _send_sources(self, actor: HostedActor) -> None:
        """Send the modules that an actor may lack."""
        batches, actor.learnt = sources.library.unsent_for(actor, actor.life, actor.learnt)
        for digest, content in batches:
            value = Encoded((), (memoryview(content),))
            self._transmit(actor, Message(Kind.SOURCES, digest, value), CallFuture("the actor"))

    def _deliver(
        self, actor: HostedActor, reply: Reply, future: CallFuture[Any], data: Any
    ) -> None:
        """Give a call its outcome: what the host returned, or Ray's error."""
        self._pending.discard(future)  # first: it may be sent again, and be pending anew
        reply.ref = None  # Ray keeps what it has of the value as long as there is a reference
        try:
            if future.answered:
                return
            if isinstance(data, RayError):
                future.lose(self._lost(actor, reply.life, data, True))
            elif data in (NOT_RUN, LOST):
                error = RayError("it was closed, or its owner has ended")
                future.lose(self._lost(actor, reply.life, error, data == LOST))
            else:
                message = wire.decode(received(data), "actor")
                future.settle_by(message, self.stream_of, lends=False)
        except Exception as error:  # it is to have an outcome, whatever it is
            future.lose(error.with_traceback(None))
        if future.has_callbacks:
            self._callbacks.run(future.tell)

    def _lose_pending(self) -> None:
        with contextlib.suppress(KeyError):  # the last may have gone to another thread
            while self._pending:
                future = self._pending.pop()
                future.lose(NotConnected(SHUT_DOWN))
                self._callbacks.run(future.tell)

    def _check_wait(self, actor: HostedActor, future: CallFuture[Any], has_needs: bool) -> None:
        if has_needs and self._callbacks.is_here():
            raise RemotelyError(
                f"{future.what} cannot be waited for here, in the done-callback of a future: that "
                "what it needs is done is told on this very thread. Submit the call and go on, or "
                "wait for it in a thread of your own"
            )
