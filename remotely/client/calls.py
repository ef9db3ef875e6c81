"""How calls leave a client: pickled once, and sent through the channel of each actor.

    at once       on the thread of the caller, if nothing is in the way.  The value is lent: what is
                  sent is a copy of it by the time that `send` returns
    in its turn   through the queue of its actor (calling/send_queue.py), if calls wait there, if
                  arguments have to cross or to be done first, or if the actor has no connection and
                  the caller does not wait.  Then the value is Owned

A value that is large, and for another machine, crosses before its call leaves (bulk_transfer.py):
in the background, unless its caller waits.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from remotely.calling.back_pressure import Room
from remotely.calling.retries import RetriedFuture
from remotely.calling.send_queue import SendQueues, Turn
from remotely.calling.sources import unsent
from remotely.client.actor_state import ActorState
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.channel import Channel
from remotely.client.channels import Channels
from remotely.client.master_session import SHUT_DOWN, MasterSession
from remotely.client.message import Message
from remotely.engine import RemoteActor
from remotely.errors import NotConnected, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.unretrieved import Tell
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, sources
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.owned import own
from remotely.values.payload import SEND_FROM_BYTES, OutgoingValue
from remotely.values.references import Named


class Calls:
    """Sends calls to actors.  `on_unretrieved` hears of errors that nobody has looked at."""

    def __init__(
        self, session: MasterSession, channels: Channels, stores: Stores, on_unretrieved: Tell
    ) -> None:
        self._session = session
        self._channels = channels
        self._stores = stores
        self._queues: SendQueues[Message] = SendQueues(self._leave, channels.check_wait)
        self._on_unretrieved = on_unretrieved  # bound once, not with each call

    def send(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: codec.Encoded,
        background: bool,
        retries: int = 0,
        named: Sequence[Named] = (),
    ) -> list[CallFuture[Any]]:
        """Send one call to each actor.  Without `background` the caller is about to wait.

        `named` are the futures and refs among its arguments.
        """
        self._session.check()
        sources.library.look()
        if named or retries:
            encoded = own(encoded)
        transfer = None
        if encoded.nbytes >= SEND_FROM_BYTES and not named:
            encoded, transfer = self._begin_transfer(remotes, encoded, background)
        outgoing = OutgoingValue(encoded, len(remotes) > 1, (transfer,) if transfer else ())
        may_leave = not named and (transfer is None or transfer.done.done())
        message = self._message(remotes, kind, name, outgoing, named) if named or retries else None
        futures = []
        try:
            for remote in remotes:
                assert isinstance(remote, ActorState)
                future: CallFuture[Any]
                what = f"{remote.name}.{name}"
                if message is not None and retries:
                    again = functools.partial(self._queues.add, remote, message)
                    future = RetriedFuture(what, remote, again, retries)
                else:
                    future = CallFuture(what, remote)
                if encoded.travelling:
                    future.travelling = encoded.travelling
                if background and kind is Kind.CALL:
                    future.on_unretrieved = self._on_unretrieved
                if transfer is not None:
                    future.needs = transfer
                channel = remote.channel
                if not may_leave or remote.queue is not None:
                    channel = None
                elif (channel is None or not channel.is_open) and not background:
                    channel = self._open_for(remote, future)
                is_sent = False
                if channel is not None and channel.is_open:
                    if channel.sources_sent < len(sources.library.batches):
                        _send_sources(remote, channel)
                    is_sent = channel.send(kind, name, outgoing, future, background, True)
                if not is_sent and not future.done() and future.receiver is None:
                    if message is None:
                        message = self._message(remotes, kind, name, outgoing, named)
                    if background or not self._send_if_ready(remote, message, future):
                        self._send_in_turn(remote, message, future, background)
                futures.append(future)
        finally:
            outgoing.close()
        return futures

    def is_any_elsewhere(self, remotes: Sequence[RemoteActor]) -> bool:
        """Tell whether large values cross to another machine for any of these."""
        return bool(self._stores_of(remotes))

    def close(self) -> None:
        """Fail the calls that have not left."""
        self._queues.close(NotConnected(SHUT_DOWN))

    def _open_for(self, actor: ActorState, future: CallFuture[Any]) -> Channel | None:
        """Connect to an actor for a caller who waits; None if that has to wait for its turn, or if
        the call cannot be sent, and has the error."""
        if not self._channels.may_wait() and actor.ended is None:
            return None
        try:
            return self._channels.of(actor)
        except RemotelyError as error:
            future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
            future.tell()
            return None

    # --- calls that cannot leave at once ----------------------------------------------------------

    def _message(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        named: Sequence[Named],
    ) -> Message:
        stores = self._stores_of(remotes)
        message = Message(
            kind,
            name,
            own(outgoing.encoded),
            named,
            outgoing.transfers,
            functools.partial(self._ship, stores),
        )
        for ref in message.refs:
            self._stores.bring(ref, stores)
        return message

    def _send_in_turn(
        self, actor: ActorState, message: Message, future: CallFuture[Any], background: bool
    ) -> None:
        """Have a call leave as soon as it may."""
        if not background:
            self._channels.check_wait(actor, future)
        may_wait = background and message.kind is Kind.CALL and self._channels.may_wait()
        nbytes = message.value.nbytes
        if may_wait:
            actor.back_pressure.wait_for_room(actor, nbytes, Room.block)
        try:
            if nbytes >= SHARE_FROM_BYTES:
                actor.back_pressure.count(future, nbytes, may_wait)
            future.needs = message
            needs = message.needs(self._channels.store_of(actor))
            self._queues.add(actor, message, future, needs)
        except BaseException:  # we are interrupted
            if future.receiver is None:
                actor.back_pressure.settle(future)
            raise

    def _send_if_ready(self, actor: ActorState, message: Message, future: CallFuture[Any]) -> bool:
        """Send a call of a caller who waits, if nothing is in its way; return whether that is
        done."""
        needs = message.needs(self._channels.store_of(actor))
        channel = actor.channel
        if actor.queue is not None or channel is None or not all(need.done() for need in needs):
            return False
        return self._send_message(channel, actor, message, future, False) is not False

    def _leave(self, turn: Turn[Message]) -> None:
        """On a thread of the queue: send a call whose turn has come."""
        actor = turn.actor
        assert isinstance(actor, ActorState)
        channel = self._channels.of(actor)
        is_sent = self._send_message(channel, actor, turn.message, turn.future, True, turn.take)
        if is_sent:
            channel.receive_soon()
        elif is_sent is False:
            turn.give_back()

    def _send_message(
        self,
        channel: Channel,
        actor: ActorState,
        message: Message,
        future: CallFuture[Any],
        background: bool,
        may_leave: Callable[[], bool] = lambda: True,
    ) -> bool | None:
        """Send what needs nothing any more.

        Return whether it was; None if it may not leave, or has an outcome.
        """
        store, is_apart = self._channels.store_of(actor), self._channels.is_apart(actor)
        try:
            outgoing = message.outgoing_to(store, is_apart and self._channels.may_wait())
        except BaseException as error:  # of a future among the arguments
            if may_leave():
                future.settle(None, error.with_traceback(None))
                future.tell()
            return None
        if not channel.is_open:
            return False
        if not may_leave():
            return None
        future.needs = message
        if channel.sources_sent < len(sources.library.batches):
            _send_sources(actor, channel)
        return channel.send(message.kind, message.name, outgoing, future, background, True)

    # --- large values for other machines ----------------------------------------------------------

    def _stores_of(self, remotes: Sequence[RemoteActor]) -> list[StoreAddress]:
        """Return the stores of the machines of these actors, but for this machine."""
        stores = [self._channels.store_of(r) for r in remotes if isinstance(r, ActorState)]
        return [store for store in stores if store is not None]

    def _begin_transfer(
        self, remotes: Sequence[RemoteActor], encoded: codec.Encoded, background: bool
    ) -> tuple[codec.Encoded, BulkTransfer | None]:
        """Begin to bring a large value to the machines of these actors, if there is need to.

        Without `background` it is there when this returns; else what is returned is Owned.
        """
        stores = self._stores_of(remotes)
        if not stores or not (background or self._channels.may_wait()):
            return encoded, None
        if background:
            encoded = own(encoded)
        transfer = self._stores.transfer(encoded, stores)
        if transfer is None:
            return encoded, None
        if background:
            self._stores.threads.run(transfer.run)
        else:
            transfer.run()
        return encoded, transfer

    def _ship(
        self, others: Sequence[StoreAddress], outgoing: OutgoingValue, store: StoreAddress | None
    ) -> None:
        """Bring a large value to the machine of an actor that is called, and with it to those of
        the others, unless this thread may not wait.  It is there when this returns."""
        is_small = outgoing.nbytes < SEND_FROM_BYTES
        if store is None or is_small or not self._channels.may_wait():
            return
        lacking = [s for s in (store, *others) if not any(t.covers(s) for t in outgoing.transfers)]
        if store in lacking and (transfer := self._stores.transfer(outgoing.encoded, lacking)):
            outgoing.transfers = (*outgoing.transfers, transfer)
            transfer.run()


def _send_sources(actor: ActorState, channel: Channel) -> None:
    """Send the modules that an actor may lack."""
    batches, total = unsent(actor, channel.location.life, channel.sources_sent)
    for digest, content in batches:
        outgoing = OutgoingValue(codec.Encoded((), (memoryview(content),)))
        learnt: CallFuture[None] = CallFuture("the actor")
        channel.send(Kind.SOURCES, digest, outgoing, learnt, background=True)
        outgoing.close()
    channel.sources_sent = total
