"""Which thread receives when several use the connection to one actor, and how a connection ends."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import remotely
from remotely.api.handle import remote_of
from remotely.client import channel
from remotely.client.channel import this_thread
from remotely.client.end_errors import end_error
from remotely.futures.future import CallFuture
from remotely.protocol.control import Obituary
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
    """An actor of which nothing is on its way, and its channel."""
    echo: Any = Echo()
    line = remote_of(echo).channel
    echo.echo(0)
    wait_until(lambda: not line.unanswered, "what opened the line is answered too")
    return echo, line


def on_the_loop(act: Callable[[], object]) -> None:
    """Run something on the thread of the client's loop, where done-callbacks run."""
    done = threading.Event()
    future = remotely.submit(Echo().echo, 1)
    future.add_done_callback(lambda _: act())
    future.add_done_callback(lambda _: done.set())
    assert done.wait(NO_LATER_THAN_S)


# --- who receives ---------------------------------------------------------------------------------


def by_a_wait(future: CallFuture[Any], _: pytest.MonkeyPatch) -> None:
    threading.Thread(target=future.exception, daemon=True).start()


def by_a_callback(future: CallFuture[Any], _: pytest.MonkeyPatch) -> None:
    future.add_done_callback(lambda _: None)


def by_the_loop(_: CallFuture[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks by itself, after CHECK_AFTER_S."""


@pytest.mark.parametrize("sent", [by_a_wait, by_a_callback, by_the_loop])
def test_the_leader_is_woken_if_another_thread_takes_in_its_reply_while_it_goes_to_sleep(
    here: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sent: Callable[[CallFuture[Any], pytest.MonkeyPatch], None],
) -> None:
    """That thread uses the socket to send the calls that are held, and swallows the edge."""
    monkeypatch.setattr(channel, "HOLD_ABOVE", 0)
    monkeypatch.setattr(channel, "CHECK_AFTER_S", 1.0 if sent is by_the_loop else 60.0)
    echo, _ = an_echo()
    goes_to_sleep, is_here = threading.Event(), threading.Event()
    send, poll = sockets.send, select.poll

    class LatePoll:
        """Sleeps only once the reply is there, and taken in by another thread."""

        def __init__(self) -> None:
            self._poll = poll()
            self.register = self._poll.register

        def poll(self, timeout_ms: float | None = None) -> Any:
            if threading.current_thread() is sleeper:
                goes_to_sleep.set()
                assert is_here.wait(NO_LATER_THAN_S)
            return self._poll.poll(timeout_ms)

    def send_and_take_in(socket: Any, frames: Any) -> None:
        monkeypatch.setattr(sockets, "send", send)
        send(socket, frames)
        (tmp_path / "answer").touch()
        wait_until(lambda: sockets.readable(socket), "the reply is there")
        is_here.set()

    values: list[Any] = []
    first = echo.echo_once_there_is.submit(tmp_path / "answer", 1)
    sleeper = threading.Thread(target=lambda: values.append(first.result()), daemon=True)
    monkeypatch.setattr(select, "poll", LatePoll)
    sleeper.start()
    assert goes_to_sleep.wait(NO_LATER_THAN_S)
    monkeypatch.setattr(sockets, "send", send_and_take_in)
    second = echo.echo.submit(2)
    assert not second.running()  # it is held
    sent(second, monkeypatch)
    sleeper.join(NO_LATER_THAN_S)
    assert values == [1]
    assert second.result(NO_LATER_THAN_S) == 2


def test_a_reply_that_has_arrived_is_found_without_any_time_to_wait(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CHECK_AFTER_S", 60.0)  # nobody else takes it
    echo, _ = an_echo()
    future = echo.echo.submit(1)

    def is_found() -> bool:
        try:
            return bool(future.result(timeout=0) == 1)
        except remotely.CallTimeout:
            return False

    wait_until(is_found, "the reply")


def test_the_reply_to_a_call_that_was_interrupted_before_it_waits_is_taken_in(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, line = an_echo()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CallFuture, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            echo.echo(1)
    wait_until(lambda: not line.unanswered, "the client has looked after it")


def test_replies_are_seen_by_a_program_that_submits_without_ever_waiting(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_CHECKS_DELAYED", 3)
    echo, _ = an_echo()
    first = echo.echo.submit(1)
    deadline = time.monotonic() + NO_LATER_THAN_S
    while not first.done():
        assert time.monotonic() < deadline
        echo.echo.submit(2)


def test_a_fork_is_not_woken_in_place_of_its_parent(here: None) -> None:
    ours = this_thread().wake
    if (child := os.fork()) == 0:
        os.eventfd_write(this_thread().wake, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert select.select([ours], [], [], 0)[0] == []


def test_a_result_in_centuries_is_waited_for_too(here: None) -> None:
    echo = Echo()
    assert echo.echo.submit(1).result(timeout=threading.TIMEOUT_MAX) == 1


# --- done-callbacks -------------------------------------------------------------------------------


def test_callbacks_that_call_and_wait_do_not_nest_however_many_replies_are_there(
    here: None,
) -> None:
    echo, other = Echo(), Echo()
    told: list[int] = []
    futures = [echo.echo.submit(number) for number in range(400)]
    for future in futures:
        future.add_done_callback(lambda future: told.append(other.echo(future.result())))
    wait_until(lambda: len(told) == 400, "every callback has run")
    assert sorted(told) == [*range(400)]


def test_a_callback_that_meets_a_keyboard_interrupt_ends_no_thread_of_the_client(
    here: None, tmp_path: Path
) -> None:
    echo, line = an_echo()
    told: list[int] = []
    future = echo.give_up_once_there_is.submit(tmp_path / "go")
    future.add_done_callback(lambda future: future.result())
    (tmp_path / "go").touch()
    wait_until(lambda: not line.unanswered, "it is answered")
    echo.echo.submit(1).add_done_callback(lambda future: told.append(future.result()))
    wait_until(lambda: told == [1], "a later callback runs")


class ExitsAsItArrives:
    def __setstate__(self, state: dict[str, Any]) -> None:
        if remotely.current_actor() is None:
            raise SystemExit("what it needs is not here")

    def __getstate__(self) -> dict[str, Any]:
        return {"state": 1}


def test_a_value_that_exits_as_it_is_unpickled_ends_no_thread_of_the_client(
    embedded: None,
) -> None:
    echo, other = Echo(), Echo()
    with pytest.raises(SystemExit, match="what it needs is not here"):
        echo.echo(ExitsAsItArrives())
    told: list[int] = []
    other.echo.submit(1).add_done_callback(lambda future: told.append(future.result()))
    wait_until(lambda: told == [1], "the loop lives")


class AsksAsItArrives:
    def __init__(self, other: Any) -> None:
        self.other = other

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.other = state["other"]
        self.answer = self.other.echo(7) if remotely.current_actor() is None else None


def test_a_value_may_call_an_actor_as_it_is_unpickled_among_other_replies(here: None) -> None:
    echo, other = Echo(), Echo()
    value = AsksAsItArrives(other)
    futures = [echo.echo.submit(value) for _ in range(5)]
    assert [future.result(NO_LATER_THAN_S).answer for future in futures] == [7] * 5


def test_the_loops_thread_receives_when_the_leader_that_it_followed_has_left(
    here: None, tmp_path: Path
) -> None:
    """In a done-callback, say: there it cannot also look after the channel as the loop."""
    echo, other = Echo(), Echo()
    told: list[object] = []

    def call(future: object) -> None:
        told.append("begun")
        told.append(other.echo_once_there_is(tmp_path / "later", 2))

    first = other.echo_once_there_is.submit(tmp_path / "first", 1)  # before the callback's call
    leader = threading.Thread(target=first.result, daemon=True)
    leader.start()
    on_its_way = echo.echo.submit(0)
    on_its_way.add_done_callback(call)
    wait_until(lambda: told, "the callback calls")
    (tmp_path / "first").touch()
    leader.join(NO_LATER_THAN_S)
    assert not leader.is_alive()
    (tmp_path / "later").touch()
    wait_until(lambda: told == ["begun", 2], "the callback has its reply")


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exited", [True, False])
def test_only_after_an_exit_in_good_order_are_replies_still_waited_for(
    here: None, tmp_path: Path, exited: bool
) -> None:
    """The news of the end goes through the master, and may be faster than the last reply."""
    echo, line = an_echo()
    on_its_way = echo.echo_once_there_is.submit(tmp_path / "reply", 1)
    wait_until(lambda: line.connected, "it is connected")
    hear_of_end(echo, exited)
    with pytest.raises(remotely.ActorDied, match="closed; the call did not run"):
        echo.echo(2)
    (tmp_path / "reply").touch()
    if exited:
        assert on_its_way.result(NO_LATER_THAN_S) == 1
        assert not line.ended
    else:
        with pytest.raises(remotely.ActorDied, match="closed; the call may have run"):
            on_its_way.result(NO_LATER_THAN_S)
    end_process(echo)
    wait_until(lambda: line.ended, "the connection has ended, and with it the channel")


def test_a_call_without_a_reply_fails_when_the_connection_of_an_actor_that_has_exited_ends(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DRAIN_S", 3600.0)
    echo, line = an_echo()
    future = echo.echo_once_there_is.submit(NEVER, 1)
    wait_until(lambda: line.connected, "it is connected")
    hear_of_end(echo, exited=True)
    late: CallFuture[None] = CallFuture("late")  # of a thread that had found the channel before
    line.send(Kind.CALL, "echo", codec.encode(((2,), {})), late, background=True)
    assert not future.done()
    end_process(echo)
    assert "the call may have run" in str(future.exception(NO_LATER_THAN_S))
    assert "the call did not run" in str(late.exception(NO_LATER_THAN_S))


def test_replies_of_an_actor_that_has_exited_are_waited_for_until_a_timeout(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DRAIN_S", 0.05)
    echo, line = an_echo()
    future = echo.echo_once_there_is.submit(NEVER, 1)
    wait_until(lambda: line.connected, "it is connected")
    hear_of_end(echo, exited=True)
    assert isinstance(future.exception(NO_LATER_THAN_S), remotely.ActorDied)
    end_process(echo)


def test_the_leader_is_woken_by_the_end_with_the_lock_held(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else it could leave meanwhile, and its descriptor be somebody else's file."""
    echo, line = an_echo()
    mine, write = this_thread().wake, os.eventfd_write
    held: list[bool] = []

    def write_and_look(fd: int, value: int) -> None:
        if fd == mine:
            other = threading.Thread(target=line.holds, args=(CallFuture("any"),))
            other.start()
            other.join(0.1)
            held.append(other.is_alive())
        write(fd, value)

    def kill_as_it_is_waited_for() -> None:
        wait_until((tmp_path / "begun").exists, "the call runs")
        time.sleep(0.2)  # nothing tells that who has sent it has begun to wait
        end_process(echo)

    monkeypatch.setattr(os, "eventfd_write", write_and_look)
    killer = threading.Thread(target=kill_as_it_is_waited_for)
    killer.start()
    with pytest.raises(remotely.ActorDied):
        echo.go_on_for_ever(tmp_path / "begun")
    killer.join()
    assert held
    assert all(held)


def hear_of_end(echo: Any, exited: bool) -> None:
    """Return when the client has heard that an actor has ended, which still lives."""
    remote = remote_of(echo)
    obituary = Obituary(actor=remote.actor, life=0, asked=True, exited=exited, why="closed")
    remote.ended = end_error(remote.name, remote.location, obituary)
    line = remote.channel
    remote.channel = None
    end = line.end_after_replies if exited else line.end
    on_the_loop(lambda: end(remote.ended, obituary))


def end_process(echo: Any) -> None:
    os.kill(remote_of(echo).location.pid, signal.SIGKILL)
