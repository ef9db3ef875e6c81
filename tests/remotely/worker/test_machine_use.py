"""What the kernel says that a machine uses."""

from pathlib import Path

import psutil

import remotely
from remotely.protocol.numbers import HISTORY_MINUTES
from remotely.worker.machine_use import MachineMeter


def test_a_machine_is_shown_as_the_kernel_sees_it(here: None) -> None:
    machine = remotely.status().machines[0]
    assert 0 <= machine.cpu_percent <= 100
    assert 0 < machine.memory_used < machine.memory_total <= psutil.virtual_memory().total
    assert 0 < machine.disk_used < machine.disk_total


def test_the_history_is_of_an_hour_at_most() -> None:
    meter = MachineMeter(Path("/"))
    for _ in range(HISTORY_MINUTES + 5):
        meter.keep_minute()
    use = meter.use()
    assert len(use.cpu_hour) == len(use.memory_hour) == HISTORY_MINUTES
    assert max(use.cpu_hour) <= 100
    assert 0 < max(use.memory_hour) <= 100
