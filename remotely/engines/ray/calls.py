"""How calls leave: each to its host, with a number, and with its large buffers beside it.

A call leaves at once if its actor has a host and no queue; else in its turn, through the queue of
the actor (calling/send_queue.py).  Ray has copied a value when the call has left.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ray

from remotely.calling.actor import unsent_sources
from remotely.calling.send_queue import SendQueues, Turn
from remotely.engines.ray.referred import Referred
from remotely.engines.ray.remote import HostedActor
from remotely.engines.ray.replies import Completions, Lost, Reply
from remotely.errors import ActorDied, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.stream import Stream
from remotely.machine.shield import shield
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec
from remotely.values.codec import Encoded
from remotely.values.owned import NOTHING, Owned, own

PUT_FROM_BYTES = 100_000  # of a value for several actors: Ray copies smaller ones into the call
_NOTHING_REFERRED = Referred()


class Message(NamedTuple):
    """A call that cannot leave at once; the same bytes for each actor, and for each try.

    `beside` are its buffers, if Ray has them already.
    """

    kind: Kind
    name: str
    value: Owned
    referred: Referred = _NOTHING_REFERRED
    beside: Any = None


class Calls:
    """Sends messages to hosts, numbered in their order.

    `find` returns the host of an actor, None between two lives, or raises why there is none.
    """

    def __init__(
        self,
        completions: Completions,
        find: Callable[[HostedActor], Any],
        lost: Callable[[HostedActor, int], Lost],
    ) -> None:
        self._completions = completions
        self._find = find
        self._lost = lost
        self.queues: SendQueues[Message] = SendQueues(self._leave, self._check_wait)

    def send(
        self,
        actor: HostedActor,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        referred: Referred = _NOTHING_REFERRED,
        beside: Any = None,
        background: bool = True,
    ) -> None:
        """Send one message.  If it cannot be sent, the future gets the error.

        Never waits, unless the caller is about to wait: without `background`.
        """
        try:
            if not background and actor.queue is None:
                actor.wait_for_life()
                self._find(actor)
            needs = referred.needs()
            is_sent = not needs and self._send_if(
                actor, actor.host, kind, name, encoded, future, referred, beside
            )
        except BaseException as error:
            if not isinstance(error, RemotelyError) and not hasattr(error, "of_argument"):
                raise
            future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
            future.tell()
            return
        if not is_sent:
            message = Message(kind, name, own(encoded, lends=False), referred, beside)
            self.queues.add(actor, message, future, needs)

    def send_to_new(
        self,
        actor: HostedActor,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        beside: Any = None,
    ) -> None:
        """Send a message that a new life of an actor is made of."""
        with shield, actor.lock:
            if actor.host is None:
                raise ActorDied(f"{actor.name} was closed while it was made", may_have_run=False)
            self._send(actor, actor.host, kind, name, encoded, future, _NOTHING_REFERRED, beside)

    def stream_of(self, name: str, actor: Any) -> Stream[Any]:
        life = actor.life

        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", actor)
            if actor.life == life:
                self.send(actor, Kind.NEXT, name, NOTHING, future)
            else:  # the next life knows nothing of it, and may have another of this name
                why = f"{actor.name} died, and its stream with it"
                future.set_exception(ActorDied(why, may_have_run=False))
            return future

        def end() -> None:
            # The last reference may go anywhere, even in the middle of a call: so not here.
            last: CallFuture[Any] = CallFuture("a stream", actor)
            if actor.life == life:
                self._completions.run(lambda: self.send(actor, Kind.CLOSE, name, NOTHING, last))

        return Stream(ask, end)

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
        if self._send_if(actor, host, *message[:2], message.value, future, *message[3:], turn):
            attend(future)

    def _send_if(
        self,
        actor: HostedActor,
        host: Any,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        referred: Referred,
        beside: Any,
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
            if kind in (Kind.CALL, Kind.GET, Kind.SET):
                self._send_sources(actor)
            self._send(actor, host, kind, name, encoded, future, referred, beside)
        return True

    def _send(
        self,
        actor: HostedActor,
        host: Any,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        referred: Referred,
        beside: Any,
    ) -> None:
        refs = referred.refs()
        # Taken first: the garbage collector, or a signal, may call the same actor from in here.
        actor.number = number = actor.number + 1
        route = actor.route
        try:
            head, *buffers = wire.encode(kind, number, name, encoded.pieces, encoded.buffers)
            data = b"".join((route, head))
            if refs:
                entries = refs if actor.is_serial else [refs]
                large = beside or codec.out_of_band(buffers)
                ref = host.do.remote(data, large, referred.names, *entries)
            elif buffers:
                ref = host.do.remote(data, beside or codec.out_of_band(buffers))
            else:
                ref = host.do.remote(data)
        except BaseException:
            actor.take_new_route()  # this number never arrives
            raise
        future.call_id = number
        future.receiver = Reply(
            future,
            ref,
            host,
            route,
            self._completions,
            self._lost(actor, actor.life),
            self.stream_of,
        )

    def _send_sources(self, actor: HostedActor) -> None:
        """Send the modules that an actor may lack."""
        batches, actor.learnt = unsent_sources(actor, actor.life, actor.learnt)
        for digest, content in batches:
            learnt: CallFuture[None] = CallFuture("the actor")
            encoded = Encoded((), (memoryview(content),))
            self._send(
                actor,
                actor.host,
                Kind.SOURCES,
                digest,
                encoded,
                learnt,
                _NOTHING_REFERRED,
                None,
            )

    def _check_wait(self, actor: HostedActor, future: CallFuture[Any], has_needs: bool) -> None:
        if has_needs and self._completions.is_here():
            raise RemotelyError(
                f"{future.what} cannot be waited for here, in the done-callback of a future: what "
                "it needs is delivered on this very thread. Submit the call and go on, or wait for "
                "it in a thread of your own"
            )


def attend(future: CallFuture[Any]) -> None:
    """Have a future completed that nobody may wait for."""
    if future.receiver is not None:
        future.receiver.receive_in_background()


def put_beside(encoded: Encoded) -> Any:
    """Put the buffers of a value for several actors into Ray's store; None if they are small."""
    if sum(buffer.nbytes for buffer in encoded.buffers) < PUT_FROM_BYTES:
        return None
    return ray.put(codec.out_of_band(encoded.buffers))
