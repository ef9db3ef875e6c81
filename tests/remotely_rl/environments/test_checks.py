"""The check of an environment before a run: its errors and warnings."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import remotely_rl
from remotely_rl import a2c
from remotely_rl.errors import TrainingError
from remotely_rl.runs import training
from remotely_rl.runs.training import begin
from tests.remotely_rl import space_toys, toys


class FourValues(toys.Guess):
    def step(self, action: int) -> Any:
        obs, reward, done, _, info = super().step(action)
        return obs, reward, done, info


class Wide(toys.Guess):
    def step(self, action: int) -> Any:
        return np.zeros(3, np.float32), *super().step(action)[1:]


class ShortMask(space_toys.Masked):
    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask[:5]}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (FourValues, r"environment 0 .* in step 1, .*`step` returned a tuple of 4: it must return"),
        (Wide, r"returned an observation .* in step 1, .* has shape \(3,\); its space has \(2,\)"),
        (ShortMask, r"has an action_mask of shape \(5,\); its actions need 8 numbers"),
        (lambda: toys.Blank(spaces.Text(5)), "observation space is Text"),
        (toys.Poisoned, "crash too often .* the reward is nan"),
        ("CartPole-v7", "no environment is called"),
    ],
)
def test_an_environment_unfit_for_training_is_rejected_with_a_hint(env: Any, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        remotely_rl.check(env, steps=20)


class Beyond(toys.Guess):
    """An environment whose first observation is outside its space."""

    observation_space = spaces.Dict({"x": spaces.Box(-1, 1, (2, 2), np.float64)})  # type: ignore[assignment]

    def _obs(self) -> Any:
        return {"x": np.array([[0, 1.5], [0, 0]])}


def test_a_value_outside_its_box_is_reported_once_with_its_index_and_bounds() -> None:
    (odd,) = remotely_rl.check(Beyond, steps=9)
    assert odd.startswith("the observation['x'] has 1.5 at [0, 1]; its space has -1.0 to 1.0: ")


@pytest.mark.usefixtures("local")
def test_a_run_prints_the_warnings_at_its_start(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a2c.Config(env=Beyond, probe_steps=2)
    with begin("a2c", a2c.Config, config, run=tmp_path / "run"):
        pass
    assert capsys.readouterr().out.count("has 1.5 at [0, 1]; its space has -1.0 to 1.0") == 1


@pytest.mark.parametrize(
    "env", ["CartPole-v1", toys.Guess, toys.Guess(), toys.counting_vector, space_toys.Masked]
)
def test_a_correct_environment_has_no_warnings(env: Any) -> None:
    assert remotely_rl.check(env, steps=20) == []


class Steps(toys.Guess):
    taken = 0

    def step(self, action: int) -> Any:
        type(self).taken += 1
        return super().step(action)


@pytest.mark.usefixtures("local")
def test_a_run_checks_with_probe_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "taken", 0)
    seen = training.probe(a2c.Config(env=Steps, probe_steps=10))
    assert len(seen.obs) == 5
    assert Steps.taken in range(4, 6)  # episodes of one step: every other row resets
    with pytest.raises(TrainingError, match="probe_steps must be at least 2, not 1"):
        a2c.Config(probe_steps=1)


def test_check_closes_only_what_it_has_made() -> None:
    closed: list[bool] = []

    class Closes(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(True)

    remotely_rl.check(Closes(toys.Guess()), steps=2)
    assert closed == []
    remotely_rl.check(lambda: Closes(toys.Guess()), steps=2)
    assert closed == [True]
