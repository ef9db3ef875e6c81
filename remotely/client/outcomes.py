"""How the replies to the calls of one channel reach their futures, wherever the values are."""

from concurrent.futures import Future
from functools import partial
from typing import Any

from remotely.client.bulk_transfer import KeptResult, Stores
from remotely.client.master_session import SHUT_DOWN
from remotely.client.shared_memory import Send, SharedMemory
from remotely.errors import NotConnected, WorkerLost
from remotely.futures.future import CallFuture
from remotely.futures.reference import Elsewhere
from remotely.futures.stream import Stream
from remotely.objects import outcome
from remotely.protocol import wire
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.transport.loop import Loop
from remotely.values import arena, codec
from remotely.values.owned import NOTHING
from remotely.values.payload import OutgoingValue, Parcel, read_loan


class Outcomes:
    """Gives the calls of one channel their outcomes.  `store` is that of the actor's machine."""

    def __init__(
        self,
        memory: SharedMemory,
        send: Send,
        loop: Loop,
        stores: Stores,
        store: StoreAddress | None,
    ) -> None:
        self._memory = memory
        self._send = send
        self._loop = loop
        self._stores = stores
        self._store = store

    def deliver(self, future: CallFuture[Any], message: Any) -> None:
        """Give a call its outcome: a `wire.Message`, or the error of one that cannot be opened.

        Do not hold the lock of the channel: this may run the user's code.  Doing it twice is
        harmless.
        """
        if future.answered:  # before an interrupt
            if isinstance(message, wire.Message) and not isinstance(future.where, Elsewhere):
                self._memory.decline(message)
            return
        if isinstance(message, Exception):
            future.settle(None, message)
            return
        if message.loan:
            self._take_parcel(future, message)
            return
        if message.buffers and self._memory.may_offer and _is_large(message):
            self._memory.offer()
        outcome.settle(future, message, self._stream)

    def _take_parcel(self, future: CallFuture[Any], message: wire.Message) -> None:
        """A result is in a store: fetch it, or leave it there for those it was passed on to."""
        wanted = read_loan(message.loan)
        assert isinstance(wanted, Parcel)
        if future.counted_by is not None:  # its arguments are not in flight any more
            future.counted_by.settle(future)
        if self._store is not None:  # its actor may end before we have fetched it
            self._stores.claim(wanted, self._store)
        if future.is_wanted:
            fetch = partial(self._fetch, future, message)
            self._stores.fetching.run(fetch, instead=partial(_shut_down, future))
            return
        whole = partial(self._ask_for_whole, what=future.what, actor=future.keep, is_last=False)
        future.settle(KeptResult(wanted, future.what, self._stores, whole), None)

    def _fetch(self, future: CallFuture[Any], message: wire.Message) -> None:
        """On a thread for that: fetch the value of a reply, and deliver it."""
        wanted = read_loan(message.loan)
        assert isinstance(wanted, Parcel)
        try:
            payload, buffers = self._stores.fetch(wanted)
        except Exception:  # whatever it is: the actor still has it
            asked = self._ask_for_whole(wanted, future.what, future.keep, is_last=True)
            asked.add_done_callback(partial(self._take_over, future, wanted))
            return
        self._stores.release(wanted)
        self.deliver(future, message._replace(payload=payload, buffers=buffers, loan=b""))
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

    def _ask_for_whole(
        self, wanted: Parcel, what: str, actor: Any, is_last: bool
    ) -> CallFuture[Any]:
        """Have the actor send a result through its own socket.

        It keeps the result, unless this is the last that anybody wants of it.
        """
        future: CallFuture[Any] = CallFuture(what, actor)
        name = wanted.value.hex()
        body = OutgoingValue(codec.Encoded((wire.LAST if is_last else b"",), ()))
        self._send(Kind.WHOLE, name, body, future, background=True)
        return future

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


def _shut_down(future: CallFuture[Any]) -> None:
    future.lose(NotConnected(SHUT_DOWN))
    future.tell()


def _is_large(message: wire.Message) -> bool:
    return sum(map(len, message.buffers)) >= arena.SHARE_FROM_BYTES
