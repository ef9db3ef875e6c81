"""Results in the store of their actor's machine: fetched, or left there to be passed on.

A large result stays in the store until its caller fetches it.  If its future was passed on as an
argument and the value is not needed here, it stays longer, as a `StoredResult`.  If the store is
unreachable, the actor itself sends the whole value.

In both cases it is this process's as long as its `RemoteValue` exists.
"""

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from remotely.client.bulk_transfer import RemoteValue, Stores
from remotely.errors import SHUT_DOWN, NotConnected, RemotelyError, WorkerLost
from remotely.futures.future import CallFuture
from remotely.futures.reference import StoredResult
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.transport.bulk import ValueGone
from remotely.values import codec
from remotely.values.payload import Parcel, read_loan

if TYPE_CHECKING:
    from remotely.client.channel import Channel


def receive(
    channel: "Channel", stores: Stores, future: CallFuture[Any], reply: wire.Message
) -> None:
    """Fetch a stored result, or leave it in the store for the calls to which it was passed on."""
    wanted = read_loan(reply.loan)
    assert isinstance(wanted, Parcel)
    if future.counted_by is not None:  # its arguments are no longer in flight
        future.counted_by.settle(future)
    value = stores.claim(wanted, channel.location.store)  # the actor may end before it is fetched
    if future.needs_value:
        fetch = partial(_fetch, channel, stores, future, reply, value)
        instead = partial(_fail, future, NotConnected(SHUT_DOWN))
        stores.fetch_in_background(value, fetch, instead)
    else:
        fetch = partial(_fetch_later, channel, stores, future.what, future.actor, value)
        stored = StoredResult(wanted, fetch, partial(stores.fetch_in_background, value))
        future.settle(stored, None)


def _fetch(
    channel: "Channel",
    stores: Stores,
    future: CallFuture[Any],
    reply: wire.Message,
    value: RemoteValue,
) -> None:
    """On a fetching thread: fetch the value of a reply, and deliver it."""
    try:
        payload, buffers = stores.fetch(value)
    except Exception:  # in any case, the actor still has the value
        whole = _request_whole(channel, value.parcel, future.what, future.actor, is_last=True)
        whole.then(partial(_settle_by_whole, future, value))
        return
    channel.deliver(future, reply._replace(payload=payload, buffers=buffers, loan=b""))
    future.run_callbacks()


def _request_whole(
    channel: "Channel", wanted: Parcel, what: str, actor: Any, is_last: bool
) -> CallFuture[Any]:
    """Ask the actor to send a result through its own socket.

    The actor keeps the result, unless this is the last request for it.
    """
    future: CallFuture[Any] = CallFuture(what, actor)
    body = codec.Encoded((wire.LAST if is_last else b"",), ())
    channel.send(Kind.WHOLE, wanted.value.hex(), body, future, background=True)
    return future


def _settle_by_whole(future: CallFuture[Any], _: RemoteValue, whole: Future[Any]) -> None:
    """Settle a call by what `_request_whole` returned; until then the value must not be released.

    The actor has it only as long as the store.
    """
    if whole.exception() is not None:
        why = (
            f"{future.what} has run, but its actor or its machine was lost before the result "
            "was fetched"
        )
        _fail(future, WorkerLost(why, may_have_run=True))
        return
    future.settle(whole.result(), None)
    future.run_callbacks()


def _fail(future: CallFuture[Any], error: RemotelyError) -> None:
    future.lose(error, may_have_run=True)  # it has
    future.run_callbacks()


def _fetch_later(
    channel: "Channel", stores: Stores, what: str, actor: Any, value: RemoteValue
) -> Any:
    """Return a result that was left in its store."""
    try:
        return codec.decode(*stores.fetch(value))
    except (OSError, ValueGone) as error:
        why = str(error)
    whole = _request_whole(channel, value.parcel, what, actor, is_last=False)
    try:
        return whole.result()
    except RemotelyError:
        raise WorkerLost(f"the result of {what} is lost: {why}", may_have_run=True) from None
