"""A thread that runs tasks in order, exists while there are tasks, and loses none."""

import os
import signal
import threading
from contextlib import suppress
from functools import partial
from itertools import count

import pytest

import remotely.machine.task_thread
from remotely.machine import task_thread
from remotely.machine.task_thread import TaskThread
from tests.clusters import wait_until
from tests.striking import struck_after


def test_tasks_run_in_order_on_one_thread_which_ends_after_them() -> None:
    thread, ran = TaskThread("tasks"), list[tuple[int, int]]()

    def note(number: int) -> None:
        ran.append((number, threading.get_ident()))

    for number in range(50):
        thread.call(partial(note, number))
    thread.finish(within_s=20)
    assert [number for number, _ in ran] == [*range(50)]
    assert len({ident for _, ident in ran}) == 1
    assert threading.get_ident() not in {ident for _, ident in ran}
    wait_until(
        lambda: "remotely-tasks" not in {each.name for each in threading.enumerate()}, "its end"
    )


def test_a_task_after_the_end_of_the_thread_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_thread, "LEAVE_AFTER_S", 0.0)
    thread, ran = TaskThread("tasks"), list[int]()
    for number in range(2000):  # some come as the thread is about to leave
        thread.call(partial(ran.append, number))
    wait_until(lambda: len(ran) == 2000, "all tasks")
    assert ran == [*range(2000)]


def test_a_task_that_fails_or_exits_does_not_keep_the_next_from_running() -> None:
    thread, ran = TaskThread("tasks"), list[int]()

    def fail(error: type[BaseException]) -> None:
        raise error

    for error in (ValueError, SystemExit, KeyboardInterrupt):
        thread.call(partial(fail, error))
    thread.call(lambda: ran.append(1))
    thread.finish(within_s=20)
    assert ran == [1]


def test_a_blocked_task_does_not_hold_up_the_end_of_its_thread() -> None:
    thread, blocked, may_end = TaskThread("blocked"), threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        may_end.wait()

    thread.call(block)
    blocked.wait()
    thread.finish(within_s=0.1)
    may_end.set()
    wait_until(lambda: "remotely-blocked" not in {t.name for t in threading.enumerate()}, "its end")


def test_a_task_is_not_lost_wherever_an_interrupt_strikes() -> None:
    for n in count(1):
        thread, ran = TaskThread("tasks"), set[int]()
        with (
            suppress(KeyboardInterrupt),
            struck_after(n, signal.SIGINT, remotely.machine.task_thread) as has_struck,
        ):
            thread.call(partial(ran.add, 1))
        if has_struck:
            thread.call(partial(ran.add, 1))  # as the loop does after an interrupt
        thread.finish(within_s=20)
        assert ran == {1}
        if not has_struck:
            break
    assert n > 1


def test_a_forked_child_has_its_own_thread() -> None:
    thread, may_end = TaskThread("tasks"), threading.Event()
    thread.call(may_end.wait)
    if (child := os.fork()) == 0:
        thread.forget()
        ran: list[int] = []
        thread.call(lambda: ran.append(1))
        thread.finish(within_s=20)
        os._exit(0 if ran == [1] else 1)
    may_end.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.finish(within_s=20)
