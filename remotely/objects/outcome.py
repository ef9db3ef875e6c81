"""The outcome of a call for its caller: a value, a handle, a stream or an error."""

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from remotely.errors import RemoteTraceback
from remotely.futures.future import CallFuture
from remotely.futures.stream import Stream, StreamToken
from remotely.machine.shield import shield
from remotely.objects.placeholders import CancelledPlaceholder, SelfPlaceholder
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.values import codec, raised_error
from remotely.values.owned import own

_PLACEHOLDERS = frozenset((StreamToken, SelfPlaceholder, CancelledPlaceholder))

# Takes the name of a stream and the actor that has it, and returns the stream.
StreamOf = Callable[[str, Any], Stream[Any]]


def settle(
    future: CallFuture[Any], message: wire.Message, stream_of: StreamOf, lends: bool = True
) -> None:
    """Give a call its outcome, from the RESULT or RAISED that answers it; `lends` as in `own`."""
    try:
        if message.kind is Kind.RESULT:
            value = codec.decode(message.payload, message.buffers)
            if type(value) not in _PLACEHOLDERS:
                if future.stays:  # it is passed on as it came, whatever its caller does to it
                    with suppress(Exception):  # then the call that it is an argument of tells why
                        future.kept = own(codec.encode(value), lends=lends)
                future.settle(value, None)
            elif type(value) is CancelledPlaceholder:
                future.settle_cancelled()
            elif type(value) is SelfPlaceholder:
                actor: Any = future.keep
                future.settle(actor.face(actor), None)
            else:
                with shield:  # a stream that is dropped again closes its generator
                    future.settle(stream_of(value.name, future.keep), None)
        else:
            future.settle(None, raised_error.unpack(message.payload, message.buffers[0]))
    except Exception as error:  # a value that does not unpickle here
        future.settle(None, without_frames(error))


def without_frames(error: BaseException) -> BaseException:
    """Keep a traceback as text only: its frames hold the future; see future.py."""
    if error.__cause__ is None:
        error.__cause__ = RemoteTraceback("".join(traceback.format_exception(error)))
    return error.with_traceback(None)
