"""Learning in every kind of space, with every algorithm; evaluation and resuming of it."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from remotely_rl import algorithms, ppo
from remotely_rl.agents import evaluation
from remotely_rl.errors import TrainingError
from tests.remotely_rl import space_toys
from tests.remotely_rl.space_toys import LSTM, ArmAndHand, MaskedChoices, MaskObserved, Toy

pytestmark = pytest.mark.usefixtures("local", "no_curve")

PAIRS = list(itertools.product(algorithms.ALGORITHMS, space_toys.TARGETS))


@pytest.mark.parametrize("name", ["ppo", "a3c", "ga3c", "dqn"])  # one for each way to sample
def test_an_algorithm_learns_a_task_that_needs_masks(name: str, tmp_path: Path) -> None:
    result = space_toys.train(name, MaskObserved, 1, tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.learning
@pytest.mark.parametrize(("name", "env"), [pair for pair in PAIRS if space_toys.takes(*pair)])
def test_every_algorithm_learns_in_every_kind_of_space(
    name: str, env: type[Toy], tmp_path: Path
) -> None:
    result = space_toys.train(name, env, 1, tmp_path / "run")
    assert "is reached" in result.ended, result


@pytest.mark.learning
@pytest.mark.parametrize(("name", "env"), [pair for pair in PAIRS if space_toys.takes(*pair, LSTM)])
def test_every_recurrent_algorithm_learns_in_every_kind_of_space(
    name: str, env: type[Toy], tmp_path: Path
) -> None:
    result = space_toys.train(name, env, 1, tmp_path / "run", LSTM)
    assert "is reached" in result.ended, result


@pytest.mark.parametrize(("env", "target"), [(MaskedChoices, 7.2), (ArmAndHand, 5.0)])
def test_a_trained_agent_is_evaluated_and_resumed_in_spaces_of_any_kind(
    env: type[Toy], target: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setitem(space_toys.TARGETS, env, target)
    first = space_toys.train("ppo", env, 1, run)
    played = evaluation.evaluate(run, episodes=16, greedy=True, env=env)
    assert played.mean > 0.9 * space_toys.TARGETS[env]

    again = ppo.train(
        ppo.Config(
            env=env,
            total_steps=first.env_steps + 500,
            **space_toys.SETTINGS,
            **space_toys.OF_ALGORITHM["ppo"],
        ),
        resume=run,
    )
    assert again.env_steps > first.env_steps
    assert again.updates > first.updates


class Late(space_toys.Masked):
    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**given)[0], {}


class Early(space_toys.Masked):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {}


class Stuck(space_toys.Masked):
    @property
    def mask(self) -> Any:
        return super().mask * (self.now != 3)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (Late, "had none in the first `reset`"),
        (Early, "in `reset` but none in `step`"),
        (Stuck, r"environment \d+ has no legal action"),
    ],
)
def test_a_mask_that_is_missing_or_empty_ends_the_run_and_is_named(
    env: type[Toy], said: str, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match=said):
        space_toys.train("ppo", env, 1, tmp_path / "run")
