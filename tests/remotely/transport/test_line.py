"""A line keeps what its loop's thread cannot send now, and loses nothing that its peer has sent."""

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator

import msgspec
import pytest

from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import Count, Decoder, Meet
from remotely.transport.line import Line, LineLost
from remotely.transport.loop import Loop
from tests.clusters import DEADLINE_S

DECODER = Decoder("actor > worker")


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Watched:
    """A line watched by a loop that the test turns, and the peer's line, which waits."""

    def __init__(self, most_kept: int | None = None) -> None:
        ours, theirs = pair()
        self.loop = Loop()
        self.line = Line(ours, DECODER, most_kept)
        self.peer = Line(theirs, DECODER)
        self.received: list[object] = []
        self.fds: list[list[OwnedFd]] = []
        self.losses = 0
        self.line.watch(self.loop, self._note, self._note_loss)
        self.loop.turn(0.0)  # this thread is the loop's

    def _note(self, message: object, fds: list[OwnedFd]) -> None:
        self.received.append(message)
        self.fds.append(fds)

    def _note_loss(self) -> None:
        self.losses += 1

    def fill(self) -> int:
        """Send numbered messages until some are kept; return their number."""
        number = 0
        while self.line.has_sent_all:
            self.line.send(Count(calls=number))
            number += 1
        return number

    def close(self) -> None:
        self.line.close()
        self.peer.close()
        self.loop.close()


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.close()


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def message_of(received: tuple[object, list[OwnedFd]] | None) -> object:
    assert received is not None
    return received[0]


def test_a_message_arrives_with_its_descriptors(watched: Watched) -> None:
    ends = os.pipe()
    watched.peer.send(Meet(), ends)
    os.close(ends[1])
    watched.loop.turn(DEADLINE_S)

    assert watched.received == [Meet()]
    (fds,) = watched.fds
    os.write(fds[1].fd, b"passed")
    assert os.read(ends[0], 100) == b"passed"
    assert not os.get_inheritable(fds[0].fd)
    os.close(ends[0])


def test_descriptors_that_nobody_takes_are_closed(watched: Watched) -> None:
    before = set(os.listdir("/proc/self/fd"))
    ends = os.pipe()
    watched.peer.send(Meet(), ends)
    for end in ends:
        os.close(end)
    watched.loop.turn(DEADLINE_S)
    numbers = [fd.fd for fd in watched.fds[0]]
    assert all(map(is_open, numbers))
    watched.fds.clear()
    assert not any(map(is_open, numbers))
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_loops_thread_keeps_what_a_full_socket_does_not_take_and_sends_it_in_order(
    watched: Watched,
) -> None:
    number = watched.fill()
    with open(os.devnull) as file:
        watched.line.send(Meet(), [file.fileno()])  # closed before it leaves
    watched.line.send(Count(calls=number))

    for expected in range(number):
        assert message_of(watched.peer.receive()) == Count(calls=expected)
        watched.loop.turn(0.0)
    assert watched.line.has_sent_all
    introduced = watched.peer.receive()
    assert introduced is not None
    assert introduced[0] == Meet()
    assert os.readlink(f"/proc/self/fd/{introduced[1][0].fd}") == os.devnull
    assert message_of(watched.peer.receive()) == Count(calls=number)


def test_a_loop_that_has_sent_everything_is_not_woken_by_room(watched: Watched) -> None:
    for _ in range(watched.fill()):
        watched.peer.receive()
        watched.loop.turn(0.0)
    assert watched.line.has_sent_all
    watched.loop.call(lambda: None)
    watched.loop.turn(DEADLINE_S)
    turned: list[str] = []
    watched.loop.after(0.02, lambda: turned.append("the timer"))
    watched.loop.turn(DEADLINE_S)
    assert turned == ["the timer"]


def test_another_thread_waits_for_room(watched: Watched) -> None:
    number = watched.fill()
    waits = threading.Thread(target=watched.line.send, args=(Meet(),), daemon=True)
    waits.start()
    received = [message_of(watched.peer.receive()) for _ in range(number - 1)]
    waits.join(DEADLINE_S)
    watched.loop.turn(0.0)
    received += [message_of(watched.peer.receive()) for _ in range(2)]
    assert Meet() in received
    assert [m for m in received if m != Meet()] == [Count(calls=n) for n in range(number)]


def test_messages_beyond_the_limit_are_dropped() -> None:
    watched = Watched(most_kept=2)
    number = watched.fill()
    for later in range(10):
        watched.line.send(Count(calls=number + later))
    received = []
    for _ in range(number + 1):
        received.append(message_of(watched.peer.receive()))
        watched.loop.turn(0.0)
    assert received == [Count(calls=n) for n in range(number + 1)]
    assert watched.line.has_sent_all
    watched.close()


def test_a_peer_that_ends_is_lost_once_and_messages_to_it_are_dropped(watched: Watched) -> None:
    watched.peer.close()
    watched.line.send(Meet())
    watched.loop.turn(DEADLINE_S)
    watched.line.send(Meet())
    watched.loop.turn(0.0)
    assert watched.losses == 1
    assert not watched.line.is_open


def test_what_a_peer_sent_before_its_end_is_received_even_if_it_has_not_read_all(
    watched: Watched,
) -> None:
    watched.line.send(Meet())
    watched.peer.send(Count(calls=1))
    watched.peer.send(Count(calls=2))
    watched.peer.close()  # the kernel reports that it did not read everything
    while not watched.losses:
        watched.loop.turn(DEADLINE_S)
    assert watched.received == [Count(calls=1), Count(calls=2)]


def test_kept_messages_to_a_peer_that_ends_are_dropped(watched: Watched) -> None:
    watched.fill()
    watched.peer.close()
    while not watched.losses:
        watched.loop.turn(DEADLINE_S)
    assert watched.line.has_sent_all


def test_a_line_that_is_closed_calls_nothing(watched: Watched) -> None:
    watched.peer.send(Meet())
    watched.line.close()
    watched.loop.turn(0.0)
    assert not watched.received
    assert not watched.losses


def test_a_closed_line_does_not_keep_its_owner(watched: Watched) -> None:
    class Owner:
        def hear(self, *_: object) -> None: ...

    owner = Owner()
    ours, theirs = pair()
    line = Line(ours, DECODER)
    owner.line = line
    line.watch(watched.loop, owner.hear, owner.hear)
    reference = weakref.ref(owner)
    line.close()
    theirs.close()
    del owner
    assert reference() is None


def test_a_line_that_nobody_refers_to_is_closed() -> None:
    ours, theirs = pair()
    line, peer = Line(ours, DECODER), Line(theirs, DECODER)
    del line, ours
    assert peer.receive() is None


def test_a_malformed_message_is_an_error_and_does_not_end_the_line(watched: Watched) -> None:
    watched.peer.send(control.Fork(number=0))  # no message of an actor
    watched.peer.send(Meet())
    watched.loop.turn(DEADLINE_S)  # the loop reports it
    watched.loop.turn(DEADLINE_S)
    assert watched.received == [Meet()]


def test_what_has_arrived_is_read_without_waiting(watched: Watched) -> None:
    watched.line.send(Count(calls=1))
    watched.line.send(control.Fork(number=0))  # malformed: skipped
    watched.line.send(Count(calls=2))
    assert [message for message, _ in watched.peer.rest(10)] == [Count(calls=1), Count(calls=2)]
    watched.line.close()
    assert not list(watched.peer.rest(10))
    assert watched.peer.receive() is None


def test_a_message_that_no_socket_can_take_is_an_error_of_its_sender(watched: Watched) -> None:
    with pytest.raises(OSError, match="too long"):
        watched.line.send(control.NotBound(why="." * (1 << 20)))
    with pytest.raises(OSError, match="too long"):
        watched.peer.send(control.NotBound(why="." * (1 << 20)))


@pytest.fixture
def answered() -> Iterator[Callable[[msgspec.Struct | None], Line]]:
    """Return a line whose peer has answered already; None: it has ended."""
    ends: list[Line] = []

    def make(answer: msgspec.Struct | None) -> Line:
        ours, theirs = pair()
        asks, peer = Line(ours, DECODER), Line(theirs, DECODER)
        ends.extend([asks, peer])
        if answer is None:
            peer.close()
        else:
            peer.send(answer)
        return asks

    yield make
    for end in ends:
        end.close()


def test_a_question_is_answered(answered: Callable[[msgspec.Struct | None], Line]) -> None:
    assert answered(Count(calls=1)).ask(Meet(), DEADLINE_S) == Count(calls=1)


def test_a_question_to_a_peer_that_has_ended_is_lost(
    answered: Callable[[msgspec.Struct | None], Line],
) -> None:
    with pytest.raises(LineLost):
        answered(None).ask(Meet(), DEADLINE_S)


def test_a_question_that_is_not_answered_in_time_is_lost(watched: Watched) -> None:
    with pytest.raises(LineLost, match="timed out"):
        watched.peer.ask(Meet(), 0.01)
