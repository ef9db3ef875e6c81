"""Learning with real actors."""

from pathlib import Path
from typing import Any

import pytest

from remotely_rl import algorithms
from remotely_rl.runs import metrics
from tests.remotely_rl import memory_toys
from tests.remotely_rl.space_toys import FOR_BOXES

IN_ROUNDS = ("a2c", "ppo", "pqn", "dqn", "c51", "qr_dqn", "rainbow", "sac", "td3", "crossq")


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_a_pole_is_balanced_or_a_pendulum(name: str, tmp_path: Path) -> None:
    algorithm = algorithms.named(name)
    env, target = ("Pendulum-v1", -200.0) if name in FOR_BOXES else ("CartPole-v1", 475.0)
    more: dict[str, Any] = {"value_bound": 100.0} if name in ("c51", "rainbow") else {}
    if name == "pqn":  # its defaults are for Atari games
        more = {"preset": "auto", "total_steps": 0}
    config = algorithm.Config(env=env, target=target, minutes=5.0, **more)
    result = algorithm.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended, result
    assert (tmp_path / "run" / "curve.png").exists()
    rows = metrics.read(tmp_path / "run" / "metrics.csv")
    stale = max(row["train/staleness_max"] for row in rows if row["train/staleness_max"] >= 0)
    assert (stale == 0) == (name in IN_ROUNDS)  # the others are off-policy


@pytest.mark.learning
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize(("name", "env", "seed"), memory_toys.RUNS)
def test_an_lstm_remembers_what_is_out_of_sight(
    name: str, env: Any, seed: int, tmp_path: Path
) -> None:
    # In one process, so a seed takes the same steps on any machine.
    result = memory_toys.train(name, env, seed, tmp_path / "run")
    assert "is reached" in result.ended, result
