"""The models with which a run may begin or continue: those whose outputs mean the same."""

from pathlib import Path
from typing import Any

import pytest

from remotely_rl import algorithms, dqn
from remotely_rl.environments import name_of
from remotely_rl.errors import TrainingError
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import run_folder, training
from tests.remotely_rl.space_toys import Masked

pytestmark = pytest.mark.usefixtures("local", "no_curve")


def config_of(name: str, **fields: Any) -> Any:
    return algorithms.named(name).Config(env=Masked, actors=1, envs_per_actor=2, **fields)


def saved(name: str, folder: Path, **fields: Any) -> Path:
    """Save a checkpoint of a new model of this algorithm."""
    config, path = config_of(name, **fields), folder / "checkpoint.pt"
    content = {
        "algorithm": name,
        "env": name_of(config.env),
        "outputs": config.outputs_are,
        "learner": training.make_learner(config).state(),
    }
    run_folder.save_checkpoint(path, content)
    return path


# With masks, the parameters of all of these models have the same names and shapes.
@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (("dqn", {}), ("ppo", {}), "dueling action values, for dqn, and ppo needs a policy$"),
        (("a2c", {}), ("dqn", {}), "a policy, for a2c, and dqn needs dueling action values$"),
        (("n_step_q", {}), ("a2c", {}), "dueling action values, for n_step_q, and a2c needs a p"),
        (("n_step_q", {}), ("n_step_q", {"dueling": False}), "and n_step_q needs action values$"),
        (("c51", {}), ("qr_dqn", {"quantiles": 51}), "over 51 returns, for c51, and qr_dqn needs"),
        (("sac", {}), ("ppo", {}), "a soft policy and its critics, for sac, and ppo needs a p"),
    ],
)
def test_a_model_whose_outputs_mean_something_else_is_refused_with_both_meanings(
    first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]], said: str, tmp_path: Path
) -> None:
    path = saved(first[0], tmp_path, **first[1])
    with pytest.raises(TrainingError, match=rf"^choose another run: {path} is .*{said}"):
        training.make_learner(config_of(second[0], **second[1]), kind=Learner, initial=path)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a2c", {}), ("impala", {})),
        (("dqn", {"atoms": 51}), ("c51", {})),
        (("dqn", {}), ("n_step_q", {})),
    ],
)
def test_a_model_of_another_algorithm_whose_outputs_mean_the_same_is_taken(
    first: tuple[str, dict[str, Any]], second: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    path = saved(first[0], tmp_path, **first[1])
    training.make_learner(config_of(second[0], **second[1]), kind=Learner, initial=path)


def test_a_run_is_not_resumed_with_outputs_that_mean_something_else(tmp_path: Path) -> None:
    config = config_of("dqn", total_steps=20, learn_from=8, rollout_steps=8, batch_size=8)
    dqn.train(config, run=tmp_path / "run")
    given = {"dueling": False, "total_steps": 40}
    other = training.config_of(dqn.Config, "dqn", tmp_path / "run", given)
    with pytest.raises(TrainingError, match=r"leave its settings as they are: .* needs action val"):
        dqn.train(other, resume=tmp_path / "run")
