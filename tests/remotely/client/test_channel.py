"""Who receives, when several threads use the connection to one actor."""

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
from remotely.client import channel, delivery, inbox
from remotely.client.channel import Channel
from remotely.client.inbox import Inbox
from remotely.futures.future import CallFuture
from remotely.protocol import control
from remotely.protocol.wire import Kind
from remotely.transport import sockets
from remotely.values import codec
from remotely.values.payload import OutgoingValue
from tests.clusters import wait_until

NO_LATER_THAN_S = 10.0


@remotely.remote_class
class Echo:
    def echo(self, value: Any) -> Any:
        return value

    def give_up(self) -> None:
        raise KeyboardInterrupt

    def echo_once_there_is(self, path: Path, value: Any) -> Any:
        while not path.exists():
            time.sleep(0.001)
        return value


def by_a_wait(_: Channel, future: CallFuture[Any]) -> None:
    threading.Thread(target=future.exception, daemon=True).start()


def by_a_callback(_: Channel, future: CallFuture[Any]) -> None:
    future.add_done_callback(lambda _: None)


def by_the_loop(line: Channel, _: CallFuture[Any]) -> None:
    line._loop.call(line._inbox._look)


@pytest.mark.parametrize("sent", [by_a_wait, by_a_callback, by_the_loop])
def test_a_thread_that_sleeps_is_woken_though_whoever_sent_held_calls_was_told_of_its_reply(
    here: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    sent: Callable[[Channel, CallFuture[Any]], None],
) -> None:
    monkeypatch.setattr(channel, "HOLD_ABOVE", 0)
    monkeypatch.setattr(inbox, "LOOK_S", 60.0)
    echo = Echo()
    line = echo._remotely_remote.channel
    told = threading.Event()
    sleep, send = Inbox._sleep, sockets.send

    def sleep_once_told(*args: Any) -> None:
        assert told.wait(NO_LATER_THAN_S)
        sleep(*args)

    def send_and_be_told(socket: Any, *args: Any, **how: Any) -> None:
        send(socket, *args, **how)
        if socket is line._socket and not told.is_set():
            (tmp_path / "answer").touch()
            wait_until(lambda: sockets.readable(socket), "the reply is there")
            told.set()

    monkeypatch.setattr(Inbox, "_sleep", sleep_once_told)
    first = echo.echo_once_there_is.submit(tmp_path / "answer", 1)
    values: list[Any] = []
    sleeper = threading.Thread(target=lambda: values.append(first.result()), daemon=True)
    sleeper.start()
    wait_until(lambda: line._inbox._leader is not None, "it is about to sleep")
    monkeypatch.setattr(sockets, "send", send_and_be_told)
    second = echo.echo.submit(2)
    assert line._inbox.holds(second)
    sent(line, second)
    sleeper.join(NO_LATER_THAN_S)
    assert values == [1]
    assert second.result(NO_LATER_THAN_S) == 2


@pytest.mark.parametrize("another_leads", [False, True])
def test_a_reply_that_has_arrived_is_found_without_any_time_to_wait(
    embedded: None, another_leads: bool
) -> None:
    echo, line = an_echo()
    with line._lock:  # nobody else takes it
        future = echo.echo.submit(1)
        wait_until(lambda: sockets.readable(line._socket), "the reply is there")
        if another_leads:
            line._inbox._leader = leader = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            assert future.result(timeout=0) == 1
        finally:
            if another_leads:
                line._inbox._leader = None
                os.close(leader)


def test_a_handler_that_interrupts_a_call_with_its_lock_held_may_ask_the_master(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, line = an_echo()
    client = echo._remotely_remote.engine
    drain = Inbox.drain
    answers: list[object] = []

    def ask(*_: object) -> None:
        question = client._session.ask(lambda ticket: control.AskStatus(ticket=ticket))
        answers.append(question.result(NO_LATER_THAN_S))

    def drain_interrupted(self: Inbox, arrived: Any) -> None:
        drain(self, arrived)
        if threading.current_thread() is threading.main_thread() and not answers:
            for act in (line._inbox._look, line._inbox._hear, line._inbox._attend, line.tend):
                line._loop.call(act)
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(Inbox, "drain", drain_interrupted)
    before = signal.signal(signal.SIGUSR1, ask)
    try:
        assert echo.echo(1) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(answers) == 1
    assert echo.echo(2) == 2


def test_an_actor_ends_although_its_lock_is_held(embedded: None) -> None:
    """By a main thread that a handler has interrupted; the loop tells of the end later."""
    echo, line = an_echo()
    future = echo.echo_once_there_is.submit(Path("/never"), 1)
    turns: list[int] = []
    with line._lock:
        line._loop.call(lambda: line.end(lambda may: remotely.ActorDied("on purpose", may)))
        line._loop.call(lambda: turns.append(1))
        wait_until(lambda: bool(turns), "the loop goes on")
        assert not line.ended
    with pytest.raises(remotely.ActorDied):
        future.result(NO_LATER_THAN_S)
    channels = echo._remotely_remote.engine._channels
    wait_until(lambda: line not in channels._open, "the client has forgotten it")
    remotely.kill(echo)


@pytest.mark.parametrize("exited", [True, False])
def test_only_after_an_exit_in_good_order_are_replies_still_waited_for(
    embedded: None, tmp_path: Path, exited: bool
) -> None:
    """The news of the end goes through the master, and may be faster than the last reply."""
    echo, line = an_echo()
    remote = echo._remotely_remote
    on_its_way = echo.echo_once_there_is.submit(tmp_path / "reply", 1)
    wait_until(lambda: line.connected, "it is connected")
    hear_of_end(remote, exited)
    with pytest.raises(remotely.ActorDied, match="closed; the call did not run"):
        echo.echo(2)
    (tmp_path / "reply").touch()
    if exited:
        assert on_its_way.result(NO_LATER_THAN_S) == 1
        assert not line.ended
    else:
        with pytest.raises(remotely.ActorDied, match="closed; the call may have run"):
            on_its_way.result(NO_LATER_THAN_S)
    end_process(remote)
    wait_until(lambda: line.ended, "the connection has ended, and with it the channel")


def test_a_call_without_a_reply_fails_when_the_connection_of_an_actor_that_has_exited_ends(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DRAIN_S", 3600.0)
    echo, line = an_echo()
    remote = echo._remotely_remote
    future = echo.echo_once_there_is.submit(Path("/never"), 1)
    wait_until(lambda: line.connected, "it is connected")
    hear_of_end(remote, exited=True)
    late: CallFuture[None] = CallFuture("late")  # of a thread that had found the channel before
    line.send(Kind.CALL, "echo", OutgoingValue(codec.encode(((2,), {}))), late, background=True)
    assert not future.done()
    end_process(remote)
    assert "the call may have run" in str(future.exception(NO_LATER_THAN_S))
    assert "the call did not run" in str(late.exception(NO_LATER_THAN_S))


def test_replies_of_an_actor_that_has_exited_are_waited_for_so_long_and_no_longer(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "DRAIN_S", 0.05)
    echo, line = an_echo()
    remote = echo._remotely_remote
    future = echo.echo_once_there_is.submit(Path("/never"), 1)
    wait_until(lambda: line.connected, "it is connected")
    hear_of_end(remote, exited=True)
    assert isinstance(future.exception(NO_LATER_THAN_S), remotely.ActorDied)
    end_process(remote)


def hear_of_end(remote: Any, exited: bool) -> None:
    """Return when the client has heard that an actor has ended, which still lives."""
    death = control.Obituary(actor=remote.actor, life=0, asked=True, exited=exited, why="closed")
    client = remote.engine
    client._loop.call(lambda: client._hear(control.Died(obituary=death)))
    wait_until(lambda: remote.ended, "the news is there")


def end_process(remote: Any) -> None:
    """Kill an actor of whose end its client has heard already."""
    remote.engine._terminations.request([remote.actor], 0.0, kill=True)


def test_what_the_loop_cannot_do_at_once_it_does_in_order_and_waits_for_all_of_it_together(
    embedded: None,
) -> None:
    _, line = an_echo()
    done: list[int] = []
    turns: list[bool] = []
    run = line._turns._run

    def count_and_run() -> None:
        turns.append(line._turns._is_late)
        run()

    line._turns._run = count_and_run
    with line._lock:
        for n in range(50):
            line._loop.call(lambda n=n: line._turns.take(lambda _: done.append(n)))
        wait_until(lambda: len(line._turns._actions) >= 50, "all are put off")
        assert turns.count(False) == 1  # the others do not wait for the lock, each for itself
        assert not done
    wait_until(lambda: len(done) == 50, "the loop has its turn")
    assert done == list(range(50))


def test_what_the_loop_fails_at_keeps_nothing_else_from_its_turn(embedded: None) -> None:
    _, line = an_echo()
    done: list[int] = []

    def fail(_: object) -> None:
        raise OSError("on purpose")

    with line._lock:
        line._loop.call(lambda: line._turns.take(fail))
        line._loop.call(lambda: line._turns.take(lambda _: done.append(1)))
        wait_until(lambda: len(line._turns._actions) >= 2, "both are put off")
    wait_until(lambda: done == [1], "the loop has its turn")


def test_calls_end_though_an_interrupt_strikes_where_there_is_no_loop_to_leave_them_to(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, line = an_echo()
    futures = [echo.echo_once_there_is.submit(Path("/never"), n) for n in range(3)]

    def interrupted(may_have_run: bool) -> Exception:
        signal.raise_signal(signal.SIGINT)
        return remotely.NotConnected("shut down on purpose")

    monkeypatch.setattr(Inbox, "leave_to_loop", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        line.end(interrupted, now=True)
    assert all("on purpose" in str(future.exception(timeout=0)) for future in futures)


def test_the_reply_to_a_call_that_was_interrupted_before_it_waits_is_taken_in(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, line = an_echo()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CallFuture, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            echo.echo(1)
    wait_until(lambda: not line._pending, "the client has looked after it")


def test_a_handler_that_waits_for_another_actor_does_not_keep_the_word_for_its_own_thread(
    embedded: None, tmp_path: Path
) -> None:
    """The other thread takes in the main thread's reply, and wakes it in the handler's wait."""
    echo, other = Echo(), Echo()
    line = echo._remotely_remote.channel
    wake = delivery.this_thread().wake
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
        wait_until(lambda: line._inbox._leader is not None, "the main thread waits")
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


def test_callbacks_that_call_and_wait_do_not_nest_however_many_replies_are_there(
    embedded: None,
) -> None:
    echo, other = Echo(), Echo()
    told: list[int] = []
    futures = [echo.echo.submit(number) for number in range(400)]
    for future in futures:
        future.add_done_callback(lambda future: told.append(other.echo(future.result())))
    wait_until(lambda: len(told) == 400, "every callback has run")
    assert sorted(told) == [*range(400)]


def test_a_callback_that_meets_a_keyboard_interrupt_ends_no_thread_of_the_client(
    embedded: None,
) -> None:
    echo, line = an_echo()
    told: list[int] = []
    future = echo.give_up.submit()
    future._done_callbacks.append(lambda future: future.result())  # not to be run by this thread
    line._inbox.attend_soon()
    wait_until(lambda: not line._pending, "it is answered")
    echo.echo.submit(1).add_done_callback(lambda future: told.append(future.result()))
    wait_until(lambda: told == [1], "a later callback runs")


def test_a_reply_that_a_handler_takes_in_as_its_thread_goes_to_sleep_is_not_slept_on(
    embedded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo, line = an_echo()
    late = tmp_path / "late"
    slept: list[float | None] = []
    sleep = Inbox._sleep

    def sleep_and_note(self: Inbox, *given: Any) -> None:
        slept.append(given[-1])
        sleep(self, *given)

    monkeypatch.setattr(Inbox, "_sleep", sleep_and_note)

    class Pending(dict[int, Any]):
        strikes = False

        def get(self, *given: Any) -> Any:
            found = super().get(*given)
            if self.strikes and threading.current_thread() is threading.main_thread():
                self.strikes = False
                wait_until(lambda: sockets.readable(line._socket), "the reply is there")
                signal.raise_signal(signal.SIGUSR1)
            return found

    def take_in(number: int, frame: object) -> None:
        second.add_done_callback(lambda _: None)

    before = signal.signal(signal.SIGUSR1, take_in)
    try:
        with line._lock:
            pending = Pending(line._pending)
            line._pending = line._inbox._pending = pending
            first = echo.echo.submit(1)
            second = echo.echo_once_there_is.submit(late, 2)
            line._inbox._busy = True
            pending.strikes = True
        assert first.result(NO_LATER_THAN_S) == 1
        assert not slept
        assert not second.done()
        late.touch()
        assert second.result(NO_LATER_THAN_S) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_fork_does_not_hear_the_words_that_wake_its_parent(embedded: None) -> None:
    ours = delivery.this_thread().wake
    if (child := os.fork()) == 0:
        os.eventfd_write(delivery.this_thread().wake, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert select.select([ours], [], [], 0)[0] == []


def test_a_result_in_centuries_is_waited_for_too(embedded: None) -> None:
    echo = Echo()
    assert echo.echo.submit(1).result(timeout=threading.TIMEOUT_MAX) == 1


def test_replies_are_seen_by_who_submits_on_and_on_without_waiting(
    embedded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LOOK_S", 60.0)
    echo, line = an_echo()
    future = echo.echo.submit(1)
    wait_until(lambda: sockets.readable(line._socket), "the reply is there")
    looks: list[int] = []

    def look() -> None:
        line._inbox._busy = True  # a further call has been submitted
        line._inbox._look()
        looks.append(1)

    for _ in range(inbox.MAX_LOOKS_DELAYED + 1):
        line._loop.call(look)
    wait_until(lambda: len(looks) > inbox.MAX_LOOKS_DELAYED, "the loop has looked")
    assert future.done()


def test_callbacks_run_though_an_interrupt_strikes_while_their_actor_ends(here: None) -> None:
    echo, line = an_echo()
    told: list[object] = []
    future = echo.echo_once_there_is.submit(Path("/never"), 1)
    future.add_done_callback(told.append)

    def interrupted(may_have_run: bool) -> Exception:
        signal.raise_signal(signal.SIGINT)
        return remotely.ActorDied("on purpose", may_have_run=may_have_run)

    with pytest.raises(KeyboardInterrupt):
        line.end(interrupted)
    wait_until(lambda: told == [future], "the callback has run")
    remotely.kill(echo)


def test_callbacks_run_though_an_interrupt_strikes_while_their_call_is_cancelled(
    here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(channel, "HOLD_ABOVE", 0)
    monkeypatch.setattr(inbox, "LOOK_S", 60.0)
    echo, line = an_echo()
    echo.echo_once_there_is.submit(tmp_path / "go", 1)
    future = echo.echo.submit(2)
    told: list[object] = []
    future._done_callbacks.append(told.append)
    recall = line._inbox.recall

    def recall_interrupted(one: CallFuture[Any]) -> bool:
        signal.raise_signal(signal.SIGINT)
        return bool(recall(one))

    line._inbox.recall = recall_interrupted
    with pytest.raises(KeyboardInterrupt):
        future.cancel()
    (tmp_path / "go").touch()
    assert future.cancelled()
    assert told == [future]


def an_echo() -> tuple[Any, Any]:
    """An actor of which nothing is on its way, and its channel."""
    echo: Any = Echo()
    line = echo._remotely_remote.channel
    echo.echo(0)
    wait_until(lambda: not line._pending, "what opened the line is answered too")
    return echo, line
