"""Interrupts: Ctrl-C at any moment ends only the call that it interrupts.

A timer interrupts, not another thread: it may interrupt any instruction, a thread only where this
one has released the GIL.
"""

import asyncio
import functools
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.client import channel
from remotely.client.channel import Channel
from remotely.transport.sockets import RawSocket
from tests.clusters import wait_until

SMALL, LARGE = 7, np.arange(30_000)  # in one frame; in several, or through memory
NO_LATER_THAN_S = 30.0

# These tests use the timer themselves, and an interrupt in a destructor is printed, not raised.
pytestmark = [
    pytest.mark.timeout(method="thread"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@remotely.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value

    def length(self, values: list[Any]) -> int:
        return len(values)

    def parts(self, count: int) -> list[Any]:
        return [Part(i) for i in range(count)]

    def count(self) -> Iterator[int]:
        yield from itertools.count()

    def wait_for(self, path: Path) -> None:
        Path(f"{path}.begun").touch()
        wait_until(path.exists, "it may go on")


@contextmanager
def interrupting(
    handler: Callable[..., object] = signal.default_int_handler,
) -> Iterator[Callable[[float], object]]:
    """Yield a function that sets the time, in seconds, after which this thread is interrupted."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        # Repeated, since an interrupt in a destructor is printed, not raised.
        yield lambda after_s: signal.setitimer(signal.ITIMER_REAL, after_s, 1.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def strike(path: Path) -> None:
    """Interrupt the main thread while it waits for a running call of `wait_for`."""
    wait_until(Path(f"{path}.begun").exists, "the call runs")
    time.sleep(0.2)  # nothing shows that the main thread has begun to wait
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


def call_until_interrupted(
    echo: Echo, draw: random.Random, flight: list[Any], begin: Callable[[], object]
) -> None:
    begin()
    while True:
        flight.extend(echo.echo.submit(draw.choice((i, i, LARGE))) for i in range(20))
        assert echo.echo(SMALL) == SMALL


def _have_run(seen: list[Any], told: list[Any]) -> bool:
    return len(seen) >= len(told)


def interrupt_calls(n: int, seed: int, cluster: str) -> None:
    """Interrupt a calling thread n times, and check that all other calls are answered."""
    draw = random.Random(seed)
    echo = Echo()
    assert echo.echo(LARGE).sum() == LARGE.sum()  # from here on through memory, if supported
    for strike in range(n):
        flight = [echo.echo.submit(draw.choice((i, LARGE))) for i in range(draw.randrange(60))]
        watched = [echo.echo.submit(i) for i in range(5)]
        seen: list[Any] = []
        told = [echo.echo.submit(i) for i in range(5)]
        for future in told:
            future.add_done_callback(seen.append)
        counter = threading.Thread(target=lambda w=watched: list(as_completed(w)))
        waiter = threading.Thread(target=lambda f=flight: [one.result() for one in f])
        counter.start()
        waiter.start()
        with interrupting() as after, pytest.raises(KeyboardInterrupt):
            call_until_interrupted(echo, draw, flight, lambda: after(draw.uniform(20e-6, 3e-3)))
        for future in flight + watched + told:
            future.result(NO_LATER_THAN_S)
        for thread in (counter, waiter):
            thread.join(NO_LATER_THAN_S)
            assert not thread.is_alive()
        assert echo.echo(strike) == strike
        wait_until(functools.partial(_have_run, seen, told), "all callbacks ran")
        assert len(seen) == len(told)
    if cluster != "ray":
        assert remote_of(echo).back_pressure.nbytes == 0


def test_an_interrupt_only_ends_the_interrupted_call(cluster: str) -> None:
    interrupt_calls(10, seed=1, cluster=cluster)


def test_a_call_queued_behind_one_whose_wait_was_interrupted_is_reported(
    here: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(channel, "WARN_AFTER_S", 0.01)
    echo = Echo()
    striking = threading.Thread(target=strike, args=(tmp_path / "go",))
    striking.start()
    with interrupting(), pytest.raises(KeyboardInterrupt):
        echo.wait_for(tmp_path / "go")
    striking.join()
    later = threading.Thread(target=echo.echo, args=(1,))
    later.start()
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "is still running" in said

    wait_until(is_told, "the line")
    assert "Echo-1.echo has no result yet: Echo-1.wait_for, whose wait was interrupted" in said
    (tmp_path / "go").touch()
    later.join(NO_LATER_THAN_S)


@pytest.mark.chaos
@pytest.mark.timeout(600, method="thread")
def test_a_thousand_interrupts_only_end_the_interrupted_calls(
    cluster: str,
) -> None:
    interrupt_calls(1000, seed=2, cluster=cluster)


def test_a_call_in_a_signal_handler_is_refused_and_harms_no_other(
    here: None, tmp_path: Path
) -> None:
    draw = random.Random(3)
    echo, other = Echo(), Echo()
    refused: list[Exception] = []

    def call(*_: object) -> None:
        acts: list[Callable[[], object]]
        acts = [lambda: echo.echo(SMALL), lambda: remotely.submit(other.echo, SMALL)]
        for act in acts:
            try:
                act()
            except remotely.RemotelyError as error:
                refused.append(error)

    def strike_once() -> None:
        strike(tmp_path / "go")
        wait_until(lambda: len(refused) == 2, "both calls are refused")
        (tmp_path / "go").touch()

    striking = threading.Thread(target=strike_once)
    with interrupting(call) as after:
        striking.start()
        echo.wait_for(tmp_path / "go")
        striking.join()
        assert all("set a flag" in str(error) for error in refused)
        for _ in range(300):  # the handler may run between two calls, where it is not refused
            after(draw.uniform(20e-6, 3e-3))
            futures = [echo.echo.submit(i) for i in range(20)]
            assert echo.echo(SMALL) == SMALL
            assert [future.result(NO_LATER_THAN_S) for future in futures] == [*range(20)]


@pytest.mark.parametrize("loop_sends", [False, True])
def test_a_slow_signal_handler_delays_no_other_actor(
    here: None, monkeypatch: pytest.MonkeyPatch, loop_sends: bool
) -> None:
    """It runs in the middle of sending, while the loop has work for the same channel."""
    echo, other = Echo(), Echo()
    line = remote_of(echo).channel
    earlier, elsewhere = echo.echo.submit(1), other.echo.submit(2)
    told: list[int] = []
    send = RawSocket.send

    def take_long(*_: object) -> None:
        if loop_sends:  # have the loop send a message to the actor
            elsewhere.then(lambda _: line.introduce(False))
        for future in (earlier, elsewhere):
            future.add_done_callback(lambda future: told.append(future.result()))
        wait_until(lambda: 2 in told, "the callback of the other actor")

    def send_interrupted(*args: Any) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGALRM)
        send(*args)

    with interrupting(take_long):
        monkeypatch.setattr(RawSocket, "send", send_interrupted)
        assert echo.echo(3) == 3
    wait_until(lambda: sorted(told) == [1, 2], "all callbacks ran")


def test_a_received_reply_is_delivered_even_if_the_actor_ends_meanwhile(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = Echo()
    for _ in range(3):
        echo.echo(LARGE)  # from the second on through memory, which is freed with the channel
    line = remote_of(echo).channel
    deliver = Channel.deliver

    def end_and_deliver(self: Channel, future: Any, reply: Any) -> None:
        if future.what.endswith(".echo"):
            self.end(lambda may: remotely.ActorDied("ended on purpose", may_have_run=may))
            wait_until(lambda: line.ended is not None, "it has ended")
        deliver(self, future, reply)

    monkeypatch.setattr(Channel, "deliver", end_and_deliver)
    assert (echo.echo(LARGE) == LARGE).all()


def test_a_done_callback_may_wait_for_a_call_whose_reply_came_in_the_same_batch(here: None) -> None:
    echo = Echo()
    waited = []
    first, second = echo.echo.submit(1), echo.echo.submit(2)
    first.add_done_callback(lambda _: waited.append(second.result(NO_LATER_THAN_S)))
    assert first.result(NO_LATER_THAN_S) == 1
    wait_until(lambda: waited == [2], "the callback has run")


class Stop(Exception):
    """Raised by the user's signal handler."""


class Part:
    """Takes a while to pickle and to unpickle, in Python."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> Any:
        return Part, (sum([self.number]),)


class Scene:
    """What the main thread does when it is interrupted.  Each call that `act` notes has an outcome,
    which `check` waits for."""

    def __init__(self) -> None:
        self.echo = Echo()
        self.calls: list[tuple[Any, Future[Any]]] = []

    def act(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        for value, call in self.calls:
            assert call.result(NO_LATER_THAN_S) == value
        self.calls.clear()
        assert self.echo.echo(SMALL) == SMALL

    def close(self) -> None: ...


class InQueue(Scene):
    """Calls wait for the futures among their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.source = Echo()

    def act(self) -> None:
        for i in range(10):
            self.calls.append((i, self.echo.echo.submit(self.source.echo.submit(i))))
        assert self.source.echo(SMALL) == SMALL
        assert self.echo.echo(SMALL) == SMALL


class InPool(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.pool = remotely.Pool(Echo, 2)

    def act(self) -> None:
        self.calls += [(i, self.pool.submit(Echo.echo, i)) for i in range(10)]
        value, call = self.calls[-1]
        assert call.result(NO_LATER_THAN_S) == value

    def check(self) -> None:
        super().check()
        assert self.pool.submit(Echo.echo, 1).result(NO_LATER_THAN_S) == 1

    def close(self) -> None:
        self.pool.close()


class InExecutor(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.executor = remotely.Executor(2)

    def act(self) -> None:
        self.calls += [(i, self.executor.submit(abs, -i)) for i in range(10)]
        value, call = self.calls[-1]
        assert call.result(NO_LATER_THAN_S) == value
        assert list(self.executor.map(abs, range(-5, 0))) == [5, 4, 3, 2, 1]

    def check(self) -> None:
        super().check()
        assert self.executor.submit(abs, -1).result(NO_LATER_THAN_S) == 1

    def close(self) -> None:
        self.executor.shutdown()


class InStream(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.stream = self.echo.count()
        self.items: list[int] = []

    def act(self) -> None:
        for item in self.stream:
            self.items.append(item)
            if item % 20 == 0:
                break
        assert self.echo.echo(SMALL) == SMALL

    def check(self) -> None:
        super().check()
        assert self.items == [*range(len(self.items))]

    def close(self) -> None:
        assert next(self.stream) == len(self.items)
        self.stream.close()


class InAwait(Scene):
    """Another thread awaits calls to the same actor, whose replies the main thread receives."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = 0
        self.is_over = False
        self.thread = threading.Thread(target=lambda: asyncio.run(self._await()))
        self.thread.start()

    async def _await(self) -> None:
        while not self.is_over:
            futures: list[Any] = [self.echo.echo.submit(i) for i in range(5)]
            values = await asyncio.wait_for(asyncio.gather(*futures), NO_LATER_THAN_S)
            assert values == [*range(5)]
            self.arrived += 1

    def act(self) -> None:
        self.calls += [(i, self.echo.echo.submit(i)) for i in range(5)]
        assert self.echo.echo(SMALL) == SMALL

    def check(self) -> None:
        super().check()
        before = self.arrived
        wait_until(lambda: self.arrived > before, "the other thread continues")

    def close(self) -> None:
        self.is_over = True
        self.thread.join()


class InPickle(Scene):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [Part(i) for i in range(300)]

    def act(self) -> None:
        self.calls.append((300, self.echo.length.submit(self.parts)))
        self.calls.append(([], self.echo.parts.submit(0)))
        made = self.echo.parts.submit(300)
        assert self.echo.length(self.parts) == 300
        assert [part.number for part in self.echo.parts(300)] == [*range(300)]
        assert len(made.result(NO_LATER_THAN_S)) == 300


SCENES: list[type[Scene]] = [InQueue, InPool, InExecutor, InStream, InAwait, InPickle]


def interrupt_scene(kind: type[Scene], error: type[BaseException], n: int, seed: int) -> None:
    """Interrupt a scene n times; each error must come out of what it interrupts, once."""
    draw = random.Random(seed)
    scene = kind()
    scene.act()
    handled = raised = 0

    def handler(*_: object) -> None:
        nonlocal handled
        handled += 1
        raise error

    printed: list[object] = []
    print_unraisable, sys.unraisablehook = sys.unraisablehook, printed.append
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(n):
            expected = handled + 1
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(20e-6, 3e-3))
                while handled < expected:
                    scene.act()
            except error:
                raised += 1
            scene.check()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = print_unraisable
        scene.close()
    assert (handled, raised) == (n, n - len(printed)), printed


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
@pytest.mark.parametrize("kind", SCENES)
def test_what_a_handler_raises_ends_only_what_it_interrupts(
    here: None, kind: type[Scene], error: type[BaseException]
) -> None:
    interrupt_scene(kind, error, n=20, seed=4)


@pytest.mark.chaos
@pytest.mark.timeout(900, method="thread")
@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
@pytest.mark.parametrize("kind", SCENES)
def test_thousands_of_interrupts_lose_nothing(
    here: None, kind: type[Scene], error: type[BaseException]
) -> None:
    interrupt_scene(kind, error, n=2000, seed=5)
