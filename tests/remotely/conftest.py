"""Machines on which the command `remotely` is run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import free_port
from tests.command import Machine, machines_in


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Any]:
    with machines_in(tmp_path) as make:
        yield make


@pytest.fixture
def machine(machines: Any) -> Machine:
    made: Machine = machines("here")
    return made


@pytest.fixture
def port() -> int:
    return free_port()
