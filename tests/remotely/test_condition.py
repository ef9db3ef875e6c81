"""Whoever waits holds up nobody, wherever the handler has struck in which it does."""

import itertools
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

import pytest

from remotely import condition, control, future, in_flight, question
from remotely.errors import CallTimeout
from remotely.future import CallFuture
from remotely.in_flight import Budget
from remotely.question import Question
from tests.striking import struck_at


def use_future() -> None:
    call = CallFuture[int]("a call")
    call.add_done_callback(lambda _: None)
    with suppress(CallTimeout):
        call.result(timeout=0)
    assert not call._condition._waiters
    call.set_result(1)
    assert call.result() == 1


def use_question() -> None:
    asked = Question(control.AskStatus(ticket=1))
    asked.wait_for_room()
    assert not asked.has_room()
    asked.set_result(1)
    assert asked.result() == 1


def use_budget() -> None:
    budget.wait_for_room(50)
    assert budget.take(50)
    budget.give(50)


budget = Budget(100)


def do_what_takes_all_locks(asked: Question) -> None:
    CallFuture[int]("another call").set_result(1)
    budget.take(1, force=True)
    budget.give(1)
    asked.set_result(2)


@pytest.mark.parametrize("use", [use_future, use_question, use_budget])
@pytest.mark.parametrize("module", [future, question, in_flight, condition])
def test_a_handler_may_ask_the_master_wherever_it_strikes(
    use: Callable[[], None], module: ModuleType
) -> None:
    answers: list[object] = []

    def ask(*_: object) -> None:
        asked = Question(control.AskStatus(ticket=1))
        threading.Thread(target=do_what_takes_all_locks, args=(asked,), daemon=True).start()
        answers.append(asked.result(timeout=5))

    before = signal.signal(signal.SIGUSR1, ask)
    try:
        for n in itertools.count(1):
            answers.clear()
            with struck_at(n, signal.SIGUSR1, module) as has_struck:
                use()
            if not has_struck:
                break
            assert answers == [2]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_fork_while_another_thread_holds_it_waits_for_nobody() -> None:
    holds, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with condition.shared:
            holds.set()
            may_go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(10)
    child = os.fork()
    if not child:
        condition.wake()
        os._exit(0)
    may_go.set()
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
