"""Tests of Watchdog: a hanging step ends its process, and its stack is recorded."""

import subprocess
import sys
import threading

import pytest

from remotely_rl.supervision import flight, watchdog
from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.watchdog import Watchdog
from tests.clusters import wait_until


class Clock:
    """A clock that a test sets, and that counts its reads."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.read = 0

    def monotonic(self) -> float:
        self.read += 1
        return self.now

    def wait_until_read(self) -> None:
        """Wait until the watchdog has read the current time and acted on it."""
        read = self.read
        wait_until(lambda: self.read > read + 1, "the watchdog has checked")


def watch(record: FlightRecord, limit_s: float, ended: threading.Event) -> Watchdog:
    return Watchdog(record, limit_s, ended.set, has_switch=False)


def test_a_step_past_its_limit_ends_the_process_and_is_recorded_with_its_stack() -> None:
    record, ended = FlightRecord(1), threading.Event()

    def step_that_hangs() -> None:
        record.begin(threading.get_ident())
        ended.wait(40)

    stuck = threading.Thread(target=step_that_hangs)
    stuck.start()
    watching = watch(record, 0.05, ended)
    stuck.join()
    assert ended.is_set()
    assert record.stack_of_hang is not None
    assert "in step_that_hangs" in record.stack_of_hang
    assert record.limit_s == 0.05
    watching.close()


def test_many_short_steps_and_long_pauses_between_steps_are_not_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(flight, "time", clock)
    monkeypatch.setattr(watchdog, "time", clock)
    record, ended = FlightRecord(2), threading.Event()
    watching = watch(record, 2.0, ended)
    record.begin(threading.get_ident())
    for _ in range(3):  # one step of several environments
        clock.now += 1.5
        record.began[1] = clock.now
        clock.wait_until_read()
    record.end()
    clock.now += 100.0
    record.begin(threading.get_ident())
    clock.wait_until_read()
    assert not ended.is_set()
    clock.now += 2.5
    wait_until(ended.is_set, "the hang is noticed")
    watching.close()


HOLDS_THE_GIL = """
import ctypes, os, sys, threading, time
from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.watchdog import Watchdog

record = FlightRecord(1)
Watchdog(record, 0.2)
time.sleep(float(sys.argv[1]))
def hangs():
    record.begin(threading.get_ident())
    ctypes.PyDLL(None).sleep(60)  # PyDLL keeps the GIL
hangs()
"""


NO_STEP = """
import ctypes, time
from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.watchdog import SWITCH, Watchdog

watchdog = Watchdog(FlightRecord(1), 0.2)
with SWITCH.paused(), SWITCH.paused():
    ctypes.PyDLL(None).sleep(1)
    time.sleep(0.1)  # the watchdog thread runs, and does not arm it
    ctypes.PyDLL(None).sleep(1)
print("no limit", flush=True)
ctypes.PyDLL(None).sleep(60)
"""


def test_paused_work_may_hold_the_gil_but_not_a_later_step() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_STEP], capture_output=True, text=True, timeout=40, check=False
    )
    assert done.stdout == "no limit\n"
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (")


@pytest.mark.parametrize("after_s", ["0", "0.6"])
def test_a_step_that_holds_the_gil_is_ended_by_the_switch(after_s: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_THE_GIL, after_s],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (")
    assert "in hangs" in done.stderr
