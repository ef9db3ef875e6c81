"""A worker that lies to the processes that dial in at it: about whom they may let in.

It stands for a thief with a worker's key and no client's key.  The master and the process that
serves are real.
"""

import contextlib
import itertools
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq

import remotely
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.transport import key_files, sockets
from remotely.transport.keys import KeyPair, fresh_pair
from remotely.transport.sockets import Reconnect
from remotely.values import codec
from tests.clusters import DEADLINE_S, wait_until
from tests.remotely.guest.played import Played

KNOWS = zmq.EVENT_HANDSHAKE_SUCCEEDED
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
CUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED


class Robot:
    """What is served."""

    def __init__(self) -> None:
        self.moves: list[int] = []

    def move(self, step: int) -> int:
        self.moves.append(step)
        return sum(self.moves)


class Serving:
    """This process serves a robot; what it hears of the end is kept to itself."""

    def __init__(self, played: Played) -> None:
        self.robot = Robot()
        self._played = played
        self._thread = threading.Thread(target=self._serve)

    def begin(self) -> control.Location:
        """Return where it takes calls, according to the worker."""
        self._thread.start()
        hosted = self._played.worker.hosted
        wait_until(lambda: hosted, "the robot is hosted")
        return next(iter(hosted.values()))

    def _serve(self) -> None:
        with contextlib.suppress(remotely.RemotelyError):
            remotely.serve(
                self.robot,
                address=self._played.address,
                key=self._played.keys / "worker.key",
                patience_s=0,
            )

    def end(self) -> None:
        self._played.worker.send_away()
        self._thread.join()


@pytest.fixture
def serving(played: Played) -> Iterator[Serving]:
    made = Serving(played)
    yield made
    made.end()


class Caller:
    """Who connects to an object with a key, without a master."""

    def __init__(self, location: control.Location, pair: KeyPair) -> None:
        self._context = sockets.new_context()
        key = location.public_key
        self._socket = sockets.client(self._context, pair, key, Reconnect.NEVER)
        self._monitor = self._socket.get_monitor_socket(KNOWS | REFUSED | CUT)
        sockets.connect(self._socket, location.tcp)
        self.heard = self._hear()

    def _hear(self) -> int:
        """Return what became of the handshake."""
        assert self._monitor.poll(1000 * int(DEADLINE_S))
        return sockets.event_of(self._monitor.recv_multipart()[0])

    def move(self, step: int) -> Message:
        encoded = codec.encode(((step,), {}))
        frames = wire.encode(Kind.CALL, step, "move", encoded.pieces, encoded.buffers)
        sockets.send(self._socket, frames)
        assert self._socket.poll(1000 * int(DEADLINE_S))
        return wire.decode(self._socket.recv_multipart(), "actor")

    def close(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)


@pytest.mark.parametrize("lie", ["none", "a list", "an answer"])
def test_a_thief_with_a_workers_key_hosts_an_object_and_calls_it_in_vain(
    played: Played, serving: Serving, lie: str
) -> None:
    thief = fresh_pair()
    lies: dict[str, list[msgspec.Struct]] = {
        "none": [],
        "a list": [control.Admit(client_keys=[thief.public])],
        "an answer": [control.Caller(key=thief.public, admitted=True)],
    }
    played.worker.says = lies[lie]
    caller = Caller(serving.begin(), thief)
    try:
        assert caller.heard != KNOWS
        assert lie != "none" or caller.heard == REFUSED
    finally:
        caller.close()
    assert serving.robot.moves == []


def test_what_the_master_admits_and_withdraws_holds_whatever_a_worker_keeps_to_itself(
    played: Played, serving: Serving
) -> None:
    client = key_files.load_member(played.keys / "client.key").pair
    location = serving.begin()
    caller = Caller(location, client)
    try:
        assert caller.heard == KNOWS
        assert caller.move(1).kind is Kind.RESULT
        played.revoke_client()
        steps = itertools.count(2)
        wait_until(lambda: caller.move(next(steps)).kind is Kind.RAISED, "the revocation arrives")
    finally:
        caller.close()
    late = Caller(location, client)
    try:
        assert late.heard == REFUSED
    finally:
        late.close()
