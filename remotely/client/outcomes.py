"""What the reply to a call becomes for its caller: a value, a handle, a stream or an error."""

from typing import Any

from remotely.client import delivery
from remotely.client.back_pressure import BackPressure
from remotely.client.shared_memory import Send, SharedMemory
from remotely.futures.future import CallFuture
from remotely.futures.shield import shield
from remotely.futures.stream import Stream, StreamToken
from remotely.objects.placeholders import CancelledPlaceholder, SelfPlaceholder
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.transport.loop import Loop
from remotely.values import arena, codec
from remotely.values.codec import NOTHING
from remotely.values.memory_peer import OutgoingValue

_PLACEHOLDERS = frozenset((StreamToken, SelfPlaceholder, CancelledPlaceholder))


class Outcomes:
    """Gives the calls of one channel their outcomes."""

    def __init__(
        self, back_pressure: BackPressure, memory: SharedMemory, send: Send, loop: Loop
    ) -> None:
        self._back_pressure = back_pressure
        self._memory = memory
        self._send = send
        self._loop = loop

    def deliver(self, future: CallFuture[Any], message: Any) -> None:
        """Give a call its outcome: a `wire.Message`, or the error of one that cannot be opened.

        Do not hold the lock of the channel: this may run the user's code.  Doing it twice is
        harmless.
        """
        if future.nbytes:
            self._back_pressure.settle(future)
        if future.answered:  # by a Deadlock, or before an interrupt
            return
        if isinstance(message, Exception):
            future.settle(None, message)
            return
        if message.buffers and self._memory.may_offer and _is_large(message):
            self._memory.offer()
        try:
            if message.kind is Kind.RESULT:
                value = codec.decode(message.payload, message.buffers)
                if type(value) not in _PLACEHOLDERS:
                    future.settle(value, None)
                elif type(value) is CancelledPlaceholder:
                    future.settle_cancelled()
                else:
                    with shield:  # a stream that is dropped again closes its generator
                        future.settle(self._stand_for(value, future.keep), None)
            else:
                future.settle(None, delivery.error_of(message))
        except Exception as error:  # a value that does not unpickle here
            future.settle(None, delivery.without_frames(error))

    def _stand_for(self, value: StreamToken | SelfPlaceholder, actor: Any) -> object:
        """Return what the caller gets for a placeholder."""
        if isinstance(value, SelfPlaceholder):
            return actor.face(actor)
        return self._stream(value.name, actor)

    def _stream(self, name: str, keep: object) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", keep)
            self._send(Kind.NEXT, name, OutgoingValue(NOTHING), future, background=True)
            return future

        def end() -> None:
            # The last reference may go anywhere, even in the middle of a call: so not here.
            last: CallFuture[Any] = CallFuture("a stream", keep)
            close = lambda: self._send(
                Kind.CLOSE, name, OutgoingValue(NOTHING), last, background=True
            )
            self._loop.call(close)

        return Stream(ask, end)


def _is_large(message: wire.Message) -> bool:
    return sum(map(len, message.buffers)) >= arena.SHARE_FROM_BYTES
