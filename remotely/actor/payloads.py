"""The values of an actor's messages: in the frames, in shared memory, or in the store.

A client on the same machine and the actor exchange large values through shared memory once each
has opened the other's arena (values/payload.py).  Large values from a client on another machine
are in the store of this machine, and so are large results for that client if it has announced that
it fetches them there (machine_store.py).  Every other value is in the message itself.

Nothing tells an actor that a connection has ended, and a client may open one after the other.  So
each of those that are remembered here is tried at growing intervals, and forgotten with its end.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from remotely.actor.machine_store import MachineStore
from remotely.actor.servant import RoutedReply
from remotely.errors import WorkerLost
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.values import arena, codec, forks, in_transit
from remotely.values.arena import SHARE_FROM_BYTES, ArenaAddress
from remotely.values.payload import (
    SEND_FROM_BYTES,
    MemoryPeer,
    OutgoingValue,
    Unpacked,
    decline,
    unpack,
)

ROUTE_CHECK_S = 60.0  # a connection of which something is remembered; then after twice the time


class Payloads:
    """Decodes arguments and encodes results.  A route identifies a client's connection."""

    def __init__(self, actor: str, store: MachineStore) -> None:
        self._actor = actor
        self._peers: dict[bytes, MemoryPeer] = {}  # by route
        self._store = store
        self._fetch: set[bytes] = set()  # routes of clients that fetch large results
        self._checks: dict[bytes, tuple[float, float]] = {}  # by route: known since, next check
        self.handlers: Mapping[Kind, Callable[[bytes, Message], object]] = {
            Kind.OPEN: self.open_memory,
            Kind.OPENED: self.memory_is_open,
            Kind.STORE: self.use_store,
            Kind.WHOLE: self.whole,
        }

    def decode(self, route: bytes, message: Message) -> Any:
        """Return the value that a message carries."""
        return codec.decode(*self.unpack(route, message))

    def unpack(self, route: bytes, message: Message) -> Unpacked:
        """Return the pickle and the buffers of that value."""
        return unpack(message, self._peers.get(route), self._store.fetch_argument)

    def decline(self, route: bytes, message: Message) -> None:
        """Release the value of a message that will not be decoded."""
        decline(message, self._peers.get(route))

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        """Return the reply that carries a result.  Raises NotPicklable."""
        what = f"the result of {message.name}" if message.name else "the result"
        encoded = codec.encode_result(value, what, time.monotonic())
        if encoded.nbytes < SHARE_FROM_BYTES:
            frames = wire.encode(Kind.RESULT, message.call_id, "", encoded.pieces, encoded.buffers)
            return RoutedReply(route, frames, is_small=len(frames) == 1)
        if encoded.nbytes >= SEND_FROM_BYTES and route in self._fetch:
            parcel = self._store.offer(encoded, route, f"{self._actor}.{message.name}")
            if parcel is not None:
                frames = OutgoingValue(encoded).message(Kind.RESULT, message.call_id, "", parcel)
                return RoutedReply(route, frames)
        outgoing = OutgoingValue(encoded)
        loan = outgoing.lend(self._peers.get(route))
        frames = outgoing.message(Kind.RESULT, message.call_id, "", loan)
        outgoing.close()
        return RoutedReply(route, frames, loan)

    def open_memory(self, route: bytes, message: Message) -> ArenaAddress | None:
        """Open a client's arena; return the address of this actor's, or None if either fails."""
        self._remember(route)
        address = control.Decoder(ArenaAddress).decode(message.payload)
        assert isinstance(address, ArenaAddress)
        ours = arena.ours()
        known = [p for p in list(self._peers.values()) if p.lender.address == address]
        try:
            self._peers[route] = known[0] if known else MemoryPeer(address)
        except OSError:
            return None
        return None if ours is None else ours.address

    def memory_is_open(self, route: bytes, message: Message) -> None:
        """The client has opened this actor's arena, so results may be lent to it."""
        self._peers[route].reads = True

    def use_store(self, route: bytes, message: Message) -> None:
        """Note whether the client fetches large results from the store of this machine."""
        self._remember(route)
        if bytes(message.payload) == wire.FETCHES:
            self._fetch.add(route)
        else:
            self._fetch.discard(route)

    def whole(self, route: bytes, message: Message) -> RoutedReply:
        """Return the reply with a result that its client could not fetch from the store."""
        is_last = bytes(message.payload) == wire.LAST
        found = self._store.whole(bytes.fromhex(message.name), is_last)
        if found is None:
            raise WorkerLost("the result is no longer available", may_have_run=True)
        payload, buffers = found
        return RoutedReply(route, wire.encode(Kind.RESULT, message.call_id, "", [payload], buffers))

    def waiting(self, now: float) -> list[bytes]:
        due = [route for route, (_, check_at) in list(self._checks.items()) if check_at <= now]
        for route in due:
            if (check := self._checks.get(route)) is not None:
                since, _ = check
                self._checks[route] = since, now + (now - since)
        return [*due, *self._store.waiting(now)]

    def forget(self, route: bytes) -> None:
        self._checks.pop(route, None)
        self._peers.pop(route, None)
        self._fetch.discard(route)
        self._store.withdraw(route)

    def _remember(self, route: bytes) -> None:
        now = time.monotonic()
        self._checks.setdefault(route, (now, now + ROUTE_CHECK_S))

    def tidy(self) -> None:
        """Forget clients that have ended, and reclaim what they held."""
        arena.tidy()
        forks.tidy()
        in_transit.tidy(time.monotonic())
        for route, peer in list(self._peers.items()):
            if not peer.alive():
                self._peers.pop(route, None)
