"""Authentication on every socket: without the right key no byte arrives, on ipc or on TCP.

Each refusal is proved by the order of messages: the intruder sends first, then a peer with a key,
and the first message that the server receives is the peer's.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from remotely.protocol import wire
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import sockets
from remotely.transport.keys import KeyPair, fresh_pair
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect, ZapHandler

DEADLINE_S = 40.0

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


class Server:
    """A ROUTER as in the master and actors, and the messages that arrived."""

    def __init__(self, address: str, pair: KeyPair, roles: dict[bytes, str], zap: bool) -> None:
        self.loop = Loop()
        self.context = sockets.new_context()
        self.arrived: list[tuple[str, bytes]] = []
        self.routes: list[bytes] = []
        self.asked: list[bytes] = []
        self.throttled: list[str] = []
        self._roles = roles
        self.zap: ZapHandler | None = None
        if zap:
            self.zap = ZapHandler(self.context, self._admit, ThrottledLog(self.throttled.append))
            self.loop.watch_socket(self.zap.socket, self.zap.answer)
        self.socket = sockets.server(self.context, pair)
        sockets.bind(self.socket, address)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.loop.watch_socket(self.socket, self._receive)

    def _admit(self, key: bytes) -> str | None:
        self.asked.append(key)
        return self._roles.get(key)

    def _receive(self, frames: list[zmq.Frame]) -> None:
        self.routes.append(frames[0].bytes)
        self.arrived.append((sockets.sender_of(frames[-1])[0], frames[-1].bytes))

    def close(self) -> None:
        self.loop.close()
        self.socket.close(linger=0)
        if self.zap is not None:
            self.zap.socket.close(linger=0)
        self.context.term()


class Peer:
    """A client socket with a monitor."""

    def __init__(self, context: Context, socket: Socket, address: str) -> None:
        self.socket = socket
        self.events: list[int] = []
        socket.linger = 0
        socket.sndtimeo = int(DEADLINE_S * 1000)
        self.monitor = socket.get_monitor_socket()
        sockets.connect(socket, address)

    def see(self) -> list[int]:
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            self.events.append(int(event))
        return self.events

    def has_seen(self, events: int) -> bool:
        return any(event & events for event in self.see())

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=0)


class World:
    """One server, its keys, and its peers."""

    def __init__(self, address: str) -> None:
        self.pair, self.client, self.worker = fresh_pair(), fresh_pair(), fresh_pair()
        self.roles = {self.client.public: "client", self.worker.public: "worker"}
        self._bind_to = address
        self._context = sockets.new_context()
        self._peers: list[Peer] = []
        self.servers: list[Server] = []

    def serve(self, zap: bool = True, pair: KeyPair | None = None, at: str = "") -> Server:
        self.servers.append(Server(at or self._bind_to, pair or self.pair, self.roles, zap))
        return self.servers[-1]

    def connect(self, server: Server, options: Callable[[Socket], None], kind: int) -> Peer:
        """Connect a socket with arbitrary options."""
        socket = self._context.socket(kind)
        options(socket)
        return self._keep(Peer(self._context, socket, server.address))

    def enter(
        self,
        server: Server,
        pair: KeyPair,
        server_public: bytes | None = None,
        reconnect: Reconnect = Reconnect.NEVER,
    ) -> Peer:
        """Connect a socket as remotely creates it."""
        public = server_public or self.pair.public
        socket = sockets.client(self._context, pair, public, reconnect)
        return self._keep(Peer(self._context, socket, server.address))

    def _keep(self, peer: Peer) -> Peer:
        self._peers.append(peer)
        return peer

    def until(self, fact: Callable[[], bool]) -> None:
        """Run all servers until `fact` is true."""
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline, "timed out"
            for server in self.servers:
                server.loop.turn(0.01)

    def drop(self, server: Server) -> None:
        self.servers.remove(server)
        server.close()

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self._context.term()
        for server in list(self.servers):
            self.drop(server)


@pytest.fixture(params=["ipc", "tcp"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(f"ipc://{tmp_path}/s" if request.param == "ipc" else "tcp://127.0.0.1:*")
    yield made
    made.close()


# --- admitted peers -------------------------------------------------------------------------------


def test_every_message_has_the_role_of_its_sender(world: World) -> None:
    server = world.serve()
    for peer in (world.enter(server, world.client), world.enter(server, world.worker)):
        for _ in range(10):
            peer.socket.send_multipart([b"first frame", b"second frame"])
    world.until(lambda: len(server.arrived) == 20)
    assert sorted(role for role, _ in server.arrived) == ["client"] * 10 + ["worker"] * 10


def test_a_peer_cannot_choose_its_role(world: World) -> None:
    server = world.serve()
    peer = world.enter(server, world.worker)
    other = sockets.client(world._context, world.worker, world.pair.public, Reconnect.NEVER)
    other.setsockopt(zmq.METADATA, b"X-User-Id:client")
    other.setsockopt(zmq.ROUTING_ID, b"client")
    liar = world._keep(Peer(world._context, other, server.address))
    liar.socket.send(b"I am a client")
    peer.socket.send(b"I am a worker")
    world.until(lambda: len(server.arrived) == 2)
    assert {role for role, _ in server.arrived} == {"worker"}


# --- refused peers --------------------------------------------------------------------------------


def without_options(socket: Socket) -> None:
    pass


def with_a_password(socket: Socket) -> None:
    socket.plain_username = b"admin"
    socket.plain_password = b"admin"


def as_a_plain_server(socket: Socket) -> None:
    socket.plain_server = True


def nothing_of(world: World, server: Server, intruder: Peer, words: bytes = b"intruder") -> None:
    """Check that an intruder is refused, and that a peer's message is the first to arrive."""
    intruder.socket.setsockopt(zmq.SNDTIMEO, 0)
    try:
        intruder.socket.send(words)
    except zmq.Again:
        pass  # libzmq accepts no message for a peer that is not connected yet
    world.until(lambda: intruder.has_seen(REFUSED))
    assert not intruder.has_seen(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    world.enter(server, world.client).socket.send(b"legitimate")
    world.until(lambda: bool(server.arrived))
    assert server.arrived == [("client", b"legitimate")]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (without_options, zmq.DEALER),
        (without_options, zmq.REQ),
        (without_options, zmq.PUSH),
        (with_a_password, zmq.DEALER),
        (as_a_plain_server, zmq.DEALER),
    ],
)
def test_without_curve_nothing_arrives(
    world: World, options: Callable[[Socket], None], kind: int
) -> None:
    server = world.serve()
    nothing_of(world, server, world.connect(server, options, kind))


def test_with_an_unknown_key_nothing_arrives(world: World) -> None:
    server = world.serve()
    stranger = fresh_pair()
    nothing_of(world, server, world.enter(server, stranger))
    assert stranger.public in server.asked


def test_a_public_key_without_its_secret_is_refused(world: World) -> None:
    server = world.serve()

    def pretend(socket: Socket) -> None:
        socket.curve_publickey = world.client.public
        socket.curve_secretkey = fresh_pair().secret
        socket.curve_serverkey = world.pair.public

    nothing_of(world, server, world.connect(server, pretend, zmq.DEALER))


def test_with_a_key_for_another_server_nothing_arrives(world: World) -> None:
    server = world.serve()
    nothing_of(world, server, world.enter(server, world.client, fresh_pair().public))


def admits_nobody(world: World, server: Server) -> None:
    """Check that even a peer with a listed key is refused."""
    peer = world.enter(server, world.client)
    peer.socket.send(b"secret arguments")
    world.until(lambda: peer.has_seen(REFUSED))
    assert not peer.has_seen(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    assert not server.arrived


def test_the_server_cannot_be_impersonated(world: World) -> None:
    admits_nobody(world, world.serve(pair=fresh_pair()))


def test_a_revoked_key_is_refused(world: World) -> None:
    server = world.serve()
    world.enter(server, world.worker).socket.send(b"before")
    world.until(lambda: len(server.arrived) == 1)
    del world.roles[world.worker.public]
    server.arrived.clear()
    nothing_of(world, server, world.enter(server, world.worker))


def test_a_refusal_is_logged_once_a_minute_with_its_address(world: World) -> None:
    server = world.serve()
    for _ in range(3):
        peer = world.enter(server, fresh_pair())
        world.until(lambda peer=peer: peer.has_seen(REFUSED))  # type: ignore[misc]
    friend = world.enter(server, world.client)
    world.until(lambda: friend.has_seen(zmq.EVENT_HANDSHAKE_SUCCEEDED))
    (line,) = server.throttled
    assert line.startswith("refused a connection from ")
    if server.address.startswith("tcp"):
        assert line == "refused a connection from 127.0.0.1: unknown key"


# --- failing closed -------------------------------------------------------------------------------


def test_a_server_without_a_zap_handler_admits_nobody(world: World) -> None:
    """libzmq alone would admit every peer that knows the server's public key."""
    admits_nobody(world, world.serve(zap=False))


def test_a_closed_zap_handler_admits_nobody(world: World) -> None:
    server = world.serve()
    assert server.zap is not None
    server.loop.unwatch_socket(server.zap.socket)
    server.zap.socket.close(linger=0)
    admits_nobody(world, server)


def test_a_zap_handler_that_does_not_answer_admits_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [
        (option, 200 if option == zmq.HANDSHAKE_IVL else value, why)
        for option, value, why in sockets.OPTIONS
    ]
    monkeypatch.setattr(sockets, "OPTIONS", quick)
    server = world.serve()
    assert server.zap is not None
    server.loop.unwatch_socket(server.zap.socket)
    admits_nobody(world, server)


# --- limits ---------------------------------------------------------------------------------------


def test_the_largest_encodable_frame_can_be_sent() -> None:
    limit = next(value for option, value, _ in sockets.OPTIONS if option == zmq.MAXMSGSIZE)
    assert limit == wire.MAX_FRAME_BYTES + sockets.CURVE_BYTES


def test_a_frame_over_the_limit_disconnects_only_its_sender(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [
        (option, 1000 + sockets.CURVE_BYTES if option == zmq.MAXMSGSIZE else value, why)
        for option, value, why in sockets.OPTIONS
    ]
    monkeypatch.setattr(sockets, "OPTIONS", small)
    server = world.serve()
    friend, glutton = world.enter(server, world.client), world.enter(server, world.worker)
    glutton.socket.send(b"." * 1000)
    friend.socket.send(b"before")
    world.until(lambda: len(server.arrived) == 2)
    server.arrived.clear()
    glutton.socket.send(b"." * 1001)
    world.until(lambda: glutton.has_seen(zmq.EVENT_DISCONNECTED))
    friend.socket.send(b"after")
    world.until(lambda: bool(server.arrived))
    assert server.arrived == [("client", b"after")]


def test_a_silent_peer_is_disconnected_after_five_seconds() -> None:
    """The default would keep it for 30 s."""
    options = {option: value for option, value, _ in sockets.OPTIONS}
    assert 0 < options[zmq.HANDSHAKE_IVL] <= 5000


# --- connections that break -----------------------------------------------------------------------


def test_a_call_socket_never_reconnects(world: World) -> None:
    first = world.serve()
    peer = world.enter(first, world.client, reconnect=Reconnect.NEVER)
    peer.socket.send(b"to the first")
    world.until(lambda: bool(first.arrived))
    world.drop(first)
    world.until(lambda: peer.has_seen(zmq.EVENT_DISCONNECTED))
    second = world.serve(at=first.address)
    peer.socket.send(b"meant for the first life")
    world.enter(second, world.client).socket.send(b"meant for the second")
    world.until(lambda: bool(second.arrived))
    assert second.arrived == [("client", b"meant for the second")]
    assert peer.see().count(zmq.EVENT_CONNECTED) == 1


def test_a_control_socket_reconnects(world: World) -> None:
    first = world.serve()
    peer = world.enter(first, world.client, reconnect=Reconnect.BACKING_OFF)
    peer.socket.send(b"to the first")
    world.until(lambda: bool(first.arrived))
    world.drop(first)
    world.until(lambda: peer.has_seen(zmq.EVENT_DISCONNECTED))
    second = world.serve(at=first.address)
    peer.socket.send(b"to the second")
    world.until(lambda: bool(second.arrived))
    assert second.arrived == [("client", b"to the second")]


def test_a_reply_to_a_peer_that_is_gone_raises(world: World) -> None:
    server = world.serve()
    with pytest.raises(zmq.ZMQError) as error:
        server.socket.send_multipart([b"nobody", b"hello"], zmq.NOBLOCK)
    assert error.value.errno == zmq.EHOSTUNREACH


def test_closing_a_socket_never_blocks(world: World) -> None:
    server = world.serve()
    peer = world.enter(server, world.client)
    assert server.socket.getsockopt(zmq.LINGER) == 0
    assert peer.socket.getsockopt(zmq.LINGER) == 0


def test_contexts_are_private(world: World) -> None:
    """A user's own ZAP handler would be on the shared one."""
    first, second = sockets.new_context(), sockets.new_context()
    assert first is not second
    assert first is not zmq.Context.instance()
    for context in (first, second, zmq.Context.instance()):
        context.term()


def test_an_ipc_socket_is_in_a_private_folder(tmp_path: Path) -> None:
    """libzmq leaves the mode of the file to the umask, so the mode of the folder matters."""
    from remotely.machine.gpus import OfferedResources
    from remotely.ops.embedded import EmbeddedCluster

    cluster = EmbeddedCluster()
    cluster.start(OfferedResources(cpus=1, gpus=0))
    try:
        assert os.stat(cluster.folder).st_mode & 0o777 == 0o700
    finally:
        cluster.close()


def test_messages_that_arrived_before_a_break_can_be_read(world: World) -> None:
    """An actor replies before it ends; its last replies must survive its connection."""
    server = world.serve()
    peer = world.enter(server, world.client, reconnect=Reconnect.NEVER)
    peer.socket.send(b"question")
    world.until(lambda: bool(server.arrived))
    for _ in range(50):
        server.socket.send_multipart([server.routes[-1], b"reply"])
    server.socket.close(linger=1000)
    world.drop(server)
    world.until(lambda: peer.has_seen(zmq.EVENT_DISCONNECTED))
    assert sockets.readable(peer.socket)
    assert [peer.socket.recv(zmq.NOBLOCK) for _ in range(50)] == [b"reply"] * 50


FLOOD = """
import threading, time, zmq
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import sockets
from remotely.transport.keys import fresh_pair

sockets.REMOTE_OPTIONS.append((zmq.HEARTBEAT_IVL, 50, "two seconds are too long for a test"))
context = sockets.new_context()
zap = sockets.ZapHandler(context, lambda key: "client", ThrottledLog(print))

def answer():
    zap.answer(zap.socket.recv_multipart(copy=False))

threading.Thread(target=answer, daemon=True).start()
pair = fresh_pair()
server = sockets.server(context, pair)
sockets.bind(server, "tcp://127.0.0.1:0")
flooding = sockets.new_context()
peer = sockets.client(flooding, fresh_pair(), pair.public, sockets.Reconnect.NEVER)
sockets.connect(peer, server.last_endpoint.decode())
for _ in range(3000):
    peer.send(b"x" * 100)
assert server.poll(5000)
peer.close(linger=1000)
flooding.term()  # everything is sent, and the connection is closed
assert not threading.Event().wait(0.5)  # ten pings
heard = 0
while server.poll(500):
    server.recv_multipart()
    heard += 1
print(heard)
context.destroy(linger=0)
"""


def test_a_disconnected_flood_does_not_abort_a_server_that_does_not_read() -> None:
    """With a receive limit, libzmq aborts the process: "Assertion failed: !_io_error"."""
    done = subprocess.run(
        [sys.executable, "-c", FLOOD], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3000\n", "")
