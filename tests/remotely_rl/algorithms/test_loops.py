"""What the loops of all algorithms have in common."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import algorithms
from remotely_rl.learning.inference_server import Server
from remotely_rl.learning.learner import LearningRate
from tests.remotely_rl import toys

OF_DQN = ("c51", "rainbow")  # have its very loop


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize("name", [name for name in algorithms.ALGORITHMS if name not in OF_DQN])
def test_a_run_goes_through_its_schedule_and_on_with_it_when_it_is_resumed(
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
        "rollout_steps": 8, "random_start": 0, "log_interval_s": 1e6, "checkpoint_interval_s": 1e6,
    }  # fmt: skip
    if hasattr(algorithm.Config, "replay_rows"):
        given |= {"learn_from": 32, "batch_size": 16, "replay_ratio": 1.0}

    config = algorithm.Config(**given, total_steps=128)
    algorithm.train(config, run=tmp_path / "run")
    first = len(passed)
    algorithm.train(dataclasses.replace(config, total_steps=256), resume=tmp_path / "run")

    for part, begins in ((passed[:first], 0.0), (passed[first:], 0.5)):
        assert part == sorted(part)
        assert begins <= part[0] < begins + 0.4
        assert 0.7 < part[-1] <= 1
