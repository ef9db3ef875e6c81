"""What the kernel says that a machine uses."""

import shutil
from pathlib import Path

import psutil
import pytest

import remotely
from remotely.protocol.numbers import HISTORY_MINUTES
from remotely.worker.machine_use import MachineMeter


def test_a_machine_is_shown_as_the_kernel_sees_it(here: None) -> None:
    machine = remotely.status().machines[0]
    assert 0 <= machine.cpu_percent <= 100
    assert 0 < machine.memory_used < machine.memory_total <= psutil.virtual_memory().total
    assert 0 < machine.disk_used < machine.disk_total


def test_what_a_disk_keeps_for_others_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = shutil.disk_usage("/")._replace(total=252, used=41, free=61)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: disk)
    use = MachineMeter(Path("/")).use()
    assert (use.disk_used, use.disk_total) == (41, 41 + 61)


def test_the_history_is_of_an_hour_at_most() -> None:
    meter = MachineMeter(Path("/"))
    for _ in range(HISTORY_MINUTES + 5):
        meter.keep_minute()
    use = meter.use()
    assert len(use.cpu_hour) == len(use.memory_hour) == HISTORY_MINUTES
    assert max(use.cpu_hour) <= 100
    assert 0 < max(use.memory_hour) <= 100
