"""The values of an actor's messages: in the frames, in shared memory, or in the store.

What a client can read is part of its connection, and is the first thing that it says on it (READS,
values/payload.py).  A client on the same machine and the actor open each other's arena, and lend
large values.  Large values from a client on another machine are in the store of this machine, and
so are large results for that client if it fetches them there (machine_store.py).  Every other value
is in the message itself.

Nothing tells an actor that a connection has ended, and a client may open one after the other.  So
each of those that are remembered here is tried at growing intervals, and forgotten with its end.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remotely.actor.machine_store import MachineStore
from remotely.actor.servant import RoutedReply
from remotely.errors import WorkerLost
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.values import arena, codec, forks, in_transit, payload, references
from remotely.values.arena import SHARE_FROM_BYTES, ArenaAddress
from remotely.values.payload import (
    SEND_FROM_BYTES,
    Fetched,
    Invitation,
    MemoryPeer,
    OpenedProcess,
    OutgoingValue,
    Parcel,
    Reads,
    Unpacked,
    decline,
    read_loan,
    unpack,
)

_READS = control.Decoder(Reads)
ROUTE_CHECK_S = 60.0  # a connection that is remembered; then after twice the time


@dataclass(slots=True)
class _Client:
    """What is remembered of a client's connection.

    memory   the process of the client, if each has opened the other's arena, or is about to
    fetches  whether it fetches large results from the store of this machine
    """

    memory: MemoryPeer | None
    fetches: bool
    since: float
    check_at: float


class Payloads:
    """Decodes arguments and encodes results.  A route identifies a client's connection."""

    def __init__(self, actor: str, store: MachineStore, traffic: memoryview) -> None:
        self._actor = actor
        self._traffic = traffic  # bytes that were received, and sent: activity.py
        self._store = store
        self._clients: dict[bytes, _Client] = {}  # by route
        # By route and call, until they are decoded or declined: see `fetch`.
        self._fetched: dict[tuple[bytes, int], Fetched | Exception] = {}
        self.handlers: Mapping[Kind, Callable[[bytes, Message], object]] = {
            Kind.READS: self.meet,
            Kind.WHOLE: self.whole,
        }

    def decode(self, route: bytes, message: Message) -> Any:
        """Return the value that a message carries."""
        if self._fetched and (found := self._fetched.pop((route, message.call_id), None)):
            if isinstance(found, Exception):
                raise found
            for each in (found.unpacked, *found.values.values()):
                self._note_received(*each)
            return found.decode()
        payload, buffers = self.unpack(route, message)
        self._traffic[0] += len(payload)
        if buffers:
            self._note_received(b"", buffers)
        return codec.decode(payload, buffers)

    def _note_received(
        self, payload: bytes | memoryview, buffers: Sequence[bytes | memoryview]
    ) -> None:
        self._traffic[0] += len(payload) + sum(memoryview(each).nbytes for each in buffers)

    def is_elsewhere(self, route: bytes, message: Message) -> bool:
        """Return whether `decode` would wait for a store."""
        if not message.loan:
            return references.refers(message.payload)
        try:
            loan = read_loan(message.loan)
            if isinstance(loan, Parcel):
                return True
            if not loan.has_payload:
                return references.refers(message.payload)
            unpacked = self.unpack(route, message)
        except Exception:  # `decode` raises it again
            return False
        self._fetched[route, message.call_id] = Fetched(unpacked, {})
        return references.refers(unpacked[0])

    def fetch(self, route: bytes, message: Message) -> None:
        """Fetch what is elsewhere of a message; if that fails, `decode` raises the error.

        Any thread may call this, until the message is decoded or declined.
        """
        key = route, message.call_id
        try:
            opened = self._fetched.get(key)  # by `is_elsewhere`
            if isinstance(opened, Fetched):
                self._fetched[key] = payload.fetch(opened.unpacked)
            else:
                self._fetched[key] = payload.fetch(self.unpack(route, message))
        except Exception as error:
            self._fetched[key] = error

    def unpack(self, route: bytes, message: Message) -> Unpacked:
        """Return the pickle and the buffers of that value."""
        return unpack(message, self._memory_of(route), self._store.fetch_argument)

    def decline(self, route: bytes, message: Message) -> None:
        """Release the value of a message that will not be decoded."""
        if self._fetched.pop((route, message.call_id), None) is not None:
            return  # it has been opened
        decline(message, self._memory_of(route))

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        """Return the reply that carries a result.  Raises NotPicklable."""
        what = f"the result of {message.name}" if message.name else "the result"
        encoded = codec.encode_result(value, what, time.monotonic())
        self._traffic[1] += encoded.nbytes
        if encoded.nbytes < SHARE_FROM_BYTES:
            frames = wire.encode(Kind.RESULT, message.call_id, "", encoded.pieces, encoded.buffers)
            return RoutedReply(route, frames, is_small=len(frames) == 1)
        client = self._clients.get(route)
        if encoded.nbytes >= SEND_FROM_BYTES and client is not None and client.fetches:
            parcel = self._store.offer(encoded, route, f"{self._actor}.{message.name}")
            if parcel is not None:
                frames = OutgoingValue(encoded).message(Kind.RESULT, message.call_id, "", parcel)
                return RoutedReply(route, frames)
        outgoing = OutgoingValue(encoded)
        loan = outgoing.lend(None if client is None else client.memory)
        frames = outgoing.message(Kind.RESULT, message.call_id, "", loan)
        outgoing.close()
        return RoutedReply(route, frames, loan)

    def meet(self, route: bytes, message: Message) -> Invitation | None:
        """Note what a client can read, and open its arena; return an invitation to open ours.

        Return None if it has none, or if either process cannot open the other's.
        """
        reads = _READS.decode(message.payload)
        assert isinstance(reads, Reads)
        now = time.monotonic()
        client = _Client(None, reads.fetches, now, now + ROUTE_CHECK_S)
        client = self._clients.setdefault(route, client)
        client.fetches = reads.fetches
        if reads.arena is None or client.memory is not None:
            return None
        try:
            peer = MemoryPeer(self._opened(reads.arena))
            peer.process.watch()
        except OSError:
            return None
        invitation = peer.invite()
        client.memory = peer if invitation is not None else None
        return invitation

    def _opened(self, address: ArenaAddress) -> OpenedProcess:
        """Return the process with this arena, which may have another connection already."""
        for client in list(self._clients.values()):
            if client.memory is not None and client.memory.lender.address == address:
                return client.memory.process
        return OpenedProcess(address)

    def whole(self, route: bytes, message: Message) -> RoutedReply:
        """Return the reply with a result that its client could not fetch from the store."""
        is_last = bytes(message.payload) == wire.LAST
        found = self._store.whole(bytes.fromhex(message.name), is_last)
        if found is None:
            raise WorkerLost("the result is no longer available", may_have_run=True)
        payload, buffers = found
        return RoutedReply(route, wire.encode(Kind.RESULT, message.call_id, "", [payload], buffers))

    def waiting(self, now: float) -> list[bytes]:
        due = [(route, c) for route, c in list(self._clients.items()) if c.check_at <= now]
        for _, client in due:
            client.check_at = now + (now - client.since)
        return [*(route for route, _ in due), *self._store.waiting(now)]

    def forget(self, route: bytes) -> None:
        client = self._clients.pop(route, None)
        if client is not None and client.memory is not None and (ours := arena.ours()) is not None:
            ours.end_unopened(client.memory)
        self._store.withdraw(route)

    def tidy(self) -> None:
        """Forget clients that have ended, and reclaim what they held."""
        arena.tidy()
        forks.tidy()
        in_transit.tidy(time.monotonic())
        for client in list(self._clients.values()):
            if client.memory is not None and not client.memory.alive():
                client.memory = None

    def _memory_of(self, route: bytes) -> MemoryPeer | None:
        client = self._clients.get(route)
        return client.memory if client is not None else None
