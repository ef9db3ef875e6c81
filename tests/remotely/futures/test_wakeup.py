"""Whoever waits holds up nobody, wherever the handler has struck in which it does."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import ModuleType

import pytest

from remotely.calling import back_pressure
from remotely.calling.back_pressure import ByteBudget
from remotely.client import question
from remotely.client.question import Question
from remotely.errors import CallTimeout
from remotely.futures import future, wakeup
from remotely.futures.future import CallFuture
from remotely.protocol import control
from tests.clusters import wait_until
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
    budget.give_back(50)


budget = ByteBudget(100)


def do_what_takes_all_locks(asked: Question) -> None:
    CallFuture[int]("another call").set_result(1)
    budget.take(1, force=True)
    budget.give_back(1)
    asked.set_result(2)


@pytest.mark.parametrize("use", [use_future, use_question, use_budget])
@pytest.mark.parametrize("module", [future, question, back_pressure, wakeup])
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


def strike(n: int, waits_s: float) -> tuple[bool, bool]:
    """Strike who waits for a question by a handler that asks another: the former is answered first,
    when the handler alone sleeps.  Return whether it was struck before its time was over, and
    whether it went on before."""
    outer, asked = Question(control.AskStatus(ticket=1)), Question(control.AskStatus(ticket=2))
    in_time: list[bool] = []
    deadline = time.monotonic() + waits_s

    def answer_both() -> None:
        outer.set_result(1)
        asked.set_result(2)

    def ask(*_: object) -> None:
        in_time.append(time.monotonic() < deadline)
        threading.Thread(target=answer_both, daemon=True).start()
        assert asked.result(timeout=5) == 2

    before = signal.signal(signal.SIGUSR1, ask)
    try:
        with struck_at(n, signal.SIGUSR1, wakeup), suppress(CallTimeout):
            outer.result(timeout=waits_s)
    finally:
        signal.signal(signal.SIGUSR1, before)
    return in_time == [True], time.monotonic() < deadline


def test_who_is_struck_on_its_way_to_sleep_hears_what_came_while_its_handler_slept() -> None:
    for n in itertools.count(1):
        is_struck, goes_on = strike(n, waits_s=2)
        assert is_struck == goes_on
        if not is_struck:  # all places on the way have been tried
            break
    assert n > 20


def test_in_a_fork_no_bell_of_the_parent_hangs() -> None:
    with ThreadPoolExecutor() as pool:
        asked = Question(control.AskStatus(ticket=1))
        pool.submit(asked.result)
        wait_until(lambda: len(wakeup.sleepers) == 1, "a thread that sleeps")
        child = os.fork()
        if not child:
            os._exit(len(wakeup.sleepers))
        asked.set_result(1)
    assert os.waitpid(child, 0)[1] == 0
