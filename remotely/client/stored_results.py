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
from remotely.futures.reference import Elsewhere
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.transport.bulk import ValueGone
from remotely.values import codec
from remotely.values.payload import Parcel, read_loan
from remotely.values.references import InStore

if TYPE_CHECKING:
    from remotely.client.channel import Channel


class StoredResults:
    """The results of one channel that are in a store."""

    def __init__(self, channel: "Channel", stores: Stores) -> None:
        self._channel = channel
        self._stores = stores

    def take(self, future: CallFuture[Any], reply: wire.Message) -> None:
        """Fetch a result, or leave it there for those to which it was passed on."""
        wanted = read_loan(reply.loan)
        assert isinstance(wanted, Parcel)
        if future.counted_by is not None:  # its arguments are not in flight any more
            future.counted_by.settle(future)
        if (store := self._channel.location.store) is not None:
            self._stores.claim(wanted, store)  # its actor may end before we have fetched it
        if future.is_wanted:
            fetch = partial(self._fetch, future, reply, wanted)
            self._stores.fetching.run(fetch, instead=partial(_shut_down, future))
        else:
            future.settle(KeptResult(wanted, future, self, self._stores), None)

    def ask_for_whole(
        self, wanted: Parcel, what: str, actor: Any, is_last: bool
    ) -> CallFuture[Any]:
        """Have the actor send a result through its own socket.

        It keeps the result, unless this is the last that anybody wants of it.
        """
        future: CallFuture[Any] = CallFuture(what, actor)
        body = codec.Encoded((wire.LAST if is_last else b"",), ())
        self._channel.send(Kind.WHOLE, wanted.value.hex(), body, future, background=True)
        return future

    def _fetch(self, future: CallFuture[Any], reply: wire.Message, wanted: Parcel) -> None:
        """On a thread for that: fetch the value of a reply, and deliver it."""
        try:
            payload, buffers = self._stores.fetch(wanted)
        except Exception:  # whatever it is: the actor still has it
            asked = self.ask_for_whole(wanted, future.what, future.keep, is_last=True)
            asked.add_done_callback(partial(self._take_over, future, wanted))
            return
        self._stores.release(wanted)
        self._channel.deliver(future, reply._replace(payload=payload, buffers=buffers, loan=b""))
        future.tell()

    def _take_over(self, future: CallFuture[Any], wanted: Parcel, asked: Future[Any]) -> None:
        """Give a call the outcome of the question for its whole result."""
        self._stores.release(wanted)  # not before: the actor has it only as long as the store
        error = asked.exception()
        if error is None:
            future.settle(asked.result(), None)
        else:
            why = (
                f"{future.what} has run, but its actor or its machine was lost before the result "
                "was fetched"
            )
            future.lose(WorkerLost(why, may_have_run=True))
        future.tell()


class KeptResult(Elsewhere):
    """A result that stays in its store, which lets it go when this object is gone."""

    def __init__(
        self, parcel: Parcel, future: CallFuture[Any], results: StoredResults, stores: Stores
    ) -> None:
        self._parcel = parcel
        self._what = future.what
        self._actor = future.keep
        self._results = results
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
        whole = self._results.ask_for_whole(self._parcel, self._what, self._actor, is_last=False)
        try:
            return whole.result()
        except RemotelyError:
            raise ActorDied(
                f"the result of {self._what} is lost, since it was not fetched before: {why}",
                may_have_run=True,
            ) from None


def _shut_down(future: CallFuture[Any]) -> None:
    future.lose(NotConnected(SHUT_DOWN))
    future.tell()
