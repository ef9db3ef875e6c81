"""The relay of a process that can only make connections: a worker lends it a port for callers.

    guest   connects to the relay and asks to be let in     its home connection
    relay   sends a challenge; the guest answers with its HMAC-SHA256 under the token
    relay   opens a port for callers, and says where it is
    caller  connects to that port; the relay sends a ticket along the home connection
    guest   connects again and shows the ticket: the relay splices caller and guest
    relay   says now and then along the home connection that it is there
    either  ends the home connection: the port is closed.  What is spliced goes on to its own end

Bytes pass as they are.  Caller and object speak CURVE with each other, so what is between them
sees ciphertext, and can at most cut it off.  The token never travels here, and an answer is of no
use for another challenge: who reads along cannot pose as a guest.  Tickets are sent in the clear:
who takes one in time takes that caller from its object, and so cuts it off.  Who can change what is
sent can do no more, and take the place of a guest that is being let in.

There is no flow control here but TCP's.  A splice holds a piece for each direction, and reads no
further before that has left: a slow reader holds up its own connection and no other.

A caller may be a stranger, whom the object cuts off, and who may keep its own end open.  So when
one direction has ended, the other has DRAIN_S.  A guest has MOST_STRANGERS callers at a time that
it has not let in, as far as can be seen here: they wait to be fetched, or were sent no more than
what an object says before it knows a key.  One more, and the oldest of them is closed: so strangers
that do nothing keep nobody out.
"""

import contextlib
import hmac
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from remotely.errors import RemotelyError, WorkerLost
from remotely.protocol.address import join_address, parse_address
from remotely.protocol.lease import BEAT_EVERY_S, CONNECT_S, DRAIN_S, HANDSHAKE_S, LEASE_S
from remotely.protocol.listening import Listening
from remotely.transport.listening import listen_for_bytes
from remotely.transport.loop import Loop, Timer

PIECE_BYTES = 1 << 18
PIECES_A_TURN = 4
TICKET_BYTES = 16
MOST_GUESTS = 1_000
MOST_SPLICES = 10_000  # of all guests
MOST_OF_A_GUEST = MOST_SPLICES // 4
MOST_STRANGERS = 256  # callers of one guest that it has not let in
BEFORE_KEY_BYTES = 64 + 170 + 12  # greeting, WELCOME and ERROR; a known key is sent READY, of 67
MOST_UNKNOWN = 256  # at the relay's own port: one more, and the oldest is cut
AGAIN_S = 0.1  # until a connection is taken for which there was no descriptor
PROOF_BYTES = 32
_HERE = bytes(TICKET_BYTES)  # in the place of a ticket: the relay is there
_NEW = bytes(TICKET_BYTES)  # in the place of a ticket: a guest that asks to be let in


@dataclass
class _Way:
    """One direction of a splice."""

    source: socket.socket
    target: socket.socket
    rest: memoryview = field(default_factory=lambda: memoryview(b""))  # of the last piece
    is_cut: bool = False  # the target takes no more
    has_ended: bool = False  # the source has, and all of it was passed on
    read_bytes: int = 0

    def move(self) -> bool:
        """Pass on what can be passed on now; return whether there may be more at once."""
        for _ in range(PIECES_A_TURN):
            if self.has_ended or not self._write():
                return False
            try:
                piece = self.source.recv(PIECE_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                piece = b""
            if not piece:
                self.has_ended = True
                with contextlib.suppress(OSError):  # the other way may go on
                    self.target.shutdown(socket.SHUT_WR)
                return False
            self.rest = memoryview(piece)
            self.read_bytes += len(piece)
        return True

    def _write(self) -> bool:
        """Write the rest; return whether nothing of it is left."""
        try:
            while self.rest and not self.is_cut:
                self.rest = self.rest[self.target.send(self.rest) :]
        except BlockingIOError:
            return False
        except OSError:
            # The target has gone.  What comes is still read, and dropped: to close a TCP socket
            # with unread input resets it, and the kernel discards what the other way has sent.
            self.is_cut = True
        return True


class Splice:
    """Two connections, each of which is sent what comes along the other.

    It closes when both have ended, or DRAIN_S after one has.
    """

    def __init__(
        self,
        loop: Loop,
        one: socket.socket,
        other: socket.socket,
        ended: Callable[["Splice"], object],
        first: bytes = b"",
    ) -> None:
        """`first` is sent along `other` before what comes from `one`."""
        self._loop = loop
        self._ended = ended
        self._sockets = one, other
        self._ways = _Way(one, other, memoryview(first)), _Way(other, one)
        self._is_open = True
        self._drain: Timer | None = None  # since one way has ended
        for end in self._sockets:
            end.setblocking(False)
            loop.watch(end.fileno(), self._pump, edge=True, writable=True)
        loop.call(self._pump)

    @property
    def is_of_stranger(self) -> bool:
        """Whether `other` has yet to send what follows the check of a key."""
        return self._is_open and self._ways[1].read_bytes <= BEFORE_KEY_BYTES

    def _pump(self) -> None:
        if not self._is_open:
            return
        may_go_on = [way.move() for way in self._ways]
        if self._drain is None and any(way.has_ended for way in self._ways):
            self._drain = self._loop.after(DRAIN_S, self.close)
        if any(may_go_on):
            self._loop.call(self._pump)  # other connections have their turn
        elif all(way.has_ended for way in self._ways):
            self.close()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            if self._drain is not None:
                self._drain.cancel()
            for end in self._sockets:
                self._loop.unwatch(end.fileno())
                end.close()
            self._ended(self)


@dataclass
class _Guest:
    """A process that serves an object, as its relay knows it."""

    home: socket.socket
    port: socket.socket
    waiting: dict[bytes, socket.socket] = field(default_factory=dict)  # callers, by their ticket
    splices: set[Splice] = field(default_factory=set)
    fetched: list[Splice] = field(default_factory=list)  # of these, of strangers until lately

    def close_strangers_but(self, most: int) -> None:
        """Close the oldest callers that it has not let in, those that it has fetched first."""
        self.fetched = [splice for splice in self.fetched if splice.is_of_stranger]
        for _ in range(len(self.fetched) + len(self.waiting) - most):
            if self.fetched:
                self.fetched.pop(0).close()
            else:
                self.waiting.pop(next(iter(self.waiting))).close()


class Relay:
    """The relay of one worker.  `left` is called when a guest has gone."""

    def __init__(self, loop: Loop, listening: Listening, left: Callable[[], object]) -> None:
        self.token = secrets.token_bytes(TICKET_BYTES)
        self._loop = loop
        self._listening = listening
        self._left = left
        # Those who have shown nothing yet, the oldest first, and the challenge of who has asked.
        self._unknown: dict[socket.socket, bytes] = {}
        self._splices: set[Splice] = set()
        self._guests: dict[int, _Guest] = {}  # by the descriptor of the home connection
        self._listener, self.address = listen_for_bytes(listening)
        self._listen(self._listener, self._meet)

    def _listen(self, listener: socket.socket, met: Callable[[socket.socket], None]) -> None:
        """Have `met` called with each connection that is made there."""
        # 1. What the loop has seen may be of an earlier descriptor of this number: to accept is
        #    never to wait.
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), lambda: self._accept(listener, met))

    def _accept(self, listener: socket.socket, met: Callable[[socket.socket], None]) -> None:
        try:
            end, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # 2. No descriptor is left.  The connection still waits, and would wake the loop again
            #    and again.
            self._loop.unwatch(listener.fileno())
            self._loop.after(AGAIN_S, lambda: self._listen_again(listener, met))
            return
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        met(end)

    def _listen_again(self, listener: socket.socket, met: Callable[[socket.socket], None]) -> None:
        if listener.fileno() >= 0:  # 3. it was not closed meanwhile
            self._listen(listener, met)

    def _meet(self, end: socket.socket) -> None:
        """Somebody has connected, and is to show a ticket or answer a challenge in time."""
        self._unknown[end] = b""
        self._loop.watch(end.fileno(), lambda: self._let_in(end))
        self._loop.after(HANDSHAKE_S, lambda: self._turn_away(end))
        if len(self._unknown) > MOST_UNKNOWN:
            self._turn_away(next(iter(self._unknown)))

    def _turn_away(self, end: socket.socket) -> None:
        if end in self._unknown:
            del self._unknown[end]
            self._drop(end)

    def _let_in(self, end: socket.socket) -> None:
        """It asks to be let in, answers the challenge, or shows a ticket."""
        challenge = self._unknown[end]
        try:
            shown = end.recv(PROOF_BYTES if challenge else TICKET_BYTES)
            if shown == _NEW and not challenge:
                self._unknown[end] = secrets.token_bytes(TICKET_BYTES)
                end.send(self._unknown[end])
                return
        except BlockingIOError:
            return
        except OSError:  # it has gone
            shown = b""
        del self._unknown[end]
        self._loop.unwatch(end.fileno())
        if challenge:
            if hmac.compare_digest(shown, prove(self.token, challenge)):
                self._begin(end)
                return
        else:
            for guest in self._guests.values():
                if (caller := guest.waiting.pop(shown, None)) is not None:
                    self._splice(guest, caller, end)
                    return
        end.close()

    def _splice(self, guest: _Guest, caller: socket.socket, end: socket.socket) -> None:
        def ended(splice: Splice) -> None:
            self._splices.discard(splice)
            guest.splices.discard(splice)

        splice = Splice(self._loop, caller, end, ended)
        self._splices.add(splice)
        guest.splices.add(splice)
        guest.fetched.append(splice)

    def close(self) -> None:
        """Let go of everything; what is spliced is cut off."""
        for guest in list(self._guests.values()):
            self._end(guest)
        for splice in list(self._splices):
            splice.close()
        for end in [self._listener, *self._unknown]:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        self._loop.unwatch(end.fileno())
        end.close()

    def _begin(self, home: socket.socket) -> None:
        """A guest is there: open a port for its callers."""
        try:
            if len(self._guests) >= MOST_GUESTS:
                raise RemotelyError("there is no room for another guest")
            port, endpoints = listen_for_bytes(self._listening)
        except (OSError, RemotelyError):  # it sees the end of its connection, and tries again
            home.close()
            return
        # What was sent to a machine that has vanished ends the connection.
        home.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * LEASE_S))
        guest = self._guests[home.fileno()] = _Guest(home, port)
        self._loop.watch(home.fileno(), lambda: self._end(guest))  # it says nothing more
        self._listen(port, lambda caller: self._knocked(guest, caller))
        self._say(guest, len(endpoints).to_bytes(2) + endpoints.encode())
        self._beat(guest)

    def _beat(self, guest: _Guest) -> None:
        if guest.home.fileno() >= 0:
            self._say(guest, _HERE)
            self._loop.after(BEAT_EVERY_S, lambda: self._beat(guest))

    def _knocked(self, guest: _Guest, caller: socket.socket) -> None:
        """A caller connects: have the guest fetch it."""
        guest.close_strangers_but(MOST_STRANGERS - 1)
        of_guest = len(guest.waiting) + len(guest.splices)
        if of_guest >= MOST_OF_A_GUEST or len(self._splices) >= MOST_SPLICES:
            caller.close()
            return
        ticket = secrets.token_bytes(TICKET_BYTES)
        guest.waiting[ticket] = caller
        self._loop.after(HANDSHAKE_S, lambda: self._give_up(guest, ticket))
        self._say(guest, ticket)

    def _give_up(self, guest: _Guest, ticket: bytes) -> None:
        if (caller := guest.waiting.pop(ticket, None)) is not None:
            caller.close()

    def _say(self, guest: _Guest, data: bytes) -> None:
        """Send along a home connection.  One that is full is that of a guest that was stopped."""
        try:
            is_sent = guest.home.send(data) == len(data)
        except BlockingIOError:
            return
        except OSError:
            is_sent = False
        if not is_sent:
            self._end(guest)

    def _end(self, guest: _Guest) -> None:
        """A guest has gone.  What was spliced may still have last replies on its way."""
        if self._guests.pop(guest.home.fileno(), None) is None:
            return
        for end in (guest.home, guest.port):
            self._drop(end)
        for ticket in list(guest.waiting):
            self._give_up(guest, ticket)
        self._left()


def prove(token: bytes, challenge: bytes) -> bytes:
    """Return what only those can answer who were told the token."""
    return hmac.digest(token, challenge, "sha256")


class Home:
    """A guest's end.  The constructor connects to the relay, and raises WorkerLost.

    endpoints   where callers connect
    path        of the socket at which the object takes calls
    lost        is told why, when the relay is gone
    """

    def __init__(
        self, loop: Loop, address: str, token: bytes, path: str, lost: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._path = path
        self._lost = lost
        self._splices: set[Splice] = set()
        try:
            self._home = socket.create_connection(parse_address(address), CONNECT_S)
            self.endpoints = self._dial_in(token)
        except (OSError, ValueError) as error:
            raise WorkerLost(f"no worker relays at {address}: {error}") from None
        self._relay = self._home.getpeername()
        self._home.setblocking(False)
        self._address = join_address(*self._relay[:2])
        self._silent = loop.after(LEASE_S, self._fall_silent)
        loop.watch(self._home.fileno(), self._hear)

    def _dial_in(self, token: bytes) -> str:
        try:
            self._home.sendall(_NEW)
            challenge = self._home.recv(TICKET_BYTES, socket.MSG_WAITALL)
            self._home.sendall(prove(token, challenge))
            size = int.from_bytes(self._home.recv(2, socket.MSG_WAITALL))
            if not size:
                raise OSError("it has no room for another guest")
            return self._home.recv(size, socket.MSG_WAITALL).decode()
        except (OSError, ValueError):
            self._home.close()
            raise

    def __len__(self) -> int:
        """How many connections there are, of which this process passes on what is sent."""
        return len(self._splices)

    def _hear(self) -> None:
        try:
            ticket = self._home.recv(TICKET_BYTES, socket.MSG_PEEK)
            if 0 < len(ticket) < TICKET_BYTES:  # the rest is on its way
                return
            self._home.recv(TICKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            ticket = b""
        self._silent.cancel()
        self._silent = self._loop.after(LEASE_S, self._fall_silent)
        if not ticket:
            self._loop.unwatch(self._home.fileno())
            self._lost(f"the connection to {self._address}, which relays its calls, broke")
        elif ticket != _HERE:
            self._fetch(ticket)

    def _fall_silent(self) -> None:
        self._lost(f"{self._address}, which relays its calls, has been silent for {LEASE_S:.0f} s")

    def _fetch(self, ticket: bytes) -> None:
        """A caller has connected over there: connect it with the object."""
        ours, theirs = socket.socket(socket.AF_UNIX), socket.socket(self._home.family)
        try:
            ours.setblocking(False)
            theirs.setblocking(False)
            ours.connect(self._path)
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            theirs.connect_ex(self._relay)
        except OSError:
            ours.close()
            theirs.close()
        else:
            self._splices.add(Splice(self._loop, ours, theirs, self._splices.discard, ticket))

    def close(self) -> None:
        """End all connections, where the loop runs: callers are cut off."""
        for splice in list(self._splices):
            splice.close()
        self._loop.unwatch(self._home.fileno())
        self._silent.cancel()
        self._home.close()
