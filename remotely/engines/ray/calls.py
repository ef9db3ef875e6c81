"""How calls leave: each to its host, with a number, and with its large buffers beside it."""

from collections.abc import Callable
from typing import Any

import ray

from remotely.engines.ray.referred import Referred
from remotely.engines.ray.remote import HostedActor
from remotely.engines.ray.replies import Completions, Lost, Reply
from remotely.errors import RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.futures.stream import Stream
from remotely.machine.shield import shield
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, source_library
from remotely.values.codec import NOTHING, Encoded

PUT_FROM_BYTES = 100_000  # of a value for several actors: Ray copies smaller ones into the call
_OF_BIRTHS = frozenset((Kind.PREPARE, Kind.FILE, Kind.INIT))
_NOTHING_REFERRED = Referred()


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

    def send(
        self,
        actor: HostedActor,
        kind: Kind,
        name: str,
        encoded: Encoded,
        future: CallFuture[Any],
        referred: Referred = _NOTHING_REFERRED,
        beside: Any = None,
    ) -> None:
        """Send one message.  If it cannot be sent, the future gets the error.

        `beside` are its buffers, if Ray has them already.
        """
        try:
            referred.refs()  # which may wait
            is_sent = False
            while not is_sent:
                if kind not in _OF_BIRTHS:
                    wakeup.sleep_until(lambda: actor.is_settled, about=actor)
                host = self._find(actor)  # which may wait
                with shield, actor.lock:  # an interrupt between number and message leaves a gap
                    if is_sent := host is not None and actor.host is host:
                        if kind in (Kind.CALL, Kind.GET, Kind.SET):
                            self._send_sources(actor)
                        self._send(actor, host, kind, name, encoded, future, referred, beside)
        except BaseException as error:
            if not isinstance(error, RemotelyError) and not hasattr(error, "of_argument"):
                raise
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
        batches = source_library.library.batches
        while actor.learnt < len(batches):
            digest, content = batches[actor.learnt]
            actor.learnt += 1
            life, there = actor.sent
            if life != actor.life or digest not in there:
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
