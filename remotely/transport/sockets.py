"""ZeroMQ sockets that are encrypted from the first byte, without harmful defaults.

libzmq fails open: a CURVE server without a ZAP handler admits anyone who knows its public key.  So
every server socket here names a domain, enforces it, and belongs to a context whose ZapHandler was
bound before the socket.  The same holds for ipc and loopback.
"""

import enum
import os
import socket as stdlib_socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import zmq
from zmq.backend import Socket as _Backend

from remotely.errors import RemotelyError
from remotely.protocol import wire
from remotely.protocol.address import join_address
from remotely.protocol.lease import CONNECT_S, HANDSHAKE_S, HEARTBEAT_IVL_S, HEARTBEAT_TIMEOUT_S
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.keys import KeyPair

DOMAIN = b"remotely"
CURVE_BYTES = 33  # that CURVE adds to a frame: libzmq limits the encrypted size
MAX_FRAME_BYTES = wire.MAX_FRAME_BYTES + CURVE_BYTES
MAX_UNDECIDED = 1000  # connections that wait for a decision; others must retry
BACKLOG = 1024
MAX_SOCKETS = 20_000  # for a client of 5,000 actors; libzmq allocates slots, not sockets

# The options of every socket: option, value, and the harm of its default.
OPTIONS: list[tuple[int, int, str]] = [
    (zmq.LINGER, 0, "closing waits forever for a peer that is gone"),
    (zmq.MAXMSGSIZE, MAX_FRAME_BYTES, "a frame of any size is accepted"),
    (zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000), "half-open peers are kept for 30 s"),
    (zmq.BACKLOG, BACKLOG, "a burst of 101 connections is refused"),
    (zmq.IPV6, 0, "a v4 address may bind as v6"),  # on for an address in brackets
]
# Additional options of servers and clients.
SERVER_OPTIONS: list[tuple[int, int, str]] = [
    (zmq.ROUTER_MANDATORY, 1, "replies to a peer that is gone are dropped in silence"),
    (zmq.SNDHWM, 0, "a reply to a slow reader blocks every other reply"),
    (zmq.RCVHWM, 1000, "waiting calls fill the memory of the server"),
]
CLIENT_OPTIONS: list[tuple[int, int, str]] = [
    (zmq.CONNECT_TIMEOUT, int(CONNECT_S * 1000), "the kernel tries for two minutes"),
    (zmq.SNDHWM, 0, "a submit blocks"),
    (zmq.RCVHWM, 0, "ticks and replies of a client that holds the GIL are held up"),
]
# Additional options of both ends of a TCP connection: each pings to notice that the other is gone.
# Within a machine that is not needed: the kernel reports the end of a process, and a stopped
# process is worth waiting for.  HEARTBEAT_TTL stays off: a ping of the peer starts that timer and
# any other message stops it, so it misses a peer that vanishes after a message.
REMOTE_OPTIONS: list[tuple[int, int, str]] = [
    (zmq.HEARTBEAT_IVL, int(HEARTBEAT_IVL_S * 1000), "a machine that vanishes is never noticed"),
    (zmq.HEARTBEAT_TIMEOUT, int(HEARTBEAT_TIMEOUT_S * 1000), "one late beat cuts"),
    # When libzmq pings, it asserts that input was never stopped: see the test.  back_pressure.py
    # limits the pending calls of an honest client; any other key holder could fill memory anyway.
    (
        zmq.RCVHWM,
        0,
        "libzmq aborts this process if a peer disconnects while more messages of it wait",
    ),
]


class Reconnect(enum.IntEnum):
    """What a client's socket does when its connection breaks."""

    # Calls: queued messages must not reach the next life of an actor.  A day, not libzmq's -1, with
    # which unread replies are dropped together with the connection.
    NEVER = 86_400_000
    BACKING_OFF = 100  # control: the master may come back


class RawSocket(zmq.Socket[bytes]):
    """A socket with the methods of pyzmq's C backend.

    pyzmq's own methods convert flags and options to enums and back at every call.  The backend
    takes plain numbers, in a fifth of the time.
    """

    get = _Backend.get
    send = _Backend.send  # type: ignore[assignment]
    recv = _Backend.recv


def new_context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Return a private context, separate from the user's ZAP handler and options."""
    if not zmq.has("curve") or zmq.zmq_version_info() < (4, 3, 3):
        raise RemotelyError(
            f"this libzmq ({zmq.zmq_version()}) has no CURVE encryption or is older than 4.3.3; "
            "install pyzmq from its wheel"
        )
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    context._socket_class = RawSocket
    return context


def server(context: "zmq.Context[zmq.Socket[bytes]]", pair: KeyPair) -> "zmq.Socket[bytes]":
    """Return a ROUTER that admits what the context's ZapHandler admits.  Create that one first."""
    socket = context.socket(zmq.ROUTER)
    _set(socket, OPTIONS + SERVER_OPTIONS)
    socket.curve_server = True
    socket.curve_secretkey = pair.secret
    socket.zap_domain = DOMAIN
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
    return socket


def client(
    context: "zmq.Context[zmq.Socket[bytes]]",
    pair: KeyPair,
    server_public: bytes,
    reconnect: Reconnect,
) -> "zmq.Socket[bytes]":
    """Return a DEALER that talks only to the holder of `server_public`."""
    socket = context.socket(zmq.DEALER)
    _set(socket, OPTIONS + CLIENT_OPTIONS)
    socket.set(zmq.RECONNECT_IVL, reconnect)
    if reconnect is Reconnect.BACKING_OFF:
        socket.set(zmq.RECONNECT_IVL_MAX, 2000)
    socket.curve_publickey = pair.public
    socket.curve_secretkey = pair.secret
    socket.curve_serverkey = server_public
    return socket


def _set(socket: "zmq.Socket[bytes]", options: list[tuple[int, int, str]]) -> None:
    for option, value, _ in options:
        socket.set(option, value)


def bind(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind, and ping peers on other machines.  Options apply to addresses that are bound later."""
    _prepare(socket, address)
    socket.bind(address)


def bind_to(socket: "zmq.Socket[bytes]", fd: int) -> None:
    """Bind to a TCP port through an inherited descriptor that already listens."""
    with stdlib_socket.socket(fileno=os.dup(fd)) as listener:
        host, port = listener.getsockname()[:2]
    socket.set(zmq.USE_FD, fd)
    bind(socket, f"tcp://{join_address(host, port)}")


def connect(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Connect, and ping the other end if it is on another machine."""
    _prepare(socket, address)
    socket.connect(address)


def _prepare(socket: "zmq.Socket[bytes]", address: str) -> None:
    if is_remote(address):
        _set(socket, REMOTE_OPTIONS)
        if "[" in address:
            socket.set(zmq.IPV6, 1)


def is_remote(address: str) -> bool:
    return not address.startswith("ipc:")


def readable(socket: "zmq.Socket[bytes]") -> bool:
    """Return whether a message waits; this also resets the socket's edge-triggered descriptor."""
    events: Any = socket.get(EVENTS)
    return bool(events & POLLIN)


def event_of(frame: bytes | memoryview) -> int:
    """Return the event in a monitor's message: its first two bytes, see zmq_socket_monitor(3).

    zmq.utils.monitor parses all of it, but imports asyncio, a tenth of `import remotely`.
    """
    return int.from_bytes(frame[:2], sys.byteorder)


def event_fd(frame: bytes | memoryview) -> int:
    """Return the descriptor of the connection in a monitor's message."""
    return int.from_bytes(frame[2:6], sys.byteorder)


def fd_of(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection on which this frame arrived."""
    return int(frame.get(zmq.SRCFD))


def receive(socket: "zmq.Socket[bytes]") -> list[bytes | memoryview]:
    """Receive a waiting message; its buffers are views of libzmq's memory."""
    frame: zmq.Frame = socket.recv(NOBLOCK, False)
    if not frame.more:
        return [frame.bytes if len(frame) < _COPY_BELOW_BYTES else frame.buffer]
    frames = [frame.buffer]
    while frame.more:
        frame = socket.recv(NOBLOCK, False)
        frames.append(frame.buffer)
    return frames


def receive_identified(
    socket: "zmq.Socket[bytes]",
) -> tuple[bytes, bytes, list[bytes | memoryview]]:
    """Receive a waiting message of a ROUTER: its route, the key of its sender, and its frames."""
    route: zmq.Frame = socket.recv(NOBLOCK, False)
    return route.bytes, sender_of(route)[1], receive(socket)


def receive_routed(socket: "zmq.Socket[bytes]") -> tuple[bytes, list[bytes | memoryview]]:
    """Receive a waiting message of a ROUTER: its route, and its frames."""
    route: bytes = socket.recv(NOBLOCK)
    return route, receive(socket)


def send(socket: "zmq.Socket[bytes]", frames: Sequence[bytes | memoryview]) -> None:
    """Send a copy of a message: its buffers may be changed right after the call."""
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        socket.send(frame, NOBLOCK if i == last else NOBLOCK | _SNDMORE)


def send_to_peer(router: "zmq.Socket[bytes]", frames: Sequence[bytes | memoryview]) -> bool:
    """Send a copy of a message from a ROUTER; return whether the peer is still connected.

    The first frame is the route.  Nothing else tells whether a peer is there; a message that it
    ignores does only that.
    """
    try:
        send(router, frames)
        return True
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False


# As plain numbers: see RawSocket.
NOBLOCK, _SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
EVENTS, POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_COPY_BELOW_BYTES = 4096  # a view costs as much


class UnknownKey(enum.Enum):
    """The verdict on a key that another process may know."""

    ASKED = "the connection waits until `decide` is called"


class ZapHandler:
    """The ZAP handler of a context: decides which peers may connect, before they can send.

    `admit` takes a peer's public key (Z85, 40 bytes) and returns its role, or None to refuse.
    libzmq attaches role and key to every message of that peer as its "User-Id".

    A request may wait for `decide` while others are decided.  After HANDSHAKE_S libzmq drops it,
    and the peer may connect again.  A refused peer does not: its libzmq gives up permanently.

    libzmq disconnects a peer that sends no handshake, without reporting its address.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        admit: Callable[[bytes], "str | UnknownKey | None"],
        throttled: ThrottledLog,
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")
        self._admit = admit
        self._throttled = throttled
        self._undecided: dict[bytes, list[_Request]] = {}  # by key

    def answer(self, frames: list[zmq.Frame]) -> None:
        """Answer a request of libzmq (RFC 27), or keep it for `decide`."""
        route, _, version, number, domain, address, _, mechanism, *credentials = (
            frame.bytes for frame in frames
        )
        verdict: str | UnknownKey | None = None
        request, key = _Request(route, number, address), b""
        if version == b"1.0" and mechanism == b"CURVE" and domain == DOMAIN and credentials:
            key = zmq.utils.z85.encode(credentials[0])
            verdict = self._admit(key)
        waiting = sum(map(len, self._undecided.values()))
        if verdict is UnknownKey.ASKED and waiting < MAX_UNDECIDED:
            self._undecided.setdefault(key, []).append(request)
        else:
            self._decide(request, key, verdict)

    def decide(self, key: bytes, role: str | None) -> None:
        """Answer the waiting requests about a key."""
        for request in self._undecided.pop(key, ()):
            self._decide(request, key, role)

    def review(self, role_of: Callable[[bytes], str | None]) -> None:
        """Admit the waiting peers whose keys are known by now."""
        for key in list(self._undecided):
            if role := role_of(key):
                self.decide(key, role)

    def _decide(self, request: "_Request", key: bytes, verdict: str | UnknownKey | None) -> None:
        code, text, user = b"400", b"unknown key", b""
        if isinstance(verdict, str):
            code, text, user = b"200", b"OK", f"{verdict} {key.decode()}".encode()
        elif verdict is UnknownKey.ASKED:  # too many are waiting
            code, text = b"300", b"try again"
        else:
            whence = request.address.decode(errors="replace") or "this machine"
            sentence = f"refused a connection from {whence}: unknown key"
            self._throttled.add(whence, sentence, time.monotonic())
        answer = [b"1.0", request.number, code, text, user, b""]
        self.socket.send_multipart([request.route, b"", *answer])


class _Request(NamedTuple):
    route: bytes
    number: bytes
    address: bytes


def address_of(frame: zmq.Frame) -> str:
    """Return the IP address of the sender of this frame; for ipc, its process."""
    return str(frame.get("Peer-Address"))


def sender_of(frame: zmq.Frame) -> tuple[str, bytes]:
    """Return the role that the ZapHandler gave to the sender of this frame, and its public key."""
    role, _, key = str(frame.get("User-Id")).partition(" ")
    return role, key.encode()
