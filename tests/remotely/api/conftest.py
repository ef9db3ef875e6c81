"""Fixtures for the engines on which the objects of these tests live."""

from collections.abc import Iterator

import pytest

import remotely
from remotely.api import connection
from remotely.calling.engine import CallEngine
from remotely.engines.in_process import InProcess
from tests.clusters import Traces, wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[object]:
    """One embedded cluster for all tests of a module; each test drops its actors."""
    before = Traces()
    remotely.connect(cpus=32)
    yield connection.current()
    remotely.shutdown()
    wait_until(lambda: not Traces().left_since(before), f"gone: {Traces().left_since(before)}")


@pytest.fixture
def on_cluster(shared: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_engine", shared)


@pytest.fixture
def home(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, home: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the engine on which the objects of a test live; return its name."""
    if home == "local":
        monkeypatch.setattr(connection, "_engine", CallEngine(InProcess()))
    else:
        request.getfixturevalue("on_ray" if home == "ray" else "on_cluster")
    return home
