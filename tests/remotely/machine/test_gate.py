"""Nothing passes a gate after its end, and the end sees what has passed."""

import threading

import pytest

from remotely.errors import NotConnected
from remotely.machine.gate import Gate


def test_a_closed_gate_says_why() -> None:
    gate = Gate(lambda: NotConnected("it was shut down"))
    with gate:
        gate.check()
    assert gate.close()
    assert not gate.is_open
    with gate, pytest.raises(NotConnected, match="was shut down"):
        gate.check()


def test_a_gate_is_closed_once() -> None:
    gate = Gate()
    assert [gate.close() for _ in range(2)] == [True, False]


def test_the_first_end_may_say_why() -> None:
    gate = Gate()
    for why in ("the key was revoked", "it was shut down"):
        gate.close(lambda why=why: NotConnected(why))  # type: ignore[misc]
    with gate, pytest.raises(NotConnected, match="revoked"):
        gate.check()


def test_the_end_waits_for_the_thread_that_is_passing() -> None:
    gate, opened = Gate(), list[str]()
    inside, may_open, seen = threading.Event(), threading.Event(), list[list[str]]()

    def open_slowly() -> None:
        with gate:
            gate.check()
            inside.set()
            assert may_open.wait(40)
            opened.append("a channel")

    def end() -> None:
        with gate:
            gate.close()
            seen.append([*opened])

    threads = [threading.Thread(target=open_slowly), threading.Thread(target=end)]
    threads[0].start()
    assert inside.wait(40)
    threads[1].start()
    assert not seen
    may_open.set()
    for thread in threads:
        thread.join()
    assert seen == [["a channel"]]


def test_a_condition_may_use_it_as_its_lock() -> None:
    gate = Gate()
    changed = threading.Condition(gate)
    with gate, gate:
        assert not changed.wait(0.001)
        gate.close()
