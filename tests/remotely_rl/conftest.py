"""A cluster that is none, for what needs no processes; one thread for what is small."""

from collections.abc import Iterator

import pytest
import torch

import remotely
from remotely_rl.runs import curve


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Networks of toys: two threads of torch would wait for each other longer than compute."""
    torch.set_num_threads(1)


@pytest.fixture
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs leave an empty picture: to draw one takes longer than to train for a hundred steps."""
    monkeypatch.setattr(curve, "draw", lambda csv, png, title: png.touch())


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every remote object lives in the test's own process, and every call runs at once."""
    remotely.shutdown()
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    yield
    remotely.shutdown()


@pytest.fixture
def own_cluster(nothing_left: None) -> Iterator[None]:
    """The cluster that a test, or a run in it, starts for itself ends with the test."""
    yield
    remotely.shutdown()
