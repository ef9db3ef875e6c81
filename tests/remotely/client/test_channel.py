"""Leader and followers on the connection to one actor, done-callbacks, and the connection's end."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.client import channel
from remotely.client.channel import this_thread
from remotely.client.end_errors import end_error
from remotely.client.master_session import MasterSession
from remotely.futures import callbacks
from remotely.futures.future import CallFuture
from remotely.protocol.control import Cancel, Obituary
from remotely.protocol.wire import Kind
from remotely.transport import sockets
from remotely.values import codec
from tests.clusters import wait_until

NO_LATER_THAN_S = 40.0
NEVER = Path("/never")


@remotely.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value

    def give_up_once_there_is(self, path: Path) -> None:
        wait_until(path.exists, "it may give up")
        raise KeyboardInterrupt

    def echo_once_there_is(self, path: Path, value: Any) -> Any:
        while not path.exists():
            time.sleep(0.001)
        return value

    def go_on_for_ever(self, begun: Path) -> None:
        begun.touch()
        while True:
            time.sleep(0.05)


def an_echo() -> tuple[Any, Any]:
    """Return an actor without pending calls, and its channel."""
    echo: Any = Echo()
    line = remote_of(echo).channel
    echo.echo(0)
    wait_until(lambda: not line.pending, "the messages of the opening are answered too")
    return echo, line


def on_the_loop(act: Callable[[], object]) -> None:
    """Run an action on the thread of the client's loop, which this thread asks as the runtime does.

    Not in a done-callback: those of the user have a thread of their own, and one that is added to a
    future that is done runs at once.
    """
    done: Future[object] = Future()
    callbacks.off_main(lambda: done.set_result(act()))
    done.result(NO_LATER_THAN_S)


# --- who receives ---------------------------------------------------------------------------------


def by_a_wait(future: CallFuture[Any], _: pytest.MonkeyPatch) -> None:
    threading.Thread(target=future.exception, daemon=True).start()


def by_a_callback(future: CallFuture[Any], _: pytest.MonkeyPatch) -> None:
    future.add_done_callback(lambda _: None)


def by_the_loop(_: CallFuture[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop checks after CHECK_AFTER_S."""


@pytest.mark.parametrize("sent", [by_a_wait, by_a_callback, by_the_loop])
def test_a_leader_about_to_sleep_is_woken_if_another_thread_receives_its_reply(
    here: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sent: Callable[[CallFuture[Any], pytest.MonkeyPatch], None],
) -> None:
    """The other thread sends held calls, and so consumes the edge of the descriptor."""
    monkeypatch.setattr(channel, "HOLD_ABOVE", 0)
    monkeypatch.setattr(channel, "CHECK_AFTER_S", 1.0 if sent is by_the_loop else 60.0)
    echo, _ = an_echo()
    goes_to_sleep, is_here = threading.Event(), threading.Event()
    send, poll = sockets.send, select.poll

    class LatePoll:
        """Sleeps only after another thread has received the reply."""

        def __init__(self) -> None:
            self._poll = poll()
            self.register = self._poll.register

        def poll(self, timeout_ms: float | None = None) -> Any:
            if threading.current_thread() is sleeper:
                goes_to_sleep.set()
                assert is_here.wait(NO_LATER_THAN_S)
            return self._poll.poll(timeout_ms)

    def send_and_receive(socket: Any, frames: Any) -> None:
        monkeypatch.setattr(sockets, "send", send)
        send(socket, frames)
        (tmp_path / "answer").touch()
        wait_until(lambda: sockets.readable(socket), "the reply has arrived")
        is_here.set()

    values: list[Any] = []
    first = echo.echo_once_there_is.submit(tmp_path / "answer", 1)
    sleeper = threading.Thread(target=lambda: values.append(first.result()), daemon=True)
    monkeypatch.setattr(select, "poll", LatePoll)
    sleeper.start()
    assert goes_to_sleep.wait(NO_LATER_THAN_S)
    monkeypatch.setattr(sockets, "send", send_and_receive)
    second = echo.echo.submit(2)
    assert not second.running()  # it is held
    sent(second, monkeypatch)
    sleeper.join(NO_LATER_THAN_S)
    assert values == [1]
    assert second.result(NO_LATER_THAN_S) == 2


def test_a_timeout_of_zero_finds_a_reply_that_has_arrived(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CHECK_AFTER_S", 60.0)  # no other thread receives it
    echo, _ = an_echo()
    future = echo.echo.submit(1)

    def is_found() -> bool:
        try:
            return bool(future.result(timeout=0) == 1)
        except remotely.CallTimeout:
            return False

    wait_until(is_found, "the reply")


def test_the_reply_is_received_if_the_caller_is_interrupted_before_it_waits(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, line = an_echo()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CallFuture, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            echo.echo(1)
    wait_until(lambda: not line.pending, "the loop has received the reply")


def test_replies_arrive_while_a_program_submits_without_waiting(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_CHECKS_DELAYED", 3)
    echo, _ = an_echo()
    first = echo.echo.submit(1)
    deadline = time.monotonic() + NO_LATER_THAN_S
    while not first.done():
        assert time.monotonic() < deadline
        echo.echo.submit(2)


def test_a_cancellation_without_answer_is_pending_no_longer_than_its_call(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    echo, line = an_echo()
    send = MasterSession.send

    def send_unless_cancel(session: MasterSession, message: Any) -> None:
        if not isinstance(message, Cancel):  # as if the master were restarting
            send(session, message)

    monkeypatch.setattr(MasterSession, "send", send_unless_cancel)
    future = echo.echo_once_there_is.submit(tmp_path / "answer", 1)
    future.cancel_soon()
    assert len(line.pending) == 2
    (tmp_path / "answer").touch()
    assert future.result(NO_LATER_THAN_S) == 1
    wait_until(lambda: not line.pending, "nothing is pending")


def test_a_forked_child_has_its_own_wake_descriptor(here: None) -> None:
    ours = this_thread().wake
    if (child := os.fork()) == 0:
        os.eventfd_write(this_thread().wake, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert select.select([ours], [], [], 0)[0] == []


def test_a_timeout_may_be_as_long_as_threading_allows(here: None) -> None:
    echo = Echo()
    assert echo.echo.submit(1).result(timeout=threading.TIMEOUT_MAX) == 1


# --- done-callbacks -------------------------------------------------------------------------------


def test_callbacks_that_call_and_wait_do_not_nest(here: None) -> None:
    echo, other = Echo(), Echo()
    results: list[int] = []
    futures = [echo.echo.submit(number) for number in range(400)]
    for future in futures:
        future.add_done_callback(lambda future: results.append(other.echo(future.result())))
    wait_until(lambda: len(results) == 400, "every callback has run")
    assert sorted(results) == [*range(400)]


def test_a_callback_that_raises_keyboard_interrupt_ends_no_client_thread(
    here: None, tmp_path: Path
) -> None:
    echo, line = an_echo()
    future = echo.give_up_once_there_is.submit(tmp_path / "go")
    future.add_done_callback(lambda future: future.result())
    (tmp_path / "go").touch()
    wait_until(lambda: not line.pending, "it is answered")
    expect_callbacks_to_run()


class ExitsWhenUnpickled:
    def __setstate__(self, state: dict[str, Any]) -> None:
        if remotely.current_actor() is None:
            raise SystemExit("a requirement is missing")

    def __getstate__(self) -> dict[str, Any]:
        return {"state": 1}


def test_a_value_that_exits_when_unpickled_ends_no_client_thread(here: None) -> None:
    with pytest.raises(SystemExit, match="a requirement is missing"):
        Echo().echo(ExitsWhenUnpickled())
    expect_callbacks_to_run()


def expect_callbacks_to_run() -> None:
    results: list[int] = []
    Echo().echo.submit(1).add_done_callback(lambda future: results.append(future.result()))
    wait_until(lambda: results == [1], "a later callback runs")


class CallsWhenUnpickled:
    def __init__(self, other: Any) -> None:
        self.other = other

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.other = state["other"]
        self.answer = self.other.echo(7) if remotely.current_actor() is None else None


def test_a_value_may_call_an_actor_while_it_is_unpickled(here: None) -> None:
    echo, other = Echo(), Echo()
    value = CallsWhenUnpickled(other)
    futures = [echo.echo.submit(value) for _ in range(5)]
    assert [future.result(NO_LATER_THAN_S).answer for future in futures] == [7] * 5


def test_a_done_callback_that_waits_receives_after_the_leader_has_left(
    here: None, tmp_path: Path
) -> None:
    """It runs on the loop's thread, so the loop cannot receive for it."""
    echo, other = Echo(), Echo()
    results: list[object] = []

    def call(future: object) -> None:
        results.append("begun")
        results.append(other.echo_once_there_is(tmp_path / "later", 2))

    first = other.echo_once_there_is.submit(tmp_path / "first", 1)  # before the callback's call
    leader = threading.Thread(target=first.result, daemon=True)
    leader.start()
    echo.echo.submit(0).add_done_callback(call)
    wait_until(lambda: results, "the callback calls")
    (tmp_path / "first").touch()
    leader.join(NO_LATER_THAN_S)
    assert not leader.is_alive()
    (tmp_path / "later").touch()
    wait_until(lambda: results == ["begun", 2], "the callback has its reply")


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exited", [True, False])
def test_only_a_graceful_exit_waits_for_pending_replies(
    here: None, tmp_path: Path, exited: bool
) -> None:
    """The obituary comes from the master, and may arrive before the last reply."""
    echo, line = an_echo()
    pending = echo.echo_once_there_is.submit(tmp_path / "reply", 1)
    wait_until(lambda: line.connected, "it is connected")
    receive_obituary(echo, exited)
    with pytest.raises(remotely.ActorDied, match="closed; the call did not run"):
        echo.echo(2)
    if not exited:  # the loop tries again if another thread has the lock
        wait_until(lambda: line.ended, "the end of the channel")
    (tmp_path / "reply").touch()
    if exited:
        assert pending.result(NO_LATER_THAN_S) == 1
        assert not line.ended
    else:
        with pytest.raises(remotely.ActorDied, match="closed; the call may have run"):
            pending.result(NO_LATER_THAN_S)
    end_process(echo)
    wait_until(lambda: line.ended, "the connection has ended, and with it the channel")


def test_a_call_without_reply_fails_when_the_connection_of_an_exited_actor_ends(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DRAIN_S", 3600.0)
    echo, line = an_echo()
    future = echo.echo_once_there_is.submit(NEVER, 1)
    wait_until(lambda: line.connected, "it is connected")
    receive_obituary(echo, exited=True)
    late: CallFuture[None] = CallFuture("late")  # from a thread that has found the channel before
    line.send(Kind.CALL, "echo", codec.encode(((2,), {})), late, background=True)
    assert not future.done()
    end_process(echo)
    assert "the call may have run" in str(future.exception(NO_LATER_THAN_S))
    assert "the call did not run" in str(late.exception(NO_LATER_THAN_S))


def test_waiting_for_the_replies_of_an_exited_actor_has_a_timeout(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DRAIN_S", 0.05)
    echo, line = an_echo()
    future = echo.echo_once_there_is.submit(NEVER, 1)
    wait_until(lambda: line.connected, "it is connected")
    receive_obituary(echo, exited=True)
    assert isinstance(future.exception(NO_LATER_THAN_S), remotely.ActorDied)
    end_process(echo)


def test_the_end_wakes_the_leader_under_the_lock(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the leader could close its descriptor first, and another file reuse the number."""
    echo, line = an_echo()
    mine, write = this_thread().wake, os.eventfd_write
    held: list[bool] = []

    def write_and_check(fd: int, value: int) -> None:
        if fd == mine:
            other = threading.Thread(target=line.holds, args=(CallFuture("any"),))
            other.start()
            other.join(0.1)
            held.append(other.is_alive())
        write(fd, value)

    def kill_as_it_is_waited_for() -> None:
        wait_until((tmp_path / "begun").exists, "the call runs")
        time.sleep(0.2)  # there is no sign that the caller has begun to wait
        end_process(echo)

    monkeypatch.setattr(os, "eventfd_write", write_and_check)
    killer = threading.Thread(target=kill_as_it_is_waited_for)
    killer.start()
    with pytest.raises(remotely.ActorDied):
        echo.go_on_for_ever(tmp_path / "begun")
    killer.join()
    assert held
    assert all(held)


def receive_obituary(echo: Any, exited: bool) -> None:
    """Have the client handle the obituary of an actor that is still alive."""
    remote = remote_of(echo)
    obituary = Obituary(actor=remote.actor, life=0, asked=True, exited=exited, why="closed")
    remote.ended = end_error(remote.name, remote.location, obituary)
    line = remote.channel
    remote.channel = None
    end = line.end_after_replies if exited else line.end
    on_the_loop(lambda: end(remote.ended, obituary))


def end_process(echo: Any) -> None:
    os.kill(remote_of(echo).location.pid, signal.SIGKILL)
