"""The store of a machine: receives large values from other machines, and lends them to its actors.

A value that is sent to eight actors of a machine, or put, crosses to it once.  A large result for a
caller on another machine stays here until the caller fetches it, or has another machine fetch it.
Unlike an actor, the store never runs users' code, and it never unpickles: a value is a block of
memory with a name.

    clients   over CURVE (control/store.py): announce and release values.  Clients that may call
              the actors here are admitted
    bytes     over TLS (bulk_server.py): clients receive its certificate over CURVE, and a peer that
              knows the name of a value, a secret, may bring or fetch it
    actors    over a socket that the worker passes to both: borrow values, offer results, and have
              published values of other machines followed (values/following.py)
    worker    starts this process at the first connection; it ends with the worker

A client holds what it announces for as long as it is connected, and an actor what it offers for as
long as it lives (values/shelf.py).  A client that knows a result from a reply claims it: it holds
the result too, which so outlives its actor.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Hashable
from functools import partial

import msgspec
import zmq

from remotely.errors import NotShared
from remotely.machine import daemons, threads
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import BulkAddress
from remotely.protocol.lease import STALL_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.store.bulk_server import BulkServer, Fetching, LentRoom, reserve
from remotely.transport import certificate, sockets
from remotely.transport.access_list import AccessList
from remotely.transport.keys import KeyPair
from remotely.transport.line import Line
from remotely.transport.listening import listen_for_bytes
from remotely.transport.loop import Loop
from remotely.values import arena
from remotely.values.arena import ArenaAddress, Borrower, Loan
from remotely.values.borrowing import Lender
from remotely.values.following import followings
from remotely.values.payload import OpenedProcess
from remotely.values.shelf import Shelf, Value

log = logging.getLogger("remotely.store")

ASK_EVERY_S = 2.0  # interval of the check that the clients that hold values are still connected
CLAIM_S = 60.0  # how long a result waits for a client that is suspended or disconnected
NOT_HERE = "it is not on this machine any more: its sender has ended, or the connection to it broke"
_decode_arena = msgspec.msgpack.Decoder(ArenaAddress).decode
_decode_loan = msgspec.msgpack.Decoder(Loan).decode
_encode = msgspec.msgpack.Encoder().encode
_FROM_ACTOR = control.Decoder("actor > store")


class Store:
    """`line` leads to the worker; `control_fd` is the port at which clients connect."""

    def __init__(self, line: Line, control_fd: int, birth: control.StoreBirth) -> None:
        self._line = line
        self._loop = Loop()
        self._shelf: Shelf[LentRoom] = Shelf()
        self._context = sockets.new_context()
        self._throttled = ThrottledLog(log.warning)
        self._access = AccessList([], self._ask_about)
        self._zap = sockets.ZapHandler(self._context, self._access.admit, self._throttled)
        self._router = sockets.server(self._context, KeyPair(birth.public_key, birth.secret_key))
        sockets.bind_to(self._router, control_fd)
        own = certificate.make()
        listener, endpoints = listen_for_bytes(birth.listening)
        self._bulk = BulkAddress(endpoints, own.fingerprint)
        followings.relay = self._bulk
        self._fetching = Fetching(self._shelf, self._bulk)
        self._server = BulkServer(listener, own, self._shelf, self._tell_owner)
        self._decode_client = control.Decoder("client > store").decode

    def run(self) -> None:
        """Serve until the worker is gone."""
        self._loop.watch_socket(self._zap.socket, self._zap.answer)
        self._loop.watch_socket(self._router, self._hear_client)
        # Threads may be in the middle of anything, and their work is not needed.
        self._line.watch(self._loop, self._hear_worker, lambda: os._exit(0))
        self._loop.every(arena.TIDY_EVERY_S, arena.tidy)
        self._loop.every(ASK_EVERY_S, self._ask_after_clients)
        self._loop.every(STALL_S / 2, self._report_stalled)
        self._server.start()
        self._loop.run()

    # --- the worker -------------------------------------------------------------------------------

    def _hear_worker(self, message: object, fds: list[OwnedFd]) -> None:
        match message:
            case control.Caller(key=key, admitted=admitted) as caller:
                self._access.update(caller)
                self._zap.decide(key, "client" if admitted else None)
                if not admitted:
                    self._check_keys()
                    self._line.send(control.CallerHeard(key=key))
            case control.Meet():
                for fd in fds:
                    end = socket.socket(fileno=fd.take())
                    ActorLine(end, self._loop, self._shelf, self._fetching)

    def _ask_about(self, key: bytes) -> None:
        self._line.send(control.MayCall(key=key))

    # --- clients ----------------------------------------------------------------------------------

    def _hear_client(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        _, key = sockets.sender_of(frames[0])
        if len(frames) != 2 or not self._access.may_call(key):
            self._shelf.lost((route, key), time.monotonic())
            return
        client = route, key
        match self._decode_client(frames[1].buffer):
            case control.Reach():
                self._tell(route, control.Reached(bulk=self._bulk))
            case control.Claim(value=name):
                self._shelf.hold(name, client)
            case control.Expect(value=name, nbytes=nbytes):
                room = reserve(nbytes)
                if room is None:
                    self._tell(route, control.Full(value=name))
                elif self._shelf.add(name, room, client, is_here=False, now=time.monotonic()):
                    self._tell(route, control.Ready(value=name))
            case control.Release(values=names):
                for name in names:
                    self._shelf.drop(name)

    def _tell(self, route: bytes, message: msgspec.Struct) -> bool:
        """Send a message to a client; return whether it is still connected."""
        return sockets.send_to_peer(self._router, (route, control.encode(message)))

    def _tell_owner(self, value: Value[LentRoom], message: msgspec.Struct) -> None:
        """Send a message to the client that announced a value.  Any thread may call this."""
        for route, _ in _clients_among(value.holders.copy()):
            self._loop.call(partial(self._tell, route, message))

    def _ask_after_clients(self) -> None:
        now = time.monotonic()
        for client in self._clients():
            if not self._tell(client[0], control.AreYouThere()):
                self._shelf.lost(client, now)
        self._shelf.tidy(now)

    def _check_keys(self) -> None:
        """The keys have changed: clients that may not call any more hold nothing."""
        for client in self._clients():
            if not self._access.may_call(client[1]):
                self._shelf.lost(client, time.monotonic())

    def _clients(self) -> list[tuple[bytes, bytes]]:
        return _clients_among(self._shelf.holders())

    def _report_stalled(self) -> None:
        """Tell clients about stalled values, which they may have to bring themselves."""
        now = time.monotonic()
        for value in self._shelf.stalled(now - STALL_S):
            value.moved_at = now
            self._tell_owner(value, control.Broken(value=value.name, why="nothing came"))


class ActorLine:
    """The line to one actor of this machine; it lives as long as the actor's end of the socket.

    There is one request at a time on a line; an actor opens several lines if several of its threads
    ask.  Fetching from another machine, which takes long, runs on a thread of its own.
    """

    def __init__(
        self, end: socket.socket, loop: Loop, shelf: Shelf[LentRoom], fetching: Fetching
    ) -> None:
        self._line = Line(end, _FROM_ACTOR)
        self._loop = loop
        self._shelf = shelf
        self._fetching = fetching
        self._peer: OpenedProcess | None = None
        self._line.watch(loop, self._hear, self._lost)

    def _lost(self) -> None:
        self._shelf.lost(self, time.monotonic())

    def _hear(self, message: object, _: object) -> None:
        match message:
            case control.Share(arena=address):
                self._share(address)
            case control.Offer() as offer if self._peer is not None:
                room = OfferedRoom(self._peer.lender, _decode_loan(offer.loan))
                self._shelf.add(offer.value, room, self, grace_s=CLAIM_S)
                self._line.send(control.Offered())
            case control.Withdraw(value=name):
                self._shelf.drop(name)
            case control.Borrow(value=name, bulk=None):
                self._lend(name)
            case control.Borrow(value=name, nbytes=nbytes, bulk=bulk) if bulk is not None:
                fetch = partial(self._fetch, name, nbytes, bulk)
                threads.start("fetch", fetch)
            case control.Follow(origin=origin):
                threads.start("follow", self._follow, origin)

    def _follow(self, origin: bytes) -> None:
        """On a thread of its own: follow a published value of another machine."""
        answer: control.FollowedAt | control.Gone
        try:
            memory = followings.follow(origin)
            answer = control.FollowedAt(memory=_encode(memory.address()))
        except (NotShared, OSError, MemoryError) as error:
            answer = control.Gone(why=str(error))
        self._loop.call(partial(self._line.send, answer))

    def _share(self, address: bytes) -> None:
        """Open an actor's arena.  If that fails, the actor does not use the store."""
        ours = arena.ours()
        try:
            peer = OpenedProcess(_decode_arena(address))
            peer.watch()
        except OSError as error:
            self._line.send(control.Gone(why=str(error)))
            return
        self._peer = peer
        if ours is None:
            self._line.send(control.Gone(why="no memory to share"))
        else:
            self._line.send(control.Shared(arena=_encode(ours.address), bulk=self._fetching.own))

    def _lend(self, name: bytes) -> None:
        value = self._shelf.get(name)
        loan = value and self._peer and value.room.lend(self._peer)
        if loan:
            self._line.send(control.Lent(loan=_encode(loan)))
        else:
            self._line.send(control.Gone(why="no room is left" if value else NOT_HERE))

    def _fetch(self, name: bytes, nbytes: int, bulk: control.BulkAddress) -> None:
        """On a thread of its own: fetch a value, and lend it."""
        gone = self._fetching.fetch(name, nbytes, bulk)
        if gone is not None:
            self._loop.call(partial(self._line.send, gone))
        else:
            self._loop.call(partial(self._lend, name))


class OfferedRoom:
    """Memory that an actor has lent to this process, by a loan that ends with the last view."""

    def __init__(self, lender: Lender, loan: Loan) -> None:
        _, (self.memory,) = lender.open(loan)

    def lend(self, borrower: Borrower) -> Loan | None:
        """Lend a copy: only the actor itself could lend the original again."""
        if (room := reserve(self.memory.nbytes)) is None:
            return None
        room.memory[:] = self.memory
        return room.lend(borrower)


def _clients_among(holders: set[Hashable]) -> list[tuple[bytes, bytes]]:
    """Return the clients, by route and key; other holders are actors."""
    return [holder for holder in holders if isinstance(holder, tuple)]


def main() -> None:
    """Run the store of a machine, as the first message on the worker's socket says."""
    end = socket.socket(fileno=int(sys.argv[1]))
    control_fd = int(sys.argv[2])
    logging.basicConfig(format=daemons.log_format("store", True), level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends with its worker, which handles this
    daemons.raise_descriptor_limit()
    sys.setswitchinterval(0.0005)  # between threads that move bytes
    line = Line(end, control.Decoder("worker > store"))
    if (first := line.receive()) is None:
        return
    birth, _ = first
    assert isinstance(birth, control.StoreBirth)
    Store(line, control_fd, birth).run()
