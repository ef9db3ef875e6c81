"""The relay of a guest, a process that can only make connections: a worker listens for its callers.

    guest   connects to the relay and asks to be admitted   its home connection
    relay   sends a challenge; the guest answers with its HMAC-SHA256 under the token
    relay   opens a port for callers, and sends its address
    caller  connects to that port; the relay sends a ticket on the home connection
    guest   connects again and shows the ticket: the relay splices caller and guest
    relay   sends a beat on the home connection from time to time
    either  ends the home connection: the port is closed.  Splices continue to their own end

Bytes are forwarded unchanged.  Caller and object use CURVE, so the relay sees only ciphertext and
can at most cut the connection.  The token is never sent here, and an answer is useless for another
challenge: an eavesdropper cannot impersonate a guest.  Tickets are sent in the clear.  Whoever uses
one in time takes that caller from its object, and so cuts it off.  An attacker who can modify the
traffic can do no more than that, and take the place of a guest that is being admitted.

There is no flow control but TCP's.  A splice holds one piece per direction, and reads no further
before that is sent: a slow reader blocks its own connection and no other.

A caller may be a stranger, whom the object disconnects but who keeps its own end open.  So when one
direction has ended, the other has DRAIN_S.  A guest has at most MOST_STRANGERS callers that it has
not admitted, as far as the relay can see: they wait for the guest, or have received no more than an
object sends before it knows a key.  If there is one more, the oldest is closed: strangers that do
nothing keep nobody out.
"""

import contextlib
import hmac
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from remotely.errors import RemotelyError, WorkerLost
from remotely.protocol.address import join_address, parse_address
from remotely.protocol.lease import (
    ACCEPT_AGAIN_S,
    BEAT_EVERY_S,
    CONNECT_S,
    DRAIN_S,
    HANDSHAKE_S,
    LEASE_S,
)
from remotely.protocol.listening import Listening
from remotely.transport.listening import listen_for_bytes
from remotely.transport.loop import Loop, Timer

PIECE_BYTES = 1 << 18
PIECES_A_TURN = 4
TICKET_BYTES = 16
MOST_GUESTS = 1_000
MOST_SPLICES = 10_000  # of all guests
MOST_OF_A_GUEST = MOST_SPLICES // 4
MOST_STRANGERS = 256  # callers of one guest that it has not admitted
BEFORE_KEY_BYTES = 64 + 170 + 12  # greeting, WELCOME and ERROR; an admitted key gets READY, 67
MOST_UNKNOWN = 256  # at the relay's own port; the oldest is closed if there are more
PROOF_BYTES = 32
_HERE = bytes(TICKET_BYTES)  # in place of a ticket: a beat of the relay
_NEW = bytes(TICKET_BYTES)  # in place of a ticket: a guest asks to be admitted


@dataclass
class _Direction:
    """One direction of a splice."""

    source: socket.socket
    target: socket.socket
    rest: memoryview = field(default_factory=lambda: memoryview(b""))  # of the last piece
    is_cut: bool = False  # the target accepts no more
    has_ended: bool = False  # the source has ended, and everything was forwarded
    read_bytes: int = 0

    def move(self) -> bool:
        """Forward what is possible now; return whether there may be more."""
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
                with contextlib.suppress(OSError):  # the other direction may go on
                    self.target.shutdown(socket.SHUT_WR)
                return False
            self.rest = memoryview(piece)
            self.read_bytes += len(piece)
        return True

    def _write(self) -> bool:
        """Write the rest; return whether all of it was written."""
        try:
            while self.rest and not self.is_cut:
                self.rest = self.rest[self.target.send(self.rest) :]
        except BlockingIOError:
            return False
        except OSError:
            # The target is gone.  Input is still read, and dropped: closing a TCP socket with
            # unread input resets it, and the kernel discards what the other direction has sent.
            self.is_cut = True
        return True


class Splice:
    """Two connections that forward to each other, until both have ended or DRAIN_S after one."""

    def __init__(
        self,
        loop: Loop,
        one: socket.socket,
        other: socket.socket,
        ended: Callable[["Splice"], object],
        first: bytes = b"",
    ) -> None:
        """`first` is sent on `other` before anything from `one`."""
        self._loop = loop
        self._ended = ended
        self._sockets = one, other
        self._directions = _Direction(one, other, memoryview(first)), _Direction(other, one)
        self._is_open = True
        self._drain: Timer | None = None  # set once one direction has ended
        for end in self._sockets:
            end.setblocking(False)
            loop.watch(end.fileno(), self._pump, edge=True, writable=True)
        loop.call(self._pump)

    @property
    def is_of_stranger(self) -> bool:
        """Whether `other` has sent no more than an object sends before it knows a key."""
        return self._is_open and self._directions[1].read_bytes <= BEFORE_KEY_BYTES

    def _pump(self) -> None:
        if not self._is_open:
            return
        may_go_on = [direction.move() for direction in self._directions]
        if self._drain is None and any(direction.has_ended for direction in self._directions):
            self._drain = self._loop.after(DRAIN_S, self.close)
        if any(may_go_on):
            self._loop.call(self._pump)  # let other connections have their turn
        elif all(direction.has_ended for direction in self._directions):
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
    waiting: dict[bytes, socket.socket] = field(default_factory=dict)  # callers, by ticket
    splices: set[Splice] = field(default_factory=set)
    fetched: list[Splice] = field(default_factory=list)  # the splices that may be of strangers

    def close_strangers_but(self, most: int) -> None:
        """Close all but `most` strangers: the oldest fetched ones first, then waiting ones."""
        self.fetched = [splice for splice in self.fetched if splice.is_of_stranger]
        for _ in range(len(self.fetched) + len(self.waiting) - most):
            if self.fetched:
                self.fetched.pop(0).close()
            else:
                self.waiting.pop(next(iter(self.waiting))).close()


class RelayServer:
    """The relay of one worker.  `left` is called when a guest has left."""

    def __init__(self, loop: Loop, listening: Listening, left: Callable[[], object]) -> None:
        self.token = secrets.token_bytes(TICKET_BYTES)
        self._loop = loop
        self._listening = listening
        self._left = left
        # Connections that are not identified yet, oldest first, and the challenge that was sent.
        self._unknown: dict[socket.socket, bytes] = {}
        self._splices: set[Splice] = set()
        self._guests: dict[int, _Guest] = {}  # by the descriptor of the home connection
        self._listener, self.address = listen_for_bytes(listening)
        self._listen(self._listener, self._await_identity)

    def _listen(self, listener: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
        """Call `accepted` with each connection to a listener."""
        # 1. An event of the loop may belong to an earlier descriptor of this number, so accepting
        #    must not block.
        listener.setblocking(False)
        self._loop.watch(listener.fileno(), lambda: self._accept(listener, accepted))

    def _accept(self, listener: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
        try:
            end, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # 2. No descriptor is left.  The pending connection would wake the loop continuously.
            self._loop.unwatch(listener.fileno())
            self._loop.after(ACCEPT_AGAIN_S, lambda: self._listen_again(listener, accepted))
            return
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted(end)

    def _listen_again(
        self, listener: socket.socket, accepted: Callable[[socket.socket], None]
    ) -> None:
        if listener.fileno() >= 0:  # 3. it was not closed meanwhile
            self._listen(listener, accepted)

    def _await_identity(self, end: socket.socket) -> None:
        """Give a new connection HANDSHAKE_S to show a ticket or to answer a challenge."""
        self._unknown[end] = b""
        self._loop.watch(end.fileno(), lambda: self._identify(end))
        self._loop.after(HANDSHAKE_S, lambda: self._reject(end))
        if len(self._unknown) > MOST_UNKNOWN:
            self._reject(next(iter(self._unknown)))

    def _reject(self, end: socket.socket) -> None:
        if end in self._unknown:
            del self._unknown[end]
            self._drop(end)

    def _identify(self, end: socket.socket) -> None:
        """Handle a request for admission, the answer to a challenge, or a ticket."""
        challenge = self._unknown[end]
        try:
            shown = end.recv(PROOF_BYTES if challenge else TICKET_BYTES)
            if shown == _NEW and not challenge:
                self._unknown[end] = secrets.token_bytes(TICKET_BYTES)
                end.send(self._unknown[end])
                return
        except BlockingIOError:
            return
        except OSError:  # it is gone
            shown = b""
        del self._unknown[end]
        self._loop.unwatch(end.fileno())
        if challenge:
            if hmac.compare_digest(shown, prove(self.token, challenge)):
                self._admit(end)
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
        """Close everything, including all splices."""
        for guest in list(self._guests.values()):
            self._end(guest)
        for splice in list(self._splices):
            splice.close()
        for end in [self._listener, *self._unknown]:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        self._loop.unwatch(end.fileno())
        end.close()

    def _admit(self, home: socket.socket) -> None:
        """Admit a guest, and open a port for its callers."""
        try:
            if len(self._guests) >= MOST_GUESTS:
                raise RemotelyError("there is no room for another guest")
            port, endpoints = listen_for_bytes(self._listening)
        except (OSError, RemotelyError):  # the guest sees the end of its connection, and retries
            home.close()
            return
        # Unacknowledged data ends the connection if the guest's machine has vanished.
        home.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * LEASE_S))
        guest = self._guests[home.fileno()] = _Guest(home, port)
        self._loop.watch(home.fileno(), lambda: self._end(guest))  # it sends nothing more
        self._listen(port, lambda caller: self._fetch_caller(guest, caller))
        self._send(guest, len(endpoints).to_bytes(2) + endpoints.encode())
        self._beat(guest)

    def _beat(self, guest: _Guest) -> None:
        if guest.home.fileno() >= 0:
            self._send(guest, _HERE)
            self._loop.after(BEAT_EVERY_S, lambda: self._beat(guest))

    def _fetch_caller(self, guest: _Guest, caller: socket.socket) -> None:
        """Have the guest fetch a caller that has connected."""
        guest.close_strangers_but(MOST_STRANGERS - 1)
        of_guest = len(guest.waiting) + len(guest.splices)
        if of_guest >= MOST_OF_A_GUEST or len(self._splices) >= MOST_SPLICES:
            caller.close()
            return
        ticket = secrets.token_bytes(TICKET_BYTES)
        guest.waiting[ticket] = caller
        self._loop.after(HANDSHAKE_S, lambda: self._drop_caller(guest, ticket))
        self._send(guest, ticket)

    def _drop_caller(self, guest: _Guest, ticket: bytes) -> None:
        if (caller := guest.waiting.pop(ticket, None)) is not None:
            caller.close()

    def _send(self, guest: _Guest, data: bytes) -> None:
        """Send on a home connection.  If its buffer is full, the guest is stopped."""
        try:
            is_sent = guest.home.send(data) == len(data)
        except BlockingIOError:
            return
        except OSError:
            is_sent = False
        if not is_sent:
            self._end(guest)

    def _end(self, guest: _Guest) -> None:
        """Remove a guest.  Its splices go on, for last replies on their way."""
        if self._guests.pop(guest.home.fileno(), None) is None:
            return
        for end in (guest.home, guest.port):
            self._drop(end)
        for ticket in list(guest.waiting):
            self._drop_caller(guest, ticket)
        self._left()


def prove(token: bytes, challenge: bytes) -> bytes:
    """Return the answer to a challenge, which requires the token."""
    return hmac.digest(token, challenge, "sha256")


class Home:
    """The guest's side of a relay.  The constructor connects, or raises WorkerLost.

    endpoints   the addresses for callers
    path        of the socket on which the object receives calls
    lost        called with the reason when the relay is gone
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
        loop.watch(self._home.fileno(), self._receive)

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
        """The number of connections that this process forwards."""
        return len(self._splices)

    def _receive(self) -> None:
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
        """Connect a caller at the relay with the object."""
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
        """Close all connections, on the loop's thread: callers are cut off."""
        for splice in list(self._splices):
            splice.close()
        self._loop.unwatch(self._home.fileno())
        self._silent.cancel()
        self._home.close()
