"""Promises of the training loops of all algorithms."""

import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import algorithms
from remotely_rl.learning.inference_server import Server
from remotely_rl.learning.learner import LearningRate
from remotely_rl.runs import metrics
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

OF_POLICY = {"policy_loss", "value_loss", "entropy"}
OF_ROUNDS = {*OF_POLICY, "approx_kl", "explained_variance"}
OF_VALUES = {"value_loss", "q_mean", "td_error", "epsilon"}
# The learning metrics of each algorithm.
HAS = {
    "a2c": OF_ROUNDS,
    **{key: {*OF_ROUNDS, "clip_fraction"} for key in ("ppo", "impala", "appo", "ga3c")},
    "a3c": OF_POLICY,
    "sac": {*OF_POLICY, "td_error", "temperature"},
    "crossq": {*OF_POLICY, "td_error", "temperature"},
    "td3": {"policy_loss", "value_loss", "q_mean", "td_error"},
    "n_step_q": {"value_loss", "epsilon"},
    "pqn": {"value_loss", "explained_variance", "epsilon"},
    **dict.fromkeys(("dqn", "c51", "qr_dqn"), OF_VALUES),
    "rainbow": {*OF_VALUES - {"epsilon"}, "beta"},
}
OF_ALL = {"learning_rate", "grad_norm", "staleness_min", "staleness_mean", "staleness_max"}


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_a_run_follows_its_schedule_and_has_the_metrics_of_its_algorithm(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[float] = []
    here = threading.current_thread()
    owner, method = (Server, "report") if name == "ga3c" else (LearningRate, "anneal")
    called = getattr(owner, method)

    def spy(its: Any, progress: float) -> Any:
        if threading.current_thread() is here:  # not a trainer thread of GA3C
            passed.append(progress)
        return called(its, progress)

    monkeypatch.setattr(owner, method, spy)
    algorithm = algorithms.named(name)
    given: dict[str, Any] = {
        "env": toys.Aim if name in FOR_BOXES else toys.Tells,
        "actors": 1,
        "envs_per_actor": 4,
        "rollout_steps": 8,
        "random_start": 0,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
        "evaluate_every": 128,
        "evaluate_episodes": 2,
    }
    if hasattr(algorithm.Config, "replay_rows"):
        given |= {"learn_from": 32, "batch_size": 16, "replay_ratio": 1.0}
    if name == "ga3c":
        given |= {"train_rows": 32}

    config = algorithm.Config(**given, total_steps=128)
    algorithm.train(config, run=tmp_path / "run")
    first = len(passed)
    algorithm.train(dataclasses.replace(config, total_steps=256), resume=tmp_path / "run")

    for part, begins in ((passed[:first], 0.0), (passed[first:], 0.5)):
        assert part == sorted(part)
        assert begins <= part[0] < begins + 0.4
        assert 0.7 < part[-1] <= 1
    columns = {
        column
        for row in metrics.read(tmp_path / "run" / "metrics.csv")
        for column, number in row.items()
        if not math.isnan(number)
    }
    of_learning = {column[6:] for column in columns if column.startswith("train/")}
    assert of_learning - OF_ALL == HAS[name]
    assert "learning_rate" in of_learning
    of_episodes = {column for column in columns if column.startswith("episode/")}
    assert of_episodes == {"episode/reward" if name in FOR_BOXES else "episode/success"}
    assert "evaluation/return_mean" in columns
    assert ("rollout/replay_fill" in columns) == hasattr(algorithm.Config, "replay_rows")
