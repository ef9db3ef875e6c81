"""A step that does not return ends its process, with word of where it hangs."""

import subprocess
import sys
import threading
import time

import pytest

from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.watchdog import Watchdog
from tests.clusters import wait_until


def watch(record: FlightRecord, limit_s: float, ended: threading.Event) -> Watchdog:
    return Watchdog(record, limit_s, ended.set, has_switch=False)


def test_a_step_past_its_limit_is_ended_and_its_stack_is_in_the_record() -> None:
    record, ended = FlightRecord(1), threading.Event()

    def step_that_hangs() -> None:
        record.begin(threading.get_ident())
        ended.wait(20)

    stuck = threading.Thread(target=step_that_hangs)
    stuck.start()
    watchdog = watch(record, 0.05, ended)
    stuck.join()
    assert ended.is_set()
    assert record.stack_of_hang is not None
    assert "in step_that_hangs" in record.stack_of_hang
    assert record.limit_s == 0.05
    watchdog.close()


def test_neither_many_short_steps_nor_a_long_time_between_two_is_a_hang() -> None:
    record, ended = FlightRecord(2), threading.Event()
    watchdog = watch(record, 0.2, ended)
    until = time.monotonic() + 0.5
    record.begin(threading.get_ident())
    while time.monotonic() < until:  # one step of all, of many environments
        record.began[1] = time.monotonic()
    record.end()
    assert not ended.wait(0.5)
    record.begin(threading.get_ident())
    wait_until(ended.is_set, "the hang is noticed")
    watchdog.close()


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
    time.sleep(0.1)  # the watchdog's thread runs, and does not wind it up
    ctypes.PyDLL(None).sleep(1)
print("it may take as long as it likes", flush=True)
ctypes.PyDLL(None).sleep(60)
"""


def test_what_is_no_step_may_hold_the_gil_but_a_step_after_it_may_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_STEP], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "it may take as long as it likes\n"
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (")


@pytest.mark.parametrize("after_s", ["0", "0.6"])
def test_a_step_that_holds_the_gil_is_ended_by_the_dead_mans_switch(after_s: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_THE_GIL, after_s],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (")
    assert "in hangs" in done.stderr
