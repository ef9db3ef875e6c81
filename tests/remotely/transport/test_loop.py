"""The event loop: timers, descriptors, sockets, other threads, and errors in handlers."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import zmq

from remotely.errors import WireError
from remotely.transport import loop as loop_module
from remotely.transport.loop import Loop

DEADLINE_S = 40.0

Pair = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Callable[[], Pair]]:
    """Make pairs of connected sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made: list[zmq.Socket[bytes]] = []

    def make() -> Pair:
        ours, theirs = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ours.bind(f"inproc://{len(made)}")
        theirs.connect(f"inproc://{len(made)}")
        made.extend([ours, theirs])
        return ours, theirs

    yield make
    for socket in made:
        socket.close(linger=0)
    context.term()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def turn_until(loop: Loop, fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < deadline, "timed out"
        loop.turn(0.05)


def words(frames: list[zmq.Frame]) -> str:
    return frames[0].bytes.decode()


# --- timers ---------------------------------------------------------------------------------------


def test_timers_run_in_the_order_of_their_deadlines(loop: Loop) -> None:
    seen: list[str] = []
    loop.after(0.03, lambda: seen.append("last"))
    loop.after(0.01, lambda: seen.append("first"))
    loop.after(0.02, lambda: seen.append("second"))
    turn_until(loop, lambda: len(seen) == 3)
    assert seen == ["first", "second", "last"]


def test_timers_with_the_same_deadline_run_in_the_order_of_creation(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module.time, "monotonic", lambda: 5.0)
    seen: list[int] = []
    for number in range(5):
        loop.after(0.0, partial(seen.append, number))
    loop.turn(0.0)
    assert seen == [0, 1, 2, 3, 4]


def test_a_timer_runs_once_and_not_before_its_time(loop: Loop) -> None:
    begun = time.monotonic()
    ran: list[float] = []
    loop.after(0.05, lambda: ran.append(time.monotonic()))
    loop.after(0.12, loop.stop)
    loop.run()
    assert len(ran) == 1
    assert ran[0] - begun >= 0.05


def test_a_repeating_timer_runs_until_it_is_cancelled(loop: Loop) -> None:
    ran: list[None] = []
    timer = loop.every(0.005, lambda: ran.append(None))
    turn_until(loop, lambda: len(ran) >= 3)
    timer.cancel()
    count = len(ran)
    loop.after(0.05, loop.stop)
    loop.run()
    assert len(ran) == count


def test_a_cancelled_timer_releases_its_action_immediately(
    loop: Loop,
) -> None:
    """Otherwise a worker would keep all actors that ended in the last seconds, by their timers."""

    class Held:
        def act(self) -> None:
            raise AssertionError("it was cancelled")

    held = Held()
    is_held = weakref.ref(held)
    timer = loop.after(600, held.act)
    del held
    assert is_held() is not None
    timer.cancel()
    assert is_held() is None


def test_a_timer_may_cancel_itself_and_another_due_timer(loop: Loop) -> None:
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        repeating.cancel()
        second.cancel()

    repeating = loop.every(0.0, first)
    second = loop.after(0.0, lambda: seen.append("second"))
    loop.after(0.02, loop.stop)
    loop.run()
    assert seen == ["first"]


def test_a_timer_without_delay_does_not_starve_others(loop: Loop, pipe: tuple[int, int]) -> None:
    loop.every(0.0, lambda: None)
    seen: list[bytes] = []
    loop.watch(pipe[0], lambda: seen.append(os.read(pipe[0], 10)))
    os.write(pipe[1], b"x")
    turn_until(loop, lambda: bool(seen))


# --- descriptors ----------------------------------------------------------------------------------


def test_a_descriptor_is_reported_while_it_is_readable_and_at_its_end(loop: Loop) -> None:
    reading, writing = os.pipe()
    seen: list[bytes] = []
    loop.watch(reading, lambda: seen.append(os.read(reading, 1)))
    os.write(writing, b"ab")
    os.close(writing)
    turn_until(loop, lambda: len(seen) == 3)
    assert seen == [b"a", b"b", b""]
    loop.unwatch(reading)
    os.close(reading)


def test_an_unwatched_descriptor_is_not_reported(loop: Loop, pipe: tuple[int, int]) -> None:
    seen: list[None] = []
    loop.watch(pipe[0], lambda: seen.append(None))
    os.write(pipe[1], b"x")
    loop.unwatch(pipe[0])
    loop.unwatch(pipe[0])  # idempotent
    loop.turn(0.0)
    assert not seen


def test_a_handler_may_unwatch_another_ready_descriptor(loop: Loop) -> None:
    pipes = [os.pipe(), os.pipe()]
    seen: list[int] = []

    def handle(fd: int) -> None:
        seen.append(fd)
        for reading, _ in pipes:
            loop.unwatch(reading)

    for reading, writing in pipes:
        loop.watch(reading, partial(handle, reading))
        os.write(writing, b"x")
    loop.turn(0.0)
    loop.turn(0.0)
    assert len(seen) == 1
    for ends in pipes:
        for end in ends:
            os.close(end)


def test_an_edge_is_reported_once(loop: Loop, pipe: tuple[int, int]) -> None:
    seen: list[None] = []
    loop.watch(pipe[0], lambda: seen.append(None), edge=True)
    os.write(pipe[1], b"x")
    for _ in range(3):
        loop.turn(0.0)
    assert len(seen) == 1
    os.write(pipe[1], b"y")
    loop.turn(0.0)
    assert len(seen) == 2


# --- sockets --------------------------------------------------------------------------------------


def test_every_message_of_a_socket_arrives_in_order(loop: Loop, pair: Callable[[], Pair]) -> None:
    ours, theirs = pair()
    seen: list[str] = []
    loop.watch_socket(ours, lambda frames: seen.append(words(frames)))
    count = 3 * loop_module.MESSAGES_A_TURN + 1
    for number in range(count):
        theirs.send(str(number).encode())
    turn_until(loop, lambda: len(seen) == count)
    assert seen == [str(number) for number in range(count)]


def test_a_busy_socket_does_not_starve_timers_and_other_sockets(
    loop: Loop, pair: Callable[[], Pair]
) -> None:
    busy, feeder = pair()
    quiet, other = pair()
    order: list[str] = []

    def feed(_: list[zmq.Frame]) -> None:
        order.append("busy")
        feeder.send(b"more")

    loop.watch_socket(busy, feed)
    loop.watch_socket(quiet, lambda frames: order.append("quiet"))
    loop.after(0.0, lambda: order.append("timer"))
    feeder.send(b"first")
    other.send(b"once")
    loop.turn()
    loop.turn()
    assert order.index("quiet") <= 2 * loop_module.MESSAGES_A_TURN
    assert order.index("timer") <= 2 * loop_module.MESSAGES_A_TURN + 1


def test_a_message_is_not_missed_when_another_handler_uses_its_socket(
    loop: Loop, pair: Callable[[], Pair]
) -> None:
    """ZeroMQ's descriptor reports a change once, and any use of the socket consumes the report."""
    first, to_first = pair()
    second, to_second = pair()
    seen: list[str] = []

    def use_the_other(_: list[zmq.Frame]) -> None:
        to_first.send(b"while the loop is past it")
        first.send(b"this swallows the edge")

    loop.watch_socket(first, lambda frames: seen.append(words(frames)))
    loop.watch_socket(second, use_the_other)
    loop.turn(0.0)
    to_second.send(b"go")
    loop.turn(0.0)
    begun = time.monotonic()
    loop.turn(60.0)
    assert seen == ["while the loop is past it"]
    assert time.monotonic() - begun < 50.0


@pytest.mark.parametrize("closes", [False, True])
def test_a_handler_may_unwatch_and_close_its_own_socket(
    loop: Loop, pair: Callable[[], Pair], closes: bool
) -> None:
    ours, theirs = pair()
    seen: list[str] = []

    def handle(frames: list[zmq.Frame]) -> None:
        seen.append(words(frames))
        loop.unwatch_socket(ours)
        if closes:
            ours.close(linger=0)

    loop.watch_socket(ours, handle)
    theirs.send(b"first")
    theirs.send(b"second")
    loop.turn(0.0)
    loop.turn(0.0)
    assert seen == ["first"]


# --- other threads --------------------------------------------------------------------------------


def test_calls_of_threads_run_once_and_in_order_on_the_loops_thread(loop: Loop) -> None:
    seen: list[tuple[int, int]] = []
    ran_on: set[int] = set()

    def run(thread: int, number: int) -> None:
        ran_on.add(threading.get_ident())
        seen.append((thread, number))

    def call(thread: int) -> None:
        for number in range(200):
            loop.call(partial(run, thread, number))

    callers = [threading.Thread(target=call, args=(thread,)) for thread in range(3)]
    for caller in callers:
        caller.start()
    turn_until(loop, lambda: len(seen) == 600)
    for caller in callers:
        caller.join()
    assert ran_on == {threading.get_ident()}
    for thread in range(3):
        assert [n for t, n in seen if t == thread] == list(range(200))


def test_another_thread_may_stop_a_sleeping_loop() -> None:
    loop = Loop()
    sleeper = threading.Thread(target=loop.run)
    sleeper.start()
    loop.stop()
    sleeper.join(DEADLINE_S)
    assert not sleeper.is_alive()
    loop.close()


# --- errors in handlers ---------------------------------------------------------------------------


def test_an_error_in_a_handler_is_logged_and_does_not_end_the_loop(
    loop: Loop, pipe: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def fail(name: str) -> None:
        seen.append(name)
        raise KeyError(name)

    os.write(pipe[1], b"x")
    loop.watch(pipe[0], partial(fail, "descriptor"))
    loop.call(lambda: fail("call"))
    loop.after(0.0, lambda: fail("timer"))
    loop.call(lambda: seen.append("call after"))
    loop.after(0.0, lambda: seen.append("timer after"))
    loop.turn(0.0)
    assert {"descriptor", "call", "timer", "call after", "timer after"} <= set(seen)
    assert "KeyError: 'timer'" in caplog.text


def test_an_error_in_a_message_handler_does_not_affect_others(
    loop: Loop,
    pair: Callable[[], Pair],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ours, theirs = pair()
    seen: list[str] = []

    def handle(frames: list[zmq.Frame]) -> None:
        if words(frames) == "bad":
            raise WireError("no message of kind 99")
        seen.append(words(frames))

    loop.watch_socket(ours, handle)
    for word in (b"one", b"bad", b"two"):
        theirs.send(word)
    turn_until(loop, lambda: len(seen) == 2)
    assert seen == ["one", "two"]
    assert "no message of kind 99" in caplog.text
    assert "Traceback" not in caplog.text  # a peer's error is one line


def test_a_repeating_timer_that_raises_continues_and_is_logged_once_a_minute(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[None] = []

    def fail() -> None:
        ran.append(None)
        raise ValueError("again")

    loop.every(0.001, fail)
    turn_until(loop, lambda: len(ran) == 3)
    assert caplog.text.count("ValueError: again") == 1


def test_a_call_after_close_does_nothing(tmp_path: Path) -> None:
    ended = Loop()
    number = ended._wake_fd
    ended.close()
    (tmp_path / "users").write_text("")
    file = os.open(tmp_path / "users", os.O_RDWR)
    os.dup2(file, number)
    try:
        ended.call(lambda: None)
        ended.stop()
    finally:
        os.close(number)
        if file != number:
            os.close(file)
    assert (tmp_path / "users").read_bytes() == b""
    assert not ended._calls


def test_closing_a_loop_during_calls_is_safe(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("")
    for _ in range(50):
        ended = Loop()
        begun, over = threading.Event(), threading.Event()

        def call(
            ended: Loop = ended, begun: threading.Event = begun, over: threading.Event = over
        ) -> None:
            while not over.is_set():
                ended.call(lambda: None)
                begun.set()

        caller = threading.Thread(target=call)
        caller.start()
        assert begun.wait(DEADLINE_S)
        ended.close()
        files = [os.open(tmp_path / "users", os.O_RDWR) for _ in range(4)]
        over.set()
        caller.join()
        for file in files:
            os.close(file)
    assert (tmp_path / "users").read_bytes() == b""
