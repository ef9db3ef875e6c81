"""Machines on which the command `remotely` runs, and timeouts for a busy machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remotely.client import channel
from tests.clusters import DEADLINE_S, free_port
from tests.command import Machine, Running, machines_in


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait long enough for replies to cancellations on a busy machine."""
    monkeypatch.setattr(channel, "CANCEL_REPLY_S", DEADLINE_S)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Any]:
    with machines_in(tmp_path) as make:
        yield make


@pytest.fixture
def machine(machines: Any) -> Machine:
    made: Machine = machines("here")
    return made


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with machines_in(tmp_path_factory.mktemp("running")) as make:
        found = Running(make("first"), free_port())
        found.machine.does("start", "--port", found.port, "--cpus", 2)
        yield found
        assert len(found.machine.status(found.port)["machines"]) == 1
        found.machine.does("stop", "--port", found.port)


@pytest.fixture
def port() -> int:
    return free_port()
