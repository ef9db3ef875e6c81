"""A cluster that is none, for what needs no processes."""

from collections.abc import Iterator

import pytest

import remotely


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every remote object lives in the test's own process, and every call runs at once."""
    remotely.shutdown()
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    yield
    remotely.shutdown()
