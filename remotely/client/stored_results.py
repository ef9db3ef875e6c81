"""Results that are in the store of their actor's machine: fetched, or left there to be passed on.

A large result stays in the store until its caller fetches it.  If its future was passed on as an
argument and nobody asks for the value itself, it stays there for longer, as a `KeptResult`.  Where
the store cannot be reached, the actor itself is asked for the whole of it.
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


def take(channel: "Channel", stores: Stores, future: CallFuture[Any], reply: wire.Message) -> None:
    """Fetch a result, or leave it there for those to which it was passed on."""
    wanted = read_loan(reply.loan)
    assert isinstance(wanted, Parcel)
    if future.counted_by is not None:  # its arguments are not in flight any more
        future.counted_by.settle(future)
    if (store := channel.location.store) is not None:
        stores.claim(wanted, store)  # its actor may end before we have fetched it
    if future.needs_value:
        fetch = partial(_fetch, channel, stores, future, reply, wanted)
        stores.fetching.run(fetch, instead=partial(_shut_down, future))
    else:
        future.settle(KeptResult(wanted, future, channel, stores), None)


def _fetch(
    channel: "Channel",
    stores: Stores,
    future: CallFuture[Any],
    reply: wire.Message,
    wanted: Parcel,
) -> None:
    """On a thread for that: fetch the value of a reply, and deliver it."""
    try:
        payload, buffers = stores.fetch(wanted)
    except Exception:  # whatever it is: the actor still has it
        asked = _ask_for_whole(channel, wanted, future.what, future.actor, is_last=True)
        asked.add_done_callback(partial(_take_over, stores, future, wanted))
        return
    stores.release(wanted)
    channel.deliver(future, reply._replace(payload=payload, buffers=buffers, loan=b""))
    future.run_callbacks()


def _ask_for_whole(
    channel: "Channel", wanted: Parcel, what: str, actor: Any, is_last: bool
) -> CallFuture[Any]:
    """Have the actor send a result through its own socket.

    It keeps the result, unless this is the last that anybody wants of it.
    """
    future: CallFuture[Any] = CallFuture(what, actor)
    body = codec.Encoded((wire.LAST if is_last else b"",), ())
    channel.send(Kind.WHOLE, wanted.value.hex(), body, future, background=True)
    return future


def _take_over(stores: Stores, future: CallFuture[Any], wanted: Parcel, asked: Future[Any]) -> None:
    """Give a call the outcome of the question for its whole result."""
    stores.release(wanted)  # not before: the actor has it only as long as the store
    error = asked.exception()
    if error is None:
        future.settle(asked.result(), None)
    else:
        why = (
            f"{future.what} has run, but its actor or its machine was lost before the result "
            "was fetched"
        )
        future.lose(WorkerLost(why, may_have_run=True))
    future.run_callbacks()


class KeptResult(StoredResult):
    """A result that stays in its store, which lets it go when this object is gone."""

    def __init__(
        self, parcel: Parcel, future: CallFuture[Any], channel: "Channel", stores: Stores
    ) -> None:
        self._parcel = parcel
        self._what = future.what
        self._actor = future.actor
        self._channel = channel
        self._stores = stores

    def __del__(self) -> None:
        self._stores.release(self._parcel)

    def entry(self) -> InStore:
        """Return what arrives elsewhere as the value."""
        return InStore(self._parcel)

    def fetch(self) -> Any:
        try:
            return codec.decode(*self._stores.fetch(self._parcel))
        except (OSError, ValueGone) as error:
            why = str(error)
        whole = _ask_for_whole(self._channel, self._parcel, self._what, self._actor, is_last=False)
        try:
            return whole.result()
        except RemotelyError:
            raise ActorDied(
                f"the result of {self._what} is lost, since it was not fetched before: {why}",
                may_have_run=True,
            ) from None


def _shut_down(future: CallFuture[Any]) -> None:
    future.lose(NotConnected(SHUT_DOWN))
    future.run_callbacks()
