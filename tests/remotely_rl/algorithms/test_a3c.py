"""A3C: learning under each kind of sync rule, and repeated synchronous runs."""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import a3c
from tests.clusters import wait_until
from tests.remotely_rl import toys

pytestmark = pytest.mark.usefixtures("no_curve")

CONFIG = a3c.Config(
    env=toys.Guess,
    actors=3,
    envs_per_actor=4,
    rollout_steps=6,
    random_start=0,
    optimizer="adam",
    learning_rate=0.01,
    learning_rate_end=0.01,
    log_interval_s=1e6,
    checkpoint_interval_s=1e6,
    target=0.95,
    total_steps=30_000,
)
# Each kind of push, wait and optimizer; clipped losses in epochs; an LSTM.
LEARNT: list[dict[str, Any]] = [
    {"sync": "synchronous"},
    {"sync": "semi_async:n=2"},
    {"sync": "fasgd"},
    {"sync": "elastic_averaging"},
    {"sync": "diloco:steps=4,outer_rate=1"},
    {"epochs": 2, "minibatches": 2, "clip_range": 0.2, "accumulate": 2},
    {"env": toys.Remember, "lstm": 8, "target": 0.9},
]


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("changes", LEARNT, ids=lambda changes: next(iter(changes.values())))
def test_small_problems_are_learnt_in_seconds(changes: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    assert "is reached" in a3c.train(config, run=tmp_path / "run").ended


class Together(toys.Guess):
    """Waits, after a worker's first contribution, until each worker has made one at version 0."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.left = CONFIG.rollout_steps

    def step(self, action: int) -> Any:
        if self.left == 0:
            (self.folder / str(os.getpid())).touch()
            wait_until(
                lambda: len(os.listdir(self.folder)) >= CONFIG.actors, "all have contributed"
            )
        self.left -= 1
        return super().step(action)


@pytest.mark.usefixtures("here")
def test_workers_in_processes_learn_and_synchronous_ones_repeat_a_run(tmp_path: Path) -> None:
    (tmp_path / "together").mkdir()
    free = dataclasses.replace(
        CONFIG,
        env=functools.partial(Together, tmp_path / "together"),
        probe_steps=CONFIG.rollout_steps,  # the probe is a single process
    )
    assert "is reached" in a3c.train(free, run=tmp_path / "free").ended
    assert toys.staleness(tmp_path / "free") >= 1

    for name in ("one", "same"):
        config = dataclasses.replace(CONFIG, sync="synchronous", target=None, total_steps=400)
        a3c.train(config, run=tmp_path / name)
        assert toys.staleness(tmp_path / name) == 0
    toys.assert_same_bits(tmp_path / "one", tmp_path / "same")


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(("word", "says"), [("sasgd:rate=0.1", True), ("sasgd", False)])
def test_a_rule_with_its_own_rate_warns_that_the_learning_rate_is_unused(
    word: str, says: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a3c.train(dataclasses.replace(CONFIG, sync=word, total_steps=50), run=tmp_path / "run")

    out = " ".join(capsys.readouterr().out.split())
    assert ("learning_rate_end and optimizer are not used" in out) == says
