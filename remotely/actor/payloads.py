"""The values in an actor's messages: in the frames, or lent through memory.

A client on the same machine and the actor exchange large values through memory once each has
opened the other's arena (memory_peer.py).  Until then, and with clients elsewhere, every value is
in the message itself.
"""

import time
from collections.abc import Sequence
from typing import Any

from remotely.actor.replies import RoutedReply
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.values import arena, codec, in_transit
from remotely.values.arena import SHARE_FROM_BYTES, ArenaAddress
from remotely.values.memory_peer import MemoryPeer, OutgoingValue, decline, unpack


class Payloads:
    """Decodes what arrives and encodes what goes back.  A route names a client's connection."""

    def __init__(self) -> None:
        self._peers: dict[bytes, MemoryPeer] = {}  # by route

    def decode(self, route: bytes, message: Message) -> Any:
        """Return the value that a message carries."""
        return codec.decode(*unpack(message, self._peers.get(route)))

    def unpack(
        self, route: bytes, message: Message
    ) -> tuple[bytes | memoryview, Sequence[bytes | memoryview]]:
        """Return the pickle and the buffers of that value."""
        return unpack(message, self._peers.get(route))

    def decline(self, route: bytes, message: Message) -> None:
        """Let go of a value that nobody here wants."""
        decline(message, self._peers.get(route))

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        """Return the reply that carries a result.  Raises NotPicklable."""
        what = f"the result of {message.name}" if message.name else "the result"
        encoded = codec.encode(value, what)
        if encoded.travelling:
            in_transit.keep_result(encoded.travelling, time.monotonic())
        if encoded.nbytes < SHARE_FROM_BYTES:
            frames = wire.encode(Kind.RESULT, message.call_id, "", encoded.pieces, encoded.buffers)
            return RoutedReply(route, frames, is_small=len(frames) == 1)
        outgoing = OutgoingValue(encoded)
        loan = outgoing.lend(self._peers.get(route))
        frames = outgoing.message(Kind.RESULT, message.call_id, "", loan)
        outgoing.close()
        return RoutedReply(route, frames, loan)

    def open_memory(self, route: bytes, message: Message) -> ArenaAddress | None:
        """Open a client's arena and return the address of ours; None if either is not possible."""
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
        """The client has opened our arena too: we may lend to it."""
        self._peers[route].reads = True

    def tidy(self) -> None:
        """Forget clients that have ended, and take back what they held."""
        arena.tidy()
        in_transit.tidy(time.monotonic())
        for route, peer in list(self._peers.items()):
            if not peer.alive():
                self._peers.pop(route, None)
