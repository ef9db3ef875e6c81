"""How calls leave: each to its host, with a number, and with its large buffers beside it."""

from collections.abc import Callable, Sequence
from typing import Any

import ray

from remotely.engines.ray.put import PlasmaRef
from remotely.engines.ray.remote import HostedActor
from remotely.engines.ray.replies import Completions, Lost, Reply
from remotely.errors import RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.futures.shield import shield
from remotely.futures.stream import Stream
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, source_library
from remotely.values.codec import NOTHING, Encoded
from remotely.values.references import Named

PUT_FROM_BYTES = 100_000  # of a value for several actors: Ray copies smaller ones into the call
_OF_BIRTHS = frozenset((Kind.PREPARE, Kind.FILE, Kind.INIT))


class Calls:
    """Sends messages to hosts, numbered in their order.

    `find` returns the host of an actor, or raises why there is none.
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

    def send(
        self,
        actor: HostedActor,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        named: Sequence[Named] = (),
        beside: Any = None,
    ) -> None:
        """Send one message.  If there is no host, the future gets the error.

        `beside` are its buffers, if Ray has them already.
        """
        try:
            if kind not in _OF_BIRTHS:
                wakeup.sleep_until(lambda: actor.is_settled, about=actor)
            with shield, actor.lock:  # an interrupt between a number and its message leaves a gap
                host = self._find(actor)
                if kind in (Kind.CALL, Kind.GET, Kind.SET):
                    self._send_sources(actor)
                self._send(actor, host, kind, name, encoded, future, named, beside)
        except RemotelyError as error:
            future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
            future.tell()

    def _send(
        self,
        actor: HostedActor,
        host: Any,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        named: Sequence[Named],
        beside: Any,
    ) -> None:
        refs = [_ref_of(thing) for thing, _ in named]
        words = [name for _, name in named]
        # Taken first: the garbage collector, or a signal, may call the same actor from in here.
        actor.number = number = actor.number + 1
        route = actor.route
        try:
            head, *buffers = wire.encode(kind, number, name, encoded.pieces, encoded.buffers)
            data = b"".join((route, head))
            if refs:
                ref = host.do.remote(data, beside or codec.out_of_band(buffers), refs, words)
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
        batches = source_library.library.batches
        while actor.learnt < len(batches):
            digest, content = batches[actor.learnt]
            actor.learnt += 1
            life, there = actor.sent
            if life != actor.life or digest not in there:
                learnt: CallFuture[None] = CallFuture("the actor")
                encoded = Encoded((), (memoryview(content),))
                self._send(actor, actor.host, Kind.SOURCES, digest, encoded, learnt, (), None)
        digests = frozenset(batch.digest for batch in batches)
        if actor.sent != (actor.life, digests):
            actor.sent = actor.life, digests

    def stream_of(self, name: str, actor: Any) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", actor)
            self.send(actor, Kind.NEXT, name, NOTHING, future)
            return future

        def end() -> None:
            # The last reference may go anywhere, even in the middle of a call: so not here.
            last: CallFuture[Any] = CallFuture("a stream", actor)
            self._completions.run(lambda: self.send(actor, Kind.CLOSE, name, NOTHING, last))

        return Stream(ask, end)


def put_beside(encoded: Encoded) -> Any:
    """Put the buffers of a value for several actors into Ray's store; None if they are small."""
    if sum(buffer.nbytes for buffer in encoded.buffers) < PUT_FROM_BYTES:
        return None
    return ray.put(codec.out_of_band(encoded.buffers))


def _ref_of(thing: Any) -> Any:
    """Return Ray's reference to what an argument refers to."""
    if isinstance(thing, PlasmaRef):
        return thing.ref
    assert isinstance(thing, CallFuture)
    if isinstance(thing.receiver, Reply):
        return thing.receiver.ref
    return PlasmaRef(codec.encode(thing.result())).ref  # of another engine, or settled by hand
