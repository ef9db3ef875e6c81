"""How calls leave a client: pickled once, and sent through the channel of each actor.

A value that is large, and for another machine, crosses before its call leaves (crossing.py).  If
nobody waits for the call, it does so in the background, and the call joins a queue (departures.py).
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

from remotely.client.actor_state import ActorState
from remotely.client.channel import Channel
from remotely.client.channels import Channels
from remotely.client.crossing import Crossing
from remotely.client.departures import Departure, Departures
from remotely.client.master_session import SHUT_DOWN, MasterSession
from remotely.client.ref import Ref
from remotely.client.referring_call import ReferringCall
from remotely.client.stores import Stores
from remotely.engine import RemoteActor
from remotely.errors import NotConnected, RemotelyError
from remotely.futures.future import CallFuture
from remotely.futures.unretrieved import Tell
from remotely.objects.idempotent import RetriedFuture
from remotely.protocol.control import StoreAddress
from remotely.protocol.wire import Kind
from remotely.values import codec, source_library
from remotely.values.memory_peer import OutgoingValue
from remotely.values.parcel import SEND_FROM_BYTES
from remotely.values.references import Named


class Calls:
    """Sends calls to actors.  `on_unretrieved` hears of errors that nobody has looked at."""

    def __init__(
        self, session: MasterSession, channels: Channels, stores: Stores, on_unretrieved: Tell
    ) -> None:
        self._session = session
        self._channels = channels
        self._stores = stores
        self._departures = Departures(stores.threads, self._depart)
        self._on_unretrieved = on_unretrieved  # bound once, not with each call

    def send(
        self,
        remotes: Sequence[RemoteActor],
        kind: Kind,
        name: str,
        encoded: codec.Encoded,
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        """Send one call to each actor.  Without `background` the caller is about to wait."""
        self._session.check()
        source_library.library.look()
        outgoing = OutgoingValue(encoded, several=len(remotes) > 1)
        if outgoing.is_large and encoded.nbytes >= SEND_FROM_BYTES:
            outgoing.crossing = self._begin_crossing(remotes, encoded, background)
        futures = []
        try:
            for remote in remotes:
                future: CallFuture[Any]
                what = f"{remote.name}.{name}"
                if retries:
                    again = functools.partial(self._send_again, kind, name, encoded)
                    future = RetriedFuture(what, remote, again, retries)
                else:
                    future = CallFuture(what, remote)
                if encoded.travelling:
                    future.travelling = encoded.travelling
                if background and kind is Kind.CALL:
                    future.on_unretrieved = self._on_unretrieved
                if outgoing.crossing is None and remote.departures is None:  # type: ignore[attr-defined]
                    self._send_now(remote, kind, name, outgoing, future, background)
                else:
                    self._send_in_turn(remote, kind, name, outgoing, future, background)
                futures.append(future)
        finally:
            outgoing.close()
        return futures

    def is_any_elsewhere(self, remotes: Sequence[RemoteActor]) -> bool:
        """Tell whether large values cross to another machine for any of these."""
        return any(self._stores_of(remotes))

    def send_referring(
        self,
        remotes: Sequence[RemoteActor],
        name: str,
        encoded: codec.Encoded,
        named: Sequence[Named],
        background: bool,
        retries: int,
    ) -> list[CallFuture[Any]]:
        """Send a call to each actor when the futures among its arguments are done."""
        self._session.check()
        source_library.library.look()
        stores = self._stores_of(remotes)
        refs = [thing for thing, _ in named if isinstance(thing, Ref)]
        crossings = [done for ref in refs for done in self._stores.cross(ref, stores)]
        ship = functools.partial(self._ship, stores)
        call = ReferringCall(name, encoded, named, crossings, ship)
        if background:
            call.snapshot()
        elif self._channels.is_on_loop() and not all(need.done() for need in call.needs):
            raise RemotelyError(
                f"{name} cannot be called here, in the done-callback of a future, with an argument "
                "that is not done: its outcome is received on this very thread. Submit the call, "
                "or make it in a thread of your own"
            )
        futures = []
        for remote in remotes:
            assert isinstance(remote, ActorState)
            what = f"{remote.name}.{name}"
            future: CallFuture[Any]
            depart = functools.partial(self._depart_when_due, remote, name, call)
            if retries:
                future = RetriedFuture(what, remote, depart, retries)
            else:
                future = CallFuture(what, remote)
            if background:
                future.on_unretrieved = self._on_unretrieved
            depart(future)
            futures.append(future)
        return futures

    def close(self) -> None:
        """Fail the calls that have not left."""
        self._departures.close(NotConnected(SHUT_DOWN))

    def _send_again(
        self, kind: Kind, name: str, encoded: codec.Encoded, future: CallFuture[Any]
    ) -> None:
        self._session.check()
        assert isinstance(future.keep, ActorState)
        outgoing = OutgoingValue(encoded)
        if encoded.nbytes >= SEND_FROM_BYTES:
            outgoing.crossing = self._begin_crossing([future.keep], encoded, background=False)
        try:
            self._send_in_turn(future.keep, kind, name, outgoing, future, background=True)
        finally:
            outgoing.close()

    def _send_now(
        self,
        remote: RemoteActor,
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        assert isinstance(remote, ActorState)
        channel = remote.channel
        if channel is None or channel.ended:
            try:
                channel = self._channels.of(remote)
            except RemotelyError as error:
                future.lose(error.with_traceback(None))  # its frames hold the future; see future.py
                future.tell()
                return
        if channel.sources_sent < len(source_library.library.batches):
            _send_sources(remote, channel)
        channel.send(kind, name, outgoing, future, background)

    # --- calls that cannot leave at once ----------------------------------------------------------

    def _send_in_turn(
        self,
        remote: RemoteActor,
        kind: Kind,
        name: str,
        outgoing: OutgoingValue,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        """Send a call when its value has crossed, and the calls before it have left.

        On the loop's thread, which must not wait, it leaves at once.
        """
        assert isinstance(remote, ActorState)
        crossing = outgoing.crossing
        (store,) = self._stores_of([remote]) or (None,)
        crosses = crossing is not None and store is not None
        if crosses:
            future.needs = crossing
        waits = crossing is not None and crosses and not crossing.done.done()
        if self._channels.is_on_loop() or (remote.departures is None and not waits):
            self._send_now(remote, kind, name, outgoing, future, background)
            return
        departure = Departure(kind, name, outgoing, future)
        if waits and crossing is not None:
            departure = departure._replace(needs=[crossing.done])
        elif outgoing.encoded.buffers and not crosses:  # their owner may change them
            departure = departure._replace(outgoing=_copy(outgoing))
        if outgoing.is_large and (channel := remote.channel) is not None:
            channel.count(outgoing, future, bounded=background and kind is Kind.CALL)
            departure = departure._replace(counted=channel)
        self._departures.add(remote, departure, may_wait=background)

    def _stores_of(self, remotes: Sequence[RemoteActor]) -> list[StoreAddress | None]:
        """Return the stores of the machines of these actors, but for this machine."""
        stores = []
        for remote in remotes:
            assert isinstance(remote, ActorState)
            with contextlib.suppress(RemotelyError):  # whose call is about to be told
                stores.append(self._channels.store_of(remote))
        return stores

    def _begin_crossing(
        self, remotes: Sequence[RemoteActor], encoded: codec.Encoded, background: bool
    ) -> Crossing | None:
        """Begin to bring a large value to the machines of these actors; None if there is no need.

        Without `background` it is there when this returns.
        """
        if self._channels.is_on_loop():  # it hears what stores say, and must not wait for it
            return None
        crossing = self._stores.crossing(encoded, self._stores_of(remotes))
        if crossing is None:
            return None
        if background:
            crossing.snapshot()
            self._stores.threads.run(crossing.run)
        else:
            crossing.run()
        return crossing

    def _ship(self, stores: Sequence[StoreAddress | None], outgoing: OutgoingValue) -> None:
        """Bring a large value to these machines; returns when it is there."""
        on_loop = self._channels.is_on_loop()
        crossing = None if on_loop else self._stores.crossing(outgoing.encoded, stores)
        if crossing is not None:
            outgoing.crossing = crossing
            crossing.run()

    def _depart_when_due(
        self, actor: ActorState, name: str, call: ReferringCall, future: CallFuture[Any]
    ) -> None:
        future.needs = call
        departure = Departure(Kind.CALL, name, None, future, call, call.needs)
        if self._channels.is_on_loop() and all(need.done() for need in call.needs):
            self._depart(actor, departure, in_turn=False)
        else:
            self._departures.add(actor, departure, may_wait=not self._channels.is_on_loop())

    def _depart(self, actor: ActorState, departure: Departure, in_turn: bool = True) -> None:
        """On a thread of ours: send a call whose time has come, unless it has been taken back."""
        kind, name, outgoing, future, referring, _, counted = departure
        if future.done():
            departure.settle()
            return
        try:
            store = self._channels.store_of(actor)
        except RemotelyError as error:
            departure.lose(error.with_traceback(None))
            return
        if referring is not None:
            try:
                is_apart = self._channels.is_apart(actor) and not self._channels.is_on_loop()
                outgoing = referring.outgoing_to(store, is_apart)
            except BaseException as error:  # of a future among the arguments
                future.settle(None, error.with_traceback(None))
                future.tell()
                return
        assert outgoing is not None
        if in_turn and not self._departures.may_leave(actor, departure):
            departure.settle()
            return
        if counted is not actor.channel:  # the next one counts it anew
            departure.settle()
        self._send_now(actor, kind, name, outgoing, future, background=True)
        if referring is None and outgoing.crossing is None:
            outgoing.close()
        if (channel := actor.channel) is not None:
            channel.receive_soon()


def _copy(outgoing: OutgoingValue) -> OutgoingValue:
    return OutgoingValue(codec.copied(outgoing.encoded))


def _send_sources(actor: ActorState, channel: Channel) -> None:
    """Send the modules that an actor may lack.  If two threads do so, nothing is harmed."""
    life = channel.location.life
    there = actor.sent[1] if actor.sent[0] == life else frozenset()
    batches = list(source_library.library.batches)
    for digest, content in batches[channel.sources_sent :]:
        if digest not in there:
            outgoing = OutgoingValue(codec.Encoded((), (memoryview(content),)))
            learnt: CallFuture[None] = CallFuture("the actor")
            channel.send(Kind.SOURCES, digest, outgoing, learnt, background=True)
            outgoing.close()
    actor.sent = life, there.union(digest for digest, _ in batches)
    channel.sources_sent = len(batches)
