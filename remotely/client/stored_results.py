"""Results in the store of their actor's machine: fetched, or left there to be passed on.

A large result stays in the store until its caller fetches it.  If its future was passed on as an
argument and the value is not needed here, it stays longer, as a `KeptResult`.  If the store is
unreachable, the actor itself sends the whole value.
"""

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from remotely.client.bulk_transfer import Stores
from remotely.client.master_session import SHUT_DOWN
from remotely.errors import ActorDied, NotConnected, RemotelyError, WorkerLost
from remotely.futures.future import CallFuture
from remotely.futures.reference import StoredResult
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.transport.bulk import ValueGone
from remotely.values import codec
from remotely.values.payload import Parcel, read_loan
from remotely.values.references import InStore

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
    if (store := channel.location.store) is not None:
        stores.claim(wanted, store)  # the actor may end before the result is fetched
    if future.needs_value:
        fetch = partial(_fetch, channel, stores, future, reply, wanted)
        instead = partial(_fail, future, NotConnected(SHUT_DOWN))
        stores.fetch_in_background(wanted, fetch, instead)
    else:
        future.settle(KeptResult(wanted, future, channel, stores), None)


def _fetch(
    channel: "Channel",
    stores: Stores,
    future: CallFuture[Any],
    reply: wire.Message,
    wanted: Parcel,
) -> None:
    """On a fetching thread: fetch the value of a reply, and deliver it."""
    try:
        payload, buffers = stores.fetch(wanted)
    except Exception:  # in any case, the actor still has the value
        whole = _request_whole(channel, wanted, future.what, future.actor, is_last=True)
        whole.then(partial(_settle_by_whole, stores, future, wanted))
        return
    stores.release(wanted)
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


def _settle_by_whole(
    stores: Stores, future: CallFuture[Any], wanted: Parcel, whole: Future[Any]
) -> None:
    """Settle a call by what `_request_whole` returned."""
    stores.release(wanted)  # not before: the actor has it only as long as the store
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


class KeptResult(StoredResult):
    """A result that stays in its store until this object is deleted."""

    def __init__(
        self, parcel: Parcel, future: CallFuture[Any], channel: "Channel", stores: Stores
    ) -> None:
        self._parcel = parcel
        self._what = future.what
        self._actor = future.actor
        self._channel = channel
        self._stores = stores
        self._is_coming = False

    def __del__(self) -> None:
        self._stores.release(self._parcel)

    def entry(self) -> InStore:
        return InStore(self._parcel)

    def bring(self, future: CallFuture[Any]) -> None:
        if not self._is_coming:
            self._is_coming = True
            self._stores.fetch_in_background(self._parcel, future.bring, future.bring)

    def fetch(self) -> Any:
        try:
            return codec.decode(*self._stores.fetch(self._parcel))
        except (OSError, ValueGone) as error:
            why = str(error)
        whole = _request_whole(self._channel, self._parcel, self._what, self._actor, is_last=False)
        try:
            return whole.result()
        except RemotelyError:
            raise ActorDied(
                f"the result of {self._what} is lost, because it was not fetched earlier: {why}",
                may_have_run=True,
            ) from None
