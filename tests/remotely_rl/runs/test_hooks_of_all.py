"""What a hook reads and changes, in every algorithm: the model, its version, the coefficients."""

from pathlib import Path
from typing import Any

import pytest
import torch

from remotely_rl import Hook, algorithms
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

pytestmark = pytest.mark.usefixtures("local", "no_curve")


def config_of(name: str, **more: Any) -> Any:
    algorithm = algorithms.named(name)
    given: dict[str, Any] = {
        "env": toys.Aim if name in FOR_BOXES else toys.Guess,
        "actors": 1,
        "envs_per_actor": 4,
        "rollout_steps": 8,
        "random_start": 0,
        "total_steps": 600,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
    }
    if hasattr(algorithm.Config, "replay_rows"):
        given |= {"learn_from": 32, "batch_size": 16, "replay_ratio": 1.0}
    if name == "ga3c":
        given |= {"train_rows": 32}
    return algorithm.Config(**given | more)


def parameters_of(model: Any) -> torch.Tensor:
    return torch.cat([part.detach().flatten().cpu().clone() for part in model.parameters()])


class Freezes(Hook):
    """Sets the learning rate to 0 halfway."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.seen: list[torch.Tensor] = []
        self.rates: list[float | None] = []

    def on_start(self, session: Any) -> None:
        self.first = parameters_of(session.model)

    def on_update(self, session: Any, metrics: Any) -> None:
        assert session.model is session.learner.model
        self.versions.append(session.learner.version)
        if session.env_steps >= 300:
            session.change(learning_rate=0.0, learning_rate_end=0.0)
            assert session.learner.config.learning_rate == 0.0
            self.seen.append(parameters_of(session.model))
            self.rates.append(metrics.get("train/learning_rate"))
        else:
            self.moved = not torch.equal(self.first, parameters_of(session.model))


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_a_hook_sees_the_model_that_is_trained_and_changes_its_updates(
    name: str, tmp_path: Path
) -> None:
    hook = Freezes()
    algorithms.named(name).train(config_of(name), run=tmp_path / "run", hooks=[hook])
    assert hook.versions[-1] > hook.versions[0] > 0
    assert hook.versions == sorted(hook.versions)
    assert hook.moved
    assert len(hook.seen) > 3
    assert torch.equal(hook.seen[-1], hook.seen[-2])  # updates had begun when it changed
    assert hook.rates[-1] in (0.0, None)


class Spies(Hook):
    """Changes a coefficient when the run starts."""

    def on_start(self, session: Any) -> None:
        session.change(value_coef=0.125)
        session.set_env_attr("length", 1)

    def on_update(self, session: Any, metrics: Any) -> None:
        assert session.learner.config.value_coef == 0.125
        assert session.learner.env_attributes.values == {"length": 1}


@pytest.mark.parametrize("name", ["a2c", "ppo", "impala", "appo", "ga3c", "a3c"])
def test_what_a_hook_changes_when_the_run_starts_is_kept(name: str, tmp_path: Path) -> None:
    config = config_of(name, env=toys.Counting, total_steps=100)
    algorithms.named(name).train(config, run=tmp_path / "run", hooks=[Spies()])


def test_workers_learn_with_the_coefficients_that_a_hook_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a3c = algorithms.named("a3c")
    seen: list[float] = []
    compute_losses = a3c.compute_losses

    def spy(policy: Any, value: Any, rows: Any, config: Any, *more: Any) -> Any:
        seen.append(config.value_coef)
        return compute_losses(policy, value, rows, config, *more)

    monkeypatch.setattr(a3c, "compute_losses", spy)

    class Changes(Hook):
        def on_update(self, session: Any, metrics: Any) -> None:
            if session.env_steps > 50:
                session.change(value_coef=0.125)

    a3c.train(config_of("a3c", total_steps=200), run=tmp_path / "run", hooks=[Changes()])
    assert (seen[0], seen[-1]) == (0.5, 0.125)


def test_the_rate_of_a_rule_that_has_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be changed: asynchronous:rate"):
        algorithms.named("a3c").train(
            config_of("a3c", sync="asynchronous:rate=0.01"), run=tmp_path / "run", hooks=[Freezes()]
        )
