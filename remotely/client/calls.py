"""Calls on their way out of a client: pickled once, and sent through the channel of each actor.

    at once       on the thread of the caller, if nothing is in the way.  The value is lent: what is
                  sent is a copy of it by the time that `send` returns
    in its turn   through the queue of its actor (calling/send_queue.py), if calls wait there, if
                  arguments have to cross or to be done first, or if the actor has no connection and
                  the caller does not wait.  Then the value is Owned, in a `Message`

A value that is large, and for another machine, crosses before its call leaves (bulk_transfer.py):
in the background, unless its caller waits.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

from remotely.calling.back_pressure import Room
from remotely.calling.send_queue import RetriedFuture, SendQueues, Turn
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.channel import Channel, refuse_in_call
from remotely.client.channels import ActorState, Channels
from remotely.client.master_session import SHUT_DOWN, MasterSession
from remotely.client.ref import Ref
from remotely.engine import Prepared, RemoteActor
from remotely.errors import NotConnected, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.reference import Elsewhere
from remotely.futures.unretrieved import Tell
from remotely.machine.shield import RLock
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, references
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import NOTHING, Owned, own
from remotely.values.payload import SEND_FROM_BYTES, OutgoingValue, Transfer
from remotely.values.references import InStore, Referring
from remotely.values.sources import library
from remotely.values.unpicklable import PartNames


class Message:
    """A call that cannot leave at once: the same bytes for each actor, and for each try.

    Its arguments were pickled when it was made.  What they refer to (values/references.py) is put
    in their place when it leaves:

        a future     its value as it came, or as it is now if it has come before; or where the value
                     is, if it has stayed there: to an actor that may reach no store, it goes itself
        a large ref  where it is in the store of the actor's machine, to which it has crossed before

    named       what the arguments refer to, of which `refs` are the refs
    transfers   that bring a large value to other machines, as far as they have begun
    ship        brings what is sent to the machine of an actor, if it is large and not there
    """

    def __init__(
        self,
        kind: Kind,
        name: str,
        value: Owned,
        named: Sequence[NamedReference],
        transfers: Sequence[Transfer],
        ship: Callable[[OutgoingValue, StoreAddress | None], None],
    ) -> None:
        self.kind = kind
        self.name = name
        self.value = value
        self.refs = [thing for thing, _ in named if isinstance(thing, Ref)]
        self._futures = [thing for thing, _ in named if isinstance(thing, CallFuture)]
        self._named = named
        self._transfers = transfers
        self._ship = ship
        self._lock = RLock()
        self._kept: list[Elsewhere] = []  # what is not to be released before the call has run
        # By the number of the future, and whether the actor is apart.
        self._values: dict[tuple[int, bool], Any] = {}
        self._made: dict[tuple[bytes, ...], OutgoingValue] = {}
        for number, (thing, _) in enumerate(named):
            if not isinstance(thing, CallFuture):
                continue
            thing.stays = True
            if thing.done() and thing.kept is None and not isinstance(thing.where, Elsewhere):
                with suppress(Exception):  # it is told when the call is to leave
                    arriving = _arriving(thing.result())
                    self._values[number, True] = self._values[number, False] = arriving

    def __del__(self) -> None:
        for made in vars(self).get("_made", {}).values():  # none yet, if we were interrupted
            made.close()

    def needs(self, store: StoreAddress | None) -> list[Future[Any]]:
        """Return what has to be done before it leaves for an actor there."""
        transfers = [*self._transfers, *(t for ref in self.refs for t in ref.transfers)]
        here = [t.done for t in transfers if store is not None and t.covers(store)]
        return [*self._futures, *here]

    def outgoing_to(self, store: StoreAddress | None, is_apart: bool = False) -> OutgoingValue:
        """Return what to send to an actor there; if it `is_apart`, with the values themselves.

        Raises the error of a future that failed.
        """
        with self._lock:
            entries = [
                self._entry(i, thing, name, store, is_apart)
                for i, (thing, name) in enumerate(self._named)
            ]
            kind = tuple(entry.name if isinstance(entry, InStore) else b"" for entry in entries)
            if (made := self._made.get(kind)) is None:
                value = self.value
                if entries:
                    value = own(codec.encode(Referring(value, entries), self.name))
                made = self._made[kind] = OutgoingValue(value, True, self._transfers)
            if not is_apart:
                self._ship(made, store)
            return made

    def _entry(
        self, number: int, thing: Any, name: str, store: StoreAddress | None, is_apart: bool
    ) -> Any:
        if isinstance(thing, Ref):
            return thing.entry_at(store)
        key = number, is_apart
        if key not in self._values:
            self._values[key] = self._value_of(thing, name, is_apart)
        return self._values[key]

    def _value_of(self, future: CallFuture[Any], name: str, is_apart: bool) -> Any:
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        if error is not None:
            raise references.of_argument(error, name)
        kept = future.kept or future.where
        if isinstance(kept, Owned):
            return Referring(kept)
        if not isinstance(kept, Elsewhere):
            return _arriving(kept)
        if is_apart:
            return kept.fetch()
        self._kept.append(kept)
        return kept.entry()


def _arriving(value: Any) -> Referring:
    """Return what arrives as the value is now."""
    return Referring(own(codec.encode(value)))


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

    # --- the verbs of the seam that send ----------------------------------------------------------

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        encoded, named = codec.encode_arguments(remotes, method, args, kwargs)
        return self.send(remotes, Kind.CALL, method, encoded, background, retries, named)

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        encoded, named = codec.encode_arguments((), method, args, kwargs, names)
        kept = own(encoded)
        return lambda remote: self.send((remote,), Kind.CALL, method, kept, True, 0, named)[0]

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        return self.send(remotes, Kind.GET, name, NOTHING, len(remotes) > 1)

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        encoded = codec.encode(value, name)
        return self.send(remotes, Kind.SET, name, encoded, len(remotes) > 1)

    def is_any_elsewhere(self, remotes: Sequence[RemoteActor]) -> bool:
        """Tell whether large values cross to another machine for any of these."""
        return bool(self._stores_of(remotes))

    def send(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: Encoded,
        background: bool,
        retries: int = 0,
        named: Sequence[NamedReference] = (),
    ) -> list[CallFuture[Any]]:
        """Send one call to each actor.  Without `background` the caller is about to wait.

        `named` are the futures and refs among its arguments.
        """
        refuse_in_call(name)  # before anything is noted as sent
        if self._session.is_closed or self._session.pid != os.getpid():
            self._session.check()
        if library.loaded != len(sys.modules):
            library.look()
        if named or retries:
            encoded = own(encoded)
        transfer = large = message = None
        nbytes = encoded.nbytes
        if nbytes >= SEND_FROM_BYTES and not named:
            encoded, transfer = self._begin_transfer(remotes, encoded, background)
        transfers = (transfer,) if transfer else ()
        if nbytes >= SHARE_FROM_BYTES:
            large = OutgoingValue(encoded, len(remotes) > 1, transfers)
        may_leave = not named and (transfer is None or transfer.done.done())
        if named or retries:
            message = self._message(remotes, kind, name, encoded, named, transfers)
        futures = []
        try:
            for remote in remotes:
                assert isinstance(remote, ActorState)
                future: CallFuture[Any]
                what = f"{remote.name}.{name}"
                if message is not None and retries:
                    again = partial(self._queues.add, remote, message)
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
                    if channel.sources_sent < len(library.batches):
                        _send_sources(remote, channel)
                    is_sent = channel.send(kind, name, encoded, future, background, large, True)
                if not is_sent and not future.done() and future.receiver is None:
                    if message is None:
                        message = self._message(remotes, kind, name, encoded, named, transfers)
                    if background or not self._send_if_ready(remote, message, future):
                        self._send_in_turn(remote, message, future, background)
                futures.append(future)
        finally:
            if large is not None:
                large.close()
        return futures

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
        encoded: Encoded,
        named: Sequence[NamedReference],
        transfers: Sequence[Transfer],
    ) -> Message:
        stores = self._stores_of(remotes)
        ship = partial(self._ship, stores)
        message = Message(kind, name, own(encoded), named, transfers, ship)
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
            needs = message.needs(actor.store)
            self._queues.add(actor, message, future, needs)
        except BaseException:  # we are interrupted
            if future.receiver is None:
                actor.back_pressure.settle(future)
            raise

    def _send_if_ready(self, actor: ActorState, message: Message, future: CallFuture[Any]) -> bool:
        """Send a call of a caller who waits, if nothing is in its way; return whether that is
        done."""
        needs = message.needs(actor.store)
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
            channel.receive_in_background()
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
        store = actor.store
        try:
            outgoing = message.outgoing_to(store, actor.is_apart and self._channels.may_wait())
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
        if channel.sources_sent < len(library.batches):
            _send_sources(actor, channel)
        value, large = outgoing.encoded, outgoing if outgoing.is_large else None
        return channel.send(message.kind, message.name, value, future, background, large, True)

    # --- large values for other machines ----------------------------------------------------------

    def _stores_of(self, remotes: Sequence[RemoteActor]) -> list[StoreAddress]:
        """Return the stores of the machines of these actors, but for this machine."""
        return [r.store for r in remotes if isinstance(r, ActorState) and r.store is not None]

    def _begin_transfer(
        self, remotes: Sequence[RemoteActor], encoded: Encoded, background: bool
    ) -> tuple[Encoded, BulkTransfer | None]:
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
    """Send the modules that an actor may lack.

    It has them when it says so: the connection may break before.
    """
    life, sent = channel.location.life, channel.sources_sent
    batches, total = library.unsent_for(actor, life, sent)
    for digest, content in batches:
        value = Encoded((), (memoryview(content),))
        told: CallFuture[Any] = CallFuture("the actor")
        told.add_done_callback(partial(_note_arrival, actor, life, digest))
        channel.send(Kind.SOURCES, digest, value, told, background=True)
    channel.sources_sent = total


def _note_arrival(actor: ActorState, life: int, digest: str, told: Any) -> None:
    if told.exception() is None:
        library.arrived(actor, life, digest)
