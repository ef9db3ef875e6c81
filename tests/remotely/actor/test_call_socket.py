"""The socket of an actor's calls, while its background thread receives beside the main thread."""

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from remotely.actor.call_socket import MESSAGE_BYTES, CallSocket
from remotely.actor.debugger import Debugger, Lookout
from remotely.protocol import wire
from remotely.protocol.debugging import Ask
from remotely.protocol.wire import Kind
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import activity, sockets
from remotely.transport.keys import fresh_pair
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect, ZapHandler
from tests.clusters import wait_until


class Ends:
    """An actor's socket, and that of a client whose key it knows."""

    def __init__(self, folder: Path) -> None:
        self.loop, self.context = Loop(), sockets.new_context()
        self.said: list[str] = []
        self.log = ThrottledLog(self.said.append)
        self._zap = ZapHandler(self.context, lambda key: "client", self.log)
        self.loop.watch_socket(self._zap.socket, self._zap.answer)
        pair = fresh_pair()
        birth: Any = SimpleNamespace(
            public_key=pair.public,
            secret_key=pair.secret,
            ipc=f"ipc://{folder}/calls",
            listening=SimpleNamespace(host=""),
        )
        self.actor = CallSocket(self.context, birth, self.loop)
        self.client = sockets.client(self.context, fresh_pair(), pair.public, Reconnect.NEVER)
        sockets.connect(self.client, birth.ipc)

    def say(self, *messages: list[bytes]) -> None:
        for frames in messages:
            self.client.send_multipart(frames)

    def until(self, fact: Callable[[], bool]) -> None:
        def turned() -> bool:
            self.loop.turn(0.01)
            return fact()

        wait_until(turned, "a fact")

    def close(self) -> None:
        self.loop.close()
        self.actor.close(0.0)
        self.client.close(linger=0)
        self._zap.socket.close(linger=0)
        self.context.term()


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    made = Ends(tmp_path)
    yield made
    made.close()


def call(number: int) -> list[bytes]:
    return [bytes(each) for each in wire.encode(Kind.CALL, number, "step", [b""])]


def debug(number: int, ask: Ask = Ask.READ) -> list[bytes]:
    return [bytes(each) for each in wire.encode(Kind.DEBUG, number, ask, [b"a test"])]


def attached(
    ends: Ends,
    page: mmap.mmap,
    may_call: Callable[[bytes], bool] = lambda key: True,
    may_answer: Callable[[], bool] = lambda: True,
) -> Debugger:
    """A debugger to which the client is attached, by call 1."""
    debugger = Debugger("Actor-1", page, False, lambda: None)
    access: Any = SimpleNamespace(may_call=may_call)
    lookout = Lookout(ends.loop, access, ends.log, may_answer)
    lookout.watch(ends.actor, debugger)
    ends.say(debug(1, Ask.ATTACH))

    def is_attached() -> bool:
        lookout.begin()  # it ends at once as long as nothing is attached
        return debugger.is_active

    ends.until(is_attached)
    return debugger


def number_of(received: Any) -> int:
    return wire.call_id_of(received[2][0])


def test_a_call_does_not_overtake_those_that_the_debugger_has_put_aside(ends: Ends) -> None:
    receive = ends.actor.receive  # as the main thread does, before it waits for the lock
    ends.say(call(1), debug(2))
    ends.until(lambda: ends.actor.receive_debug() is not None)
    ends.say(call(3))
    numbers: list[int] = []

    def has_both() -> bool:
        if (received := receive(False)) is not None:
            numbers.append(number_of(received))
        return len(numbers) == 2

    ends.until(has_both)
    assert numbers == [1, 3]


def test_a_malformed_message_does_not_end_the_lookout_of_the_debugger(ends: Ends) -> None:
    with activity.new() as (_, page):
        debugger = attached(ends, page)
        malformed = bytearray(debug(2)[0])
        malformed[2:4] = b"\xff\xff"  # the length of the name: more than there is
        ends.say([bytes(malformed)], debug(3))
        answers: list[int] = []

        def has_both() -> bool:
            while ends.client.poll(0, zmq.POLLIN):
                answers.append(wire.call_id_of(ends.client.recv_multipart()[0]))
            return len(answers) >= 2

        ends.until(has_both)
        assert answers == [1, 3]
        assert any("dropped a message" in each for each in ends.said)
        debugger.end()


def test_a_revoked_key_is_cut_off_even_if_its_terminal_says_nothing_more(ends: Ends) -> None:
    revoked = False
    with activity.new() as (_, page):
        debugger = attached(ends, page, lambda key: not revoked)
        revoked = True
        ends.until(lambda: not debugger.is_active)


def test_an_actor_that_is_asked_to_end_takes_no_debugger() -> None:
    with activity.new() as (_, page):
        debugger = Debugger("Actor-1", page, False, lambda: None)
        debugger.end()
        frames = wire.encode(Kind.DEBUG, 1, Ask.ATTACH, [b"a test"])
        debugger.answer(b"route", wire.decode(frames, "client"))
        assert not debugger.is_active


def test_no_debugger_is_answered_while_the_lease_has_expired(ends: Ends) -> None:
    holds = True
    with activity.new() as (_, page):
        debugger = attached(ends, page, may_answer=lambda: holds)
        ends.until(lambda: bool(ends.client.poll(0, zmq.POLLIN)))
        ends.client.recv_multipart()
        holds = False
        ends.say(debug(2))
        for _ in range(20):
            ends.loop.turn(0.01)
        assert not ends.client.poll(0, zmq.POLLIN)
        holds = True
        ends.until(lambda: bool(ends.client.poll(0, zmq.POLLIN)))
        debugger.end()


def test_what_has_stopped_goes_on_if_too_many_calls_wait_behind_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 3 * MESSAGE_BYTES
    monkeypatch.setattr("remotely.actor.call_socket.MOST_AHEAD", room)
    with activity.new() as (_, page):
        debugger = attached(ends, page)
        ends.say(*[call(number) for number in range(100)])
        ends.until(lambda: not debugger.silent_terminal(0.0)[0])
        assert room < ends.actor.ahead_bytes < room + 2 * MESSAGE_BYTES  # the others wait outside
        received: list[int] = []

        def has_all() -> bool:
            while (each := ends.actor.receive(False)) is not None:
                received.append(number_of(each))
            return len(received) == 100

        ends.until(has_all)
        assert received == [*range(100)]
        assert ends.actor.ahead_bytes == 0
        ends.until(lambda: not debugger.is_active)
