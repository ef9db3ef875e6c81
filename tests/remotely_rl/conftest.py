"""Fixtures: a cluster in one process, one thread of torch, and no curves."""

from collections.abc import Iterator

import pytest
import torch

import remotely
from remotely_rl.runs import curve


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread of torch: small networks are slower with two."""
    torch.set_num_threads(1)


@pytest.fixture
def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a run's curve with an empty image: drawing takes longer than the test's training."""
    monkeypatch.setattr(curve, "draw", lambda csv, png, title: png.touch())


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep every remote object in the test's own process; calls run immediately."""
    remotely.shutdown()
    monkeypatch.setenv("REMOTELY_LOCAL", "1")
    yield
    remotely.shutdown()


@pytest.fixture
def own_cluster(nothing_left: None) -> Iterator[None]:
    """End the cluster that a test or its run starts."""
    yield
    remotely.shutdown()
