"""Signals in a shielded section are handled once, after it; none leaves a lock held."""

import asyncio
import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import remotely.machine.shield
from remotely.machine.shield import Condition, RLock, shield
from tests.striking import struck_after


def is_outside() -> bool:
    """Return whether no section is open: handlers run at once, and in a new section at its end."""
    seen: list[str] = []
    before = signal.signal(signal.SIGHUP, lambda *_: seen.append("handled"))
    try:
        signal.raise_signal(signal.SIGHUP)
        seen.append("then")
        with shield:
            signal.raise_signal(signal.SIGHUP)
            seen.append("inside")
        return seen == ["handled", "then", "inside", "handled"]
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_is_handled_at_the_end_of_the_section() -> None:
    seen: list[tuple[int, bool]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append((number, frame is not None))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with shield:
            signal.raise_signal(signal.SIGUSR1)
            assert not seen
        assert seen == [(signal.SIGUSR1, True)]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_raises_does_so_at_the_end_of_the_section() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), shield:  # noqa: PT012 - what is after the signal is the test
        signal.raise_signal(signal.SIGINT)
        done.append("the section")
    assert done == ["the section"]


def test_asyncio_runs_its_handler_once() -> None:
    """Python writes to the descriptor of asyncio when the signal arrives."""

    async def run() -> int:
        seen: list[int] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, seen.append, 1)
        with shield:
            signal.raise_signal(signal.SIGUSR1)
        handled = loop.create_future()
        loop.add_signal_handler(signal.SIGUSR2, handled.set_result, None)
        signal.raise_signal(signal.SIGUSR2)  # asyncio has read all earlier bytes when it handles it
        await handled
        loop.remove_signal_handler(signal.SIGUSR1)
        loop.remove_signal_handler(signal.SIGUSR2)
        return len(seen)

    assert asyncio.run(run()) == 1


def test_a_handler_that_raises_at_any_instruction_leaves_all_handlers_in_place() -> None:
    handled: list[int] = []

    class Interrupted(Exception):
        """Raised by the handlers."""

    def interrupt(number: int, _: FrameType | None) -> None:
        handled.append(number)
        raise Interrupted

    numbers = (signal.SIGUSR1, signal.SIGUSR2)  # in the order in which they are delayed
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        for number in numbers:
            for n in itertools.count(1):
                handled.clear()
                with (
                    contextlib.suppress(Interrupted),
                    struck_after(n, number, remotely.machine.shield) as has_struck,
                    shield,
                ):
                    signal.raise_signal(signal.SIGUSR1)
                assert [signal.getsignal(one) for one in numbers] == [interrupt, interrupt]
                assert is_outside()
                if not has_struck:
                    break
                assert number in handled
            assert n > 10
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_child_forked_by_another_thread_is_in_no_section() -> None:
    left: list[int] = []

    def fork() -> None:
        if not (child := os.fork()):
            os._exit(not is_outside())
        left.append(os.waitpid(child, 0)[1])

    with shield:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert left == [0]


def test_a_child_forked_inside_a_section_ends_the_section() -> None:
    with shield:
        child = os.fork()
        seen = is_outside()
    if not child:
        os._exit(seen or not is_outside())
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("make", [RLock, Condition])
def test_an_interrupt_at_any_instruction_leaves_no_lock_held(make: Callable[[], Any]) -> None:
    lock, free = make(), []

    def take() -> None:
        free.append(lock.acquire(blocking=False))
        if free[-1]:
            lock.release()

    def use_until_interrupted() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 200e-6)  # a timer strikes at any instruction
        while True:
            with lock:
                pass

    before = signal.signal(signal.SIGVTALRM, signal.default_int_handler)
    try:
        for _ in range(20):
            with pytest.raises(KeyboardInterrupt):
                use_until_interrupted()
            other = threading.Thread(target=take)
            other.start()
            other.join()
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert free == [True] * 20
