"""Who receives, when several threads use the connection to one actor."""

import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely import channel, delivery, sockets
from remotely.channel import Channel
from remotely.future import CallFuture
from tests.clusters import wait_until

NO_LATER_THAN_S = 10.0


@remotely.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value

    def echo_once_there_is(self, path: Path, value: Any) -> Any:
        while not path.exists():
            time.sleep(0.001)
        return value


def by_a_wait(_: Channel, future: CallFuture[Any]) -> None:
    threading.Thread(target=future.exception, daemon=True).start()


def by_a_callback(_: Channel, future: CallFuture[Any]) -> None:
    future.add_done_callback(lambda _: None)


def by_the_loop(line: Channel, _: CallFuture[Any]) -> None:
    line._loop.call(line._look)


@pytest.mark.parametrize("sent", [by_a_wait, by_a_callback, by_the_loop])
def test_a_thread_that_sleeps_is_woken_though_whoever_sent_held_calls_was_told_of_its_reply(
    here: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sent: Callable[[Channel, CallFuture[Any]], None],
) -> None:
    monkeypatch.setattr(channel, "HOLD_ABOVE", 0)
    monkeypatch.setattr(channel, "LOOK_S", 60.0)
    echo = Echo()
    line = echo._remotely_remote.channel
    told = threading.Event()
    sleep, send = Channel._sleep, sockets.send

    def sleep_once_told(*args: Any) -> None:
        assert told.wait(NO_LATER_THAN_S)
        sleep(*args)

    def send_and_be_told(socket: Any, *args: Any, **how: Any) -> None:
        send(socket, *args, **how)
        if socket is line._socket and not told.is_set():
            (tmp_path / "answer").touch()
            wait_until(lambda: sockets.readable(socket), "the reply is there")
            told.set()

    monkeypatch.setattr(Channel, "_sleep", sleep_once_told)
    first = echo.echo_once_there_is.submit(tmp_path / "answer", 1)
    values: list[Any] = []
    sleeper = threading.Thread(target=lambda: values.append(first.result()), daemon=True)
    sleeper.start()
    wait_until(lambda: line._leader is not None, "it is about to sleep")
    monkeypatch.setattr(sockets, "send", send_and_be_told)
    second = echo.echo.submit(2)
    assert line.holds(second)
    sent(line, second)
    sleeper.join(NO_LATER_THAN_S)
    assert values == [1]
    assert second.result(NO_LATER_THAN_S) == 2


def test_a_reply_that_has_arrived_is_found_without_any_time_to_wait(embedded: None) -> None:
    echo = Echo()
    echo.echo(0)  # the answer to its construction has been taken
    line = echo._remotely_remote.channel
    future = echo.echo.submit(1)
    with line._lock:  # nobody else takes it
        wait_until(lambda: sockets.readable(line._socket), "the reply is there")
        assert future.result(timeout=0) == 1


def test_a_handler_that_waits_for_another_actor_does_not_keep_the_word_for_its_own_thread(
    embedded: None, tmp_path: Path
) -> None:
    """The other thread takes in the main thread's reply, and wakes it in the handler's wait."""
    echo, other = Echo(), Echo()
    line = echo._remotely_remote.channel
    wake = delivery.of_this_thread().wake
    first = echo.echo_once_there_is.submit(tmp_path / "first", 1)
    seconds: list[CallFuture[int]] = []
    has_word: list[bool] = []

    def take_in_and_wake() -> None:
        (tmp_path / "first").touch()
        with line._lock:
            wait_until(lambda: sockets.readable(line._socket), "the reply is there")
            seconds.append(echo.echo.submit(2))
        wait_until(first.done, "it is handed over")
        wait_until(lambda: not is_readable(wake), "the word is taken")
        (tmp_path / "other").touch()

    def call_the_other(*_: object) -> None:
        thread.start()
        other.echo_once_there_is.submit(tmp_path / "other", 3).result(NO_LATER_THAN_S)
        has_word.append(is_readable(wake))

    def strike() -> None:
        wait_until(lambda: line._leader is not None, "the main thread waits")
        signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.get_ident()
    thread = threading.Thread(target=take_in_and_wake)
    striker = threading.Thread(target=strike)
    before = signal.signal(signal.SIGUSR1, call_the_other)
    try:
        striker.start()
        assert first.result(NO_LATER_THAN_S) == 1
    finally:
        striker.join()
        signal.signal(signal.SIGUSR1, before)
    thread.join()
    assert has_word == [True]
    assert seconds[0].result(NO_LATER_THAN_S) == 2


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
