"""A store's end of the line to one actor of its machine.

The actor asks for one thing at a time on a line, and has several lines if several of its threads
ask.  What takes long, fetching from another machine, is done on a thread of its own.
"""

import contextlib
import logging
import socket
import threading
import time
from functools import partial

import msgspec

from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE
from remotely.store.fetching import Fetching
from remotely.store.rooms import OfferedRoom
from remotely.store.shelf import Shelf
from remotely.transport.loop import Loop
from remotely.values import arena
from remotely.values.arena import ArenaAddress, Loan
from remotely.values.memory_peer import MemoryPeer

log = logging.getLogger("remotely.store")

NOT_HERE = (
    "it is not on this machine any more: who sent it has ended, or the connection to it broke"
)
_decode_arena = msgspec.msgpack.Decoder(ArenaAddress).decode
_decode_loan = msgspec.msgpack.Decoder(Loan).decode
_encode = msgspec.msgpack.Encoder().encode


class ActorLine:
    """Lives as long as the actor's end of the socket."""

    def __init__(self, line: socket.socket, loop: Loop, shelf: Shelf, fetching: Fetching) -> None:
        self._line = line
        self._loop = loop
        self._shelf = shelf
        self._fetching = fetching
        self._peer: MemoryPeer | None = None
        self._decode = control.Decoder(control.ToStore["actor"]).decode
        loop.watch(line.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            data = self._line.recv(MAX_MESSAGE)
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(self._line.fileno())
            self._line.close()
            self._shelf.leave(self, time.monotonic())
            return
        match self._decode(data):
            case control.Share(arena=address):
                self._share(address)
            case control.Offer() as offer if self._peer is not None:
                room = OfferedRoom(self._peer.lender, _decode_loan(offer.loan))
                self._shelf.add(offer.value, room, self, is_here=True)
                self._tell(control.Offered())
            case control.Withdraw(value=name):
                self._shelf.drop(name)
            case control.Borrow(value=name, bulk=None):
                self._lend(name)
            case control.Borrow(value=name, nbytes=nbytes, bulk=bulk) if bulk is not None:
                fetch = partial(self._fetch, name, nbytes, bulk)
                threading.Thread(target=fetch, name="remotely-fetch", daemon=True).start()

    def _share(self, address: bytes) -> None:
        """Open an actor's arena.  If that cannot be, the actor does without a store."""
        ours = arena.ours()
        try:
            self._peer = MemoryPeer(_decode_arena(address))
        except OSError as error:
            self._tell(control.Gone(why=str(error)))
            return
        if ours is None:
            self._tell(control.Gone(why="no memory to share"))
        else:
            self._tell(control.Shared(arena=_encode(ours.address), bulk=self._fetching.own))

    def _lend(self, name: bytes) -> None:
        with self._shelf.using(name) as value:
            loan = value and self._peer and value.room.lend(self._peer)
            if loan:
                self._tell(control.Lent(loan=_encode(loan)))
            else:
                self._tell(control.Gone(why="no room is left" if value else NOT_HERE))

    def _fetch(self, name: bytes, nbytes: int, bulk: control.BulkAddress) -> None:
        """On a thread: have a value here, and then lend it."""
        gone = self._fetching.fetch(name, nbytes, bulk)
        if gone is not None:
            self._loop.call(partial(self._tell, gone))
        else:
            self._loop.call(partial(self._lend, name))

    def _tell(self, message: msgspec.Struct) -> None:
        with contextlib.suppress(OSError):
            self._line.send(control.encode(message))
