"""What the loops of all algorithms have in common."""

import threading
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import algorithms
from remotely_rl.learning.inference_server import Server
from remotely_rl.learning.learner import LearningRate
from tests.remotely_rl import toys


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_a_run_goes_through_its_schedule(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[float] = []
    here = threading.current_thread()
    owner, method = (Server, "report") if name == "ga3c" else (LearningRate, "anneal")
    called = getattr(owner, method)

    def spy(its: Any, progress: float) -> Any:
        if threading.current_thread() is here:  # not a trainer of GA3C's that is at its last
            passed.append(progress)
        return called(its, progress)

    monkeypatch.setattr(owner, method, spy)
    algorithm = algorithms.named(name)
    given: dict[str, Any] = {
        "env": toys.Aim if name == "sac" else toys.Guess, "actors": 1, "envs_per_actor": 4,
        "rollout_steps": 8, "random_start": 0, "total_steps": 200, "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
    }  # fmt: skip
    if hasattr(algorithm.Config, "replay_rows"):
        given |= {"learn_from": 32, "batch_size": 16, "replay_ratio": 1.0}
    if hasattr(algorithm.Config, "target_kl"):
        given |= {"target_kl": 0.0}

    algorithm.train(algorithm.Config(**given), run=tmp_path / "run")

    assert passed == sorted(passed)
    assert 0 <= passed[0] < 0.3
    assert 0.7 < passed[-1] <= 1
