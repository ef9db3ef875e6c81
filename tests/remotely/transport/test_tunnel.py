"""Byte streams through one connection: nothing is lost or mixed up, and none fills up."""

import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from remotely.errors import WireError
from remotely.transport import tunnel
from remotely.transport.loop import Loop
from remotely.transport.tunnel import (
    BEFORE_KEY_BYTES,
    UNPROVEN_BYTES,
    WINDOW_BYTES,
    Part,
    Tunnel,
    head_of,
    read_head,
)

DEADLINE_S = 10.0


class Ends:
    """The two ends of a tunnel, and what is on its way between them."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.on_its_way: deque[tuple[Tunnel, bytes, bytes]] = deque()
        self.far: Tunnel
        self.near = Tunnel(self.loop, lambda head, body: self.send(self.far, head, body))
        self.far = Tunnel(self.loop, lambda head, body: self.send(self.near, head, body))
        self.sockets: list[socket.socket] = []
        self.data_bytes = 0  # that were passed on

    def send(self, to: Tunnel, head: bytes, body: bytes) -> None:
        self.on_its_way.append((to, head, body))

    def deliver(self) -> None:
        while self.on_its_way:
            to, head, body = self.on_its_way.popleft()
            part, number = read_head(head)
            if part is Part.OPEN:
                to.add(number, self.pair())
            else:
                self.data_bytes += len(body) * (part is Part.DATA)
                to.hear(part, number, body)

    def pair(self) -> socket.socket:
        """Return one end of a pair of sockets; the test keeps the other, the newest last."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.sockets.append(theirs)
        return ours

    def connect(self, number: int) -> tuple[socket.socket, socket.socket]:
        """Return the caller's and the callee's socket of a new stream, which knows the caller."""
        caller, callee = self.knock(number)
        answer = bytearray()
        callee.send(bytes(BEFORE_KEY_BYTES + 1))
        self.turn_until(lambda: read(caller, answer) or len(answer) > BEFORE_KEY_BYTES)
        return caller, callee

    def knock(self, number: int) -> tuple[socket.socket, socket.socket]:
        """Return the sockets of a new stream; the callee has answered nothing."""
        self.near.open(number, self.pair())
        caller = self.sockets[-1]
        self.deliver()
        return caller, self.sockets[-1]

    def turn_until(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not fact():
            assert time.monotonic() < deadline
            self.loop.turn(0.01)
            self.deliver()

    def settle(self) -> None:
        """Return when nothing moves any more."""
        for _ in range(50):
            self.loop.turn(0.001)
            self.deliver()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.near.close()
    made.far.close()
    for one in made.sockets:
        one.close()
    made.loop.close()


def read(end: socket.socket, into: bytearray) -> bool:
    """Read what there is; return whether the stream is at its end."""
    while True:
        try:
            data = end.recv(1 << 16)
        except BlockingIOError:
            return False
        if not data:
            return True
        into += data


def write(end: socket.socket, data: memoryview) -> memoryview:
    """Write as much as there is room for; return the rest."""
    try:
        return data[end.send(data[: 1 << 17]) :] if data else data
    except BlockingIOError:
        return data


def test_several_streams_carry_megabytes_both_ways_at_a_time(ends: Ends) -> None:
    draw = random.Random(1)
    streams = [ends.connect(number) for number in (1, 2, 3)]
    sent = [(draw.randbytes(3 << 20), draw.randbytes(2 << 20)) for _ in streams]
    left = [[memoryview(there), memoryview(back)] for there, back in sent]
    came = [(bytearray(), bytearray()) for _ in streams]

    def all_came() -> bool:
        for (caller, callee), rest, (there, back) in zip(streams, left, came, strict=True):
            rest[0], rest[1] = write(caller, rest[0]), write(callee, rest[1])
            read(callee, there)
            read(caller, back)
        return all(
            (bytes(there), bytes(back)) == wanted
            for (there, back), wanted in zip(came, sent, strict=True)
        )

    ends.turn_until(all_came)


def test_a_reader_that_does_not_read_holds_up_its_own_stream_alone(ends: Ends) -> None:
    caller, callee = ends.connect(1)
    other, other_callee = ends.connect(2)
    left = memoryview(bytes(8 * WINDOW_BYTES))
    for _ in range(300):
        left = write(caller, left)
        ends.loop.turn(0.001)
        ends.deliver()
    kernel = 1 << 20  # what the sockets themselves hold
    assert ends.data_bytes <= 2 * (BEFORE_KEY_BYTES + 1) + WINDOW_BYTES + kernel
    assert len(left) > 4 * WINDOW_BYTES
    other.send(b"hello")
    came = bytearray()
    ends.turn_until(lambda: read(other_callee, came) or came == b"hello")
    there = bytearray()

    def went_on() -> bool:
        nonlocal left
        left = write(caller, left)
        read(callee, there)
        return len(there) == 8 * WINDOW_BYTES

    ends.turn_until(went_on)


@pytest.mark.parametrize("who", ["caller", "callee"])
def test_what_was_sent_before_the_end_arrives_before_the_end(ends: Ends, who: str) -> None:
    one, two = ends.connect(1)
    ending, staying = (one, two) if who == "caller" else (two, one)
    ending.send(b"last words")
    ending.close()
    came = bytearray()
    ends.turn_until(lambda: read(staying, came))
    assert came == b"last words"
    staying.close()
    ends.turn_until(lambda: (len(ends.near), len(ends.far)) == (0, 0))


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection that has room for little, the writer's first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(server.getsockname())
        writer, _ = server.accept()
    reader.setblocking(False)
    return writer, reader


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_a_slow_reader_that_still_talks_gets_all_that_was_sent_before_the_end(
    ends: Ends, how: str
) -> None:
    end, reader = tcp_pair()
    ends.sockets.append(reader)
    ends.near.add(1, end)
    ends.near.hear(Part.DATA, 1, bytes(WINDOW_BYTES))
    reader.send(b"one more call")
    if how == "closed":
        ends.near.hear(Part.CLOSE, 1, b"")
    else:
        ends.near.finish()
    reader.send(b"and another")
    came = bytearray()
    ends.turn_until(lambda: read(reader, came))
    assert len(came) == WINDOW_BYTES
    reader.close()
    ends.turn_until(lambda: len(ends.near) == 0)


def test_a_reader_that_never_reads_the_last_bytes_is_cut_off(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "DRAIN_S", 0.01)
    end, reader = tcp_pair()
    ends.sockets.append(reader)
    ends.near.add(1, end)
    ends.near.hear(Part.DATA, 1, bytes(WINDOW_BYTES))
    ends.near.finish()
    assert len(ends.near) == 1
    ends.turn_until(lambda: len(ends.near) == 0)


def test_a_stream_that_cannot_begin_over_there_ends_here(ends: Ends) -> None:
    ends.near.open(7, ends.pair())
    caller = ends.sockets[-1]
    ends.on_its_way.clear()
    ends.far.refuse(7)
    ends.turn_until(lambda: read(caller, bytearray()))
    caller.close()
    ends.turn_until(lambda: len(ends.near) == 0)


def test_who_sends_more_than_there_is_room_for_is_cut_off(ends: Ends) -> None:
    def floods() -> None:
        for _ in range(100):
            ends.far.hear(Part.DATA, 1, bytes(1 << 18))

    ends.connect(1)
    with pytest.raises(WireError, match="more in a tunnel"):
        floods()
    assert len(ends.far) == 0


@pytest.mark.parametrize("body", [b"", b"abc", bytes(5)])
def test_a_count_is_of_four_bytes(ends: Ends, body: bytes) -> None:
    ends.connect(1)
    with pytest.raises(WireError):
        ends.near.hear(Part.MORE, 1, body)


def test_a_lie_about_room_opens_no_more_than_the_window(ends: Ends) -> None:
    caller, _ = ends.connect(1)
    ends.near.hear(Part.MORE, 1, b"\xff\xff\xff\xff")
    left = memoryview(bytes(4 * WINDOW_BYTES))
    for _ in range(100):  # nothing of this is delivered
        left = write(caller, left)
        ends.loop.turn(0.001)
    assert sum(len(body) for _, _, body in ends.on_its_way) <= WINDOW_BYTES


@pytest.mark.parametrize("head", [b"", b"\x02", b"\x09\0\0\0\1", bytes(6)])
def test_a_bad_head_is_refused(head: bytes) -> None:
    with pytest.raises(WireError):
        read_head(head)


def test_messages_of_streams_that_have_ended_are_dropped(ends: Ends) -> None:
    ends.near.hear(Part.DATA, 5, b"late")
    ends.near.hear(Part.CLOSE, 5, b"")
    assert read_head(head_of(Part.DATA, 5)) == (Part.DATA, 5)
    assert not ends.on_its_way


@pytest.mark.parametrize("answered", [0, 10, BEFORE_KEY_BYTES])
def test_a_caller_whose_key_has_not_been_checked_sends_a_few_kib_and_no_more(
    ends: Ends, answered: int
) -> None:
    caller, callee = ends.knock(1)
    callee.send(bytes(answered))
    ends.settle()
    ends.data_bytes = 0
    left = memoryview(bytes(2 * WINDOW_BYTES))
    for _ in range(50):
        left = write(caller, left)
        ends.loop.turn(0.001)
        ends.near.hear(Part.MORE, 1, b"\0\xff\xff\xff")  # nor by a lie of the other end
        ends.deliver()
    assert ends.data_bytes == UNPROVEN_BYTES
    assert ends.near.unproven == 1
    came = bytearray()
    callee.send(bytes(BEFORE_KEY_BYTES + 1 - answered))

    def went_on() -> bool:
        nonlocal left
        left = write(caller, left)
        read(callee, came)
        return len(came) == 2 * WINDOW_BYTES

    ends.turn_until(went_on)
    assert ends.near.unproven == 0


@pytest.mark.parametrize("who", ["caller", "callee"])
def test_an_unknown_caller_that_has_gone_counts_until_the_other_end_has_heard_of_it(
    ends: Ends, who: str
) -> None:
    caller, callee = ends.knock(1)
    (caller if who == "caller" else callee).close()
    for _ in range(50):  # nothing is delivered
        ends.loop.turn(0.001)
    assert ends.near.unproven == 1
    ends.turn_until(lambda: (ends.near.unproven, len(ends.near), len(ends.far)) == (0, 0, 0))


def test_a_stream_that_both_ends_close_at_a_time_ends_once(ends: Ends) -> None:
    for end in ends.connect(1):
        end.close()
    for _ in range(50):  # nothing is delivered
        ends.loop.turn(0.001)
    assert (len(ends.near), len(ends.far)) == (0, 0)
    ends.settle()
    assert not ends.on_its_way
