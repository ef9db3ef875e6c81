"""Sending of calls: arguments are pickled once, and sent through the channel of each actor.

    immediately   on the caller's thread, if nothing delays the call.  The value is borrowed: it is
                  copied before `send` returns
    queued        in its actor's queue (calling/send_queue.py), if other calls wait there, if an
                  argument must be transferred or computed first, if the actor has no connection and
                  the caller does not wait, or if the value is large and the actor has not said yet
                  whether it can read this process's memory.  Then the value is Owned, in a
                  `DelayedCall`

A large value for another machine is transferred before its call is sent (bulk_transfer.py): in the
background, unless the caller waits.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from enum import Enum, auto
from functools import partial
from typing import Any

from remotely.calling import back_pressure
from remotely.calling.back_pressure import RoomForCall
from remotely.calling.send_queue import QueuedCall, RetriedFuture, SendQueues
from remotely.client.bulk_transfer import BulkTransfer, Stores
from remotely.client.channel import Channel, refuse_in_call
from remotely.client.channels import ActorState, Channels
from remotely.client.master_session import SHUT_DOWN, MasterSession
from remotely.client.ref import Ref
from remotely.engine import Prepared, RemoteActor
from remotely.errors import NotConnected, RemotelyError
from remotely.futures.future import CallFuture, futures_among
from remotely.futures.reference import StoredResult
from remotely.futures.unretrieved import OnUnretrieved
from remotely.machine.interrupts import errors_ignored, is_for_main
from remotely.machine.shield import RLock
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, references
from remotely.values.arena import SHARE_FROM_BYTES
from remotely.values.codec import Encoded, NamedReference
from remotely.values.owned import Owned, counted_bytes, own
from remotely.values.payload import SEND_FROM_BYTES, Completion, OutgoingValue, Transfer
from remotely.values.references import InStore, Referring
from remotely.values.sources import library


class DelayedCall:
    """A call that cannot be sent immediately: the same bytes for each actor and each attempt.

    Its arguments are pickled when the call is made.  Futures and refs among them
    (values/references.py) are resolved when it is sent:

        a future     to its value as it arrived, or, if it was done before, as it was when the call
                     was made.  If the value is in a store, to its place there; an actor that may
                     reach no store gets the value itself
        a large ref  to its place in the store of the actor's machine, once transferred

    named       the futures and refs among the arguments; `refs` are the refs
    transfers   the transfers of a large value to other machines that have begun
    ship        transfers what is sent to an actor's machine, if it is large and not there
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
        self._futures = futures_among(named)
        self._named = named
        self._transfers = transfers
        self._ship = ship
        self._lock = RLock()
        self._kept: list[StoredResult] = []  # not to be released before the call has run
        # By the index of the future, and whether the actor is apart.
        self._values: dict[tuple[int, bool], Any] = {}
        self._outgoing: dict[tuple[bytes, ...], OutgoingValue] = {}
        for number, (thing, _) in enumerate(named):
            if not isinstance(thing, CallFuture):
                continue
            thing.is_passed_on = True
            is_stored = isinstance(thing.raw_result, StoredResult)
            if thing.done() and thing.kept is None and not is_stored:
                with errors_ignored:  # sending the call raises it
                    snapshot = _snapshot(thing.result())
                    self._values[number, True] = self._values[number, False] = snapshot

    def __del__(self) -> None:
        for outgoing in vars(self).get("_outgoing", {}).values():  # {} if interrupted
            outgoing.close()

    @property
    def may_be_large(self) -> bool:
        """Whether it may go through memory: it, or the values of futures and refs in it."""
        return bool(self._named) or self.value.nbytes >= SHARE_FROM_BYTES

    def needs(self, store: StoreAddress | None) -> list[Completion]:
        """Return the futures that must be done before the call is sent to an actor there."""
        transfers = [*self._transfers, *(t for ref in self.refs for t in ref.transfers)]
        here = [t.done for t in transfers if store is not None and t.covers(store)]
        return [*self._futures, *here]

    def outgoing_to(self, store: StoreAddress | None, is_apart: bool = False) -> OutgoingValue:
        """Return what to send to an actor there; if it `is_apart`, with values, not store entries.

        Raises the error of a future that failed.
        """
        with self._lock:
            entries = [
                self._entry(i, thing, name, store, is_apart)
                for i, (thing, name) in enumerate(self._named)
            ]
            kind = tuple(entry.name if isinstance(entry, InStore) else b"" for entry in entries)
            if (outgoing := self._outgoing.get(kind)) is None:
                value = self.value
                if entries:
                    value = own(codec.encode(Referring(value, entries), self.name))
                outgoing = self._outgoing[kind] = OutgoingValue(value, True, self._transfers)
            if not is_apart:
                self._ship(outgoing, store)
            return outgoing

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
        kept = future.kept or future.raw_result
        if isinstance(kept, Owned):
            return Referring(kept)
        if not isinstance(kept, StoredResult):
            return _snapshot(kept)
        if is_apart:
            return kept.fetch()
        self._kept.append(kept)
        return kept.entry()


def _snapshot(value: Any) -> Referring:
    """Return an argument that arrives as the value is now."""
    return Referring(own(codec.encode(value)))


class Attempt(Enum):
    """The result of an attempt to send a call."""

    SENT = auto()
    UNSENT = auto()  # its channel is closed
    NEEDLESS = auto()  # it is not next in its queue, or a future among its arguments has failed


class Calls:
    """Sends calls to actors.  `on_unretrieved` receives errors that were never retrieved."""

    def __init__(
        self,
        session: MasterSession,
        channels: Channels,
        stores: Stores,
        on_unretrieved: OnUnretrieved,
    ) -> None:
        self._session = session
        self._channels = channels
        self._stores = stores
        self._queues: SendQueues[DelayedCall] = SendQueues(
            self._send_queued, channels.check_wait, channels.sleep_until
        )
        self._on_unretrieved = on_unretrieved

    def prepare(self, method: str, encoded: Encoded, named: Sequence[NamedReference]) -> Prepared:
        """Return a call that can be sent later, repeatedly; `named` as in `send`."""
        kept = own(encoded)
        futures = futures_among(named) if named else ()
        for future in futures:
            future.is_passed_on = True  # if it is not done, it keeps its result as it arrives
        # Not a function with annotations, which Python would evaluate for each call.
        return Prepared(
            lambda remote: self.send((remote,), Kind.CALL, method, kept, True, 0, named)[0],
            futures,
        )

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
        """Send one call to each actor.  Without `background`, the caller is about to wait.

        `named` are the futures and refs among its arguments.
        """
        refuse_in_call(name)  # before any state changes
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
        is_ready = not named and (transfer is None or transfer.done.done())
        if named or retries:
            message = self._message(remotes, kind, name, encoded, named, transfers)
        calls: list[tuple[ActorState, CallFuture[Any]]] = []
        futures: list[CallFuture[Any]] = []
        is_full = False
        for remote in remotes:
            assert isinstance(remote, ActorState)
            future: CallFuture[Any]
            what = f"{remote.name}.{name}"
            if message is not None and retries:
                resend = partial(self._queues.add, remote, message)
                future = RetriedFuture(what, remote, resend, retries)
            else:
                future = CallFuture(what, remote)
            if encoded.travelling:
                future.travelling = encoded.travelling
            if background and kind is Kind.CALL:
                future.on_unretrieved = self._on_unretrieved
                channel = remote.channel
                if remote.queue is not None or (
                    channel is not None and channel.unanswered >= back_pressure.MAX_CALLS
                ):
                    is_full = True
            if transfer is not None:
                future.keeps_alive = transfer
            calls.append((remote, future))
            futures.append(future)
        try:
            if large is not None or is_full:
                self._admit(calls, large, background and kind is Kind.CALL)
            for remote, future in calls:
                channel = remote.channel
                if not is_ready or remote.queue is not None:
                    channel = None
                elif (channel is None or not channel.is_open) and not background:
                    channel = self._open_for(remote, future)
                if channel is not None and large is not None and not channel.is_introduced:
                    channel = None
                is_sent = False
                if channel is not None and channel.is_open:
                    if channel.sources_sent < len(library.batches):
                        _send_sources(remote, channel)
                    is_sent = channel.send(kind, name, encoded, future, background, large, True)
                if not is_sent and not future.done() and future.receiver is None:
                    if message is None:
                        message = self._message(remotes, kind, name, encoded, named, transfers)
                    if background or not self._send_if_ready(remote, message, future):
                        self._enqueue(remote, message, future, background)
        except BaseException:  # they are not sent, or this thread is interrupted
            back_pressure.settle_unsent(futures)
            raise
        finally:
            if large is not None:
                large.close()
        return futures

    def close(self) -> None:
        """Fail the calls that are not sent yet."""
        self._queues.close(NotConnected(SHUT_DOWN))

    def _admit(
        self,
        calls: Sequence[tuple[ActorState, CallFuture[Any]]],
        large: OutgoingValue | None,
        may_wait: bool,
    ) -> None:
        """Count the calls with a value; with `may_wait`, wait until there is room for all of them.

        What a ref in it keeps in memory anyway does not count.
        """
        nbytes = 0
        if large is not None:
            lent = all(actor.channel and actor.channel.lends for actor, _ in calls)
            nbytes = counted_bytes(large.encoded) if lent else large.nbytes
        wait = self._wait_for_room if may_wait and self._channels.may_wait() else None
        back_pressure.limits.admit(calls, nbytes, wait)

    def _wait_for_room(self, actor: ActorState, room: RoomForCall) -> None:
        """Wait for an outcome of an actor, and receive it if no other thread does."""
        channel = actor.channel
        if channel is not None and channel.is_open:
            channel.wait(room)
        else:
            room.block(None)

    def _open_for(self, actor: ActorState, future: CallFuture[Any]) -> Channel | None:
        """Connect to an actor for a caller that waits; None if the call is queued or has failed."""
        if not self._channels.may_wait() and actor.ended is None:
            return None
        try:
            return self._channels.connected(actor)
        except RemotelyError as error:
            future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
            future.run_callbacks()
            return None

    # --- queued calls -----------------------------------------------------------------------------

    def _message(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: Encoded,
        named: Sequence[NamedReference],
        transfers: Sequence[Transfer],
    ) -> DelayedCall:
        stores = self.stores_of(remotes)
        ship = partial(self._ship, stores)
        message = DelayedCall(kind, name, own(encoded), named, transfers, ship)
        for ref in message.refs:
            self._stores.bring(ref, stores)
        return message

    def _enqueue(
        self, actor: ActorState, message: DelayedCall, future: CallFuture[Any], background: bool
    ) -> None:
        """Queue a call."""
        if not background:
            self._channels.check_wait(actor, future)
        future.keeps_alive = message
        self._queues.add(actor, message, future, message.needs(actor.store))

    def _send_if_ready(
        self, actor: ActorState, message: DelayedCall, future: CallFuture[Any]
    ) -> bool:
        """Send a call whose caller waits, if nothing delays it; return whether it is dealt with."""
        needs = message.needs(actor.store)
        channel = actor.channel
        if actor.queue is not None or channel is None or not channel.is_introduced:
            return False
        if not all(need.done() for need in needs):
            return False
        attempt = self._send_message(channel, actor, message, future, False)
        return attempt is not Attempt.UNSENT

    def _send_queued(self, call: QueuedCall[DelayedCall]) -> None:
        """On a thread of the queue: send the call that is next."""
        actor = call.actor
        assert isinstance(actor, ActorState)
        channel = self._channels.connected(actor)
        if call.message.may_be_large:
            channel.wait_until_introduced()
        match self._send_message(channel, actor, call.message, call.future, True, call.take):
            case Attempt.SENT:
                channel.receive_in_background()
            case Attempt.UNSENT:
                call.give_back()

    def _send_message(
        self,
        channel: Channel,
        actor: ActorState,
        message: DelayedCall,
        future: CallFuture[Any],
        background: bool,
        take: Callable[[], bool] = lambda: True,
    ) -> Attempt:
        """Try to send a message whose needs are all done; `take` takes it out of its queue."""
        store = actor.store
        try:
            outgoing = message.outgoing_to(store, actor.is_apart and self._channels.may_wait())
        except BaseException as error:  # of a future among the arguments
            if is_for_main(error):
                raise
            if take():
                future.settle(None, error.with_traceback(None))
                future.run_callbacks()
            return Attempt.NEEDLESS
        if not channel.is_open:
            return Attempt.UNSENT
        if not take():
            return Attempt.NEEDLESS
        future.keeps_alive = message
        if outgoing.is_large and future.counted_by is None:  # with the values of its futures
            back_pressure.limits.admit([(actor, future)], outgoing.nbytes, None)
        if channel.sources_sent < len(library.batches):
            _send_sources(actor, channel)
        value, large = outgoing.encoded, outgoing if outgoing.is_large else None
        is_sent = channel.send(message.kind, message.name, value, future, background, large, True)
        return Attempt.SENT if is_sent else Attempt.UNSENT

    # --- large values for other machines ----------------------------------------------------------

    def stores_of(self, remotes: Sequence[RemoteActor]) -> list[StoreAddress]:
        """Return the stores of the other machines on which these actors are."""
        return [r.store for r in remotes if isinstance(r, ActorState) and r.store is not None]

    def _begin_transfer(
        self, remotes: Sequence[RemoteActor], encoded: Encoded, background: bool
    ) -> tuple[Encoded, BulkTransfer | None]:
        """Transfer a large value to these actors' machines, if necessary; wait unless `background`.

        With `background`, the returned value is Owned.
        """
        stores = self.stores_of(remotes)
        if not stores or not (background or self._channels.may_wait()):
            return encoded, None
        if background:
            encoded = own(encoded)
        transfer = self._stores.transfer(encoded, stores)
        if transfer is None:
            return encoded, None
        if background:
            self._stores.run(transfer)
        else:
            transfer.run()
        return encoded, transfer

    def _ship(
        self, others: Sequence[StoreAddress], outgoing: OutgoingValue, store: StoreAddress | None
    ) -> None:
        """Transfer a large value to `store` and the others, if this thread may wait for it."""
        is_small = outgoing.nbytes < SEND_FROM_BYTES
        if store is None or is_small or not self._channels.may_wait():
            return
        lacking = [s for s in (store, *others) if not any(t.covers(s) for t in outgoing.transfers)]
        if store in lacking and (transfer := self._stores.transfer(outgoing.encoded, lacking)):
            outgoing.transfers = (*outgoing.transfers, transfer)
            transfer.run()


def _send_sources(actor: ActorState, channel: Channel) -> None:
    """Send the modules that an actor may lack.

    They count as sent once the actor confirms them: the connection may break before.
    """
    life, sent = channel.location.life, channel.sources_sent
    batches, total = library.unsent_for(actor, life, sent)
    for digest, content in batches:
        value = Encoded((), (memoryview(content),))
        confirmed: CallFuture[Any] = CallFuture("the actor")
        confirmed.then(partial(_note_arrival, actor, life, digest))
        channel.send(Kind.SOURCES, digest, value, confirmed, background=True)
    channel.sources_sent = total


def _note_arrival(actor: ActorState, life: int, digest: str, confirmed: Any) -> None:
    if confirmed.exception() is None:
        library.arrived(actor, life, digest)
