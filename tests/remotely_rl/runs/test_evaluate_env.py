"""Another environment, or other arguments, for the evaluations of a run."""

import dataclasses
import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

import remotely_rl
from remotely_rl import TrainingError, a2c
from remotely_rl.runs import metrics, run_folder, training
from tests.remotely_rl import toys
from tests.remotely_rl.runs.sessions import TRAINED

pytestmark = pytest.mark.usefixtures("local", "no_curve")


class Paid(toys.Guess):
    """Pays the same for every action."""

    def __init__(self, pay: float = 1.0, more: float = 0.0):
        self.pay = pay + more

    def step(self, action: int) -> Any:
        obs, _, *row = super().step(action)
        return obs, self.pay, *row


class Larger(Paid):
    action_space = spaces.Discrete(5)


CONFIG = dataclasses.replace(
    TRAINED, env=Paid, env_kwargs={"pay": 2.0}, evaluate_every=40, evaluate_episodes=2
)


def evaluated(run: Path) -> set[float]:
    rows = metrics.read(run / "metrics.csv")
    return {one for row in rows if (one := row.get("evaluation/return_mean", -1.0)) > -1}


@pytest.mark.parametrize(
    ("more", "mean"),
    [
        ({}, 2.0),
        ({"evaluate_env_kwargs": {"more": 5.0}}, 7.0),  # besides those of the run
        ({"evaluate_env": Paid}, 1.0),  # without those of the run
        ({"evaluate_env": Paid, "evaluate_env_kwargs": {"more": 5.0}}, 6.0),
    ],
)
def test_evaluations_have_an_environment_of_their_own(
    more: dict[str, Any], mean: float, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = a2c.train(dataclasses.replace(CONFIG, **more), run=run)
    assert result.return_mean == 2.0
    assert evaluated(run) == {mean}
    kept = training.config_of(a2c.Config, "a2c", run)
    assert kept.evaluate_env is more.get("evaluate_env")
    assert kept.evaluate_env_kwargs == more.get("evaluate_env_kwargs", {})


def test_a_resumed_run_keeps_it_and_may_be_given_another(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = dataclasses.replace(CONFIG, evaluate_env=Paid, evaluate_env_kwargs={"pay": 3.0})
    a2c.train(config, run=run)
    given: dict[str, Any] = {"total_steps": 2 * config.total_steps}
    a2c.train(training.config_of(a2c.Config, "a2c", run, given), resume=run)
    assert evaluated(run) == {3.0}
    given = {"total_steps": 3 * config.total_steps, "evaluate_env_kwargs": {"more": 1.0}}
    a2c.train(training.config_of(a2c.Config, "a2c", run, given), resume=run)
    assert evaluated(run) == {3.0, 4.0}


def test_what_a_folder_cannot_keep_is_asked_for_when_the_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    a2c.train(dataclasses.replace(CONFIG, evaluate_env=lambda: Paid(9.0)), run=run)
    with pytest.raises(TrainingError, match=r"evaluate_env= or --evaluate-env FILE\.py:NAME"):
        training.config_of(a2c.Config, "a2c", run)
    remotely_rl.load(run)  # which needs none


def test_an_unknown_argument_is_refused_before_the_run(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, evaluate_env_kwargs={"pya": 3.0})
    with pytest.raises(TrainingError, match="takes no argument 'pya'"):
        a2c.train(config, run=tmp_path / "run")


def test_other_spaces_end_the_evaluations_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a2c.train(dataclasses.replace(CONFIG, evaluate_env=Larger), run=tmp_path / "run")
    said = capsys.readouterr().out
    assert "without evaluations: Larger has other spaces than the environment of training" in said


# --- an agent without its environment -------------------------------------------------------------


def moved(tmp_path: Path, **more: Any) -> Path:
    """Return a run whose folder does not name the file of its environment."""
    run = tmp_path / "run"
    a2c.train(dataclasses.replace(TRAINED, **more), run=run)
    text = run_folder.RunFolder(run).config.read_text()
    lines = [line for line in text.splitlines() if '"env_source"' not in line]
    run_folder.RunFolder(run).config.write_text("\n".join(lines))
    return run


def test_an_agent_acts_without_its_environment(tmp_path: Path) -> None:
    run = moved(tmp_path, env=Paid)
    agent = remotely_rl.load(run)
    with_env = remotely_rl.load(run, env=Paid)
    obs = [Paid().reset(seed=seed)[0] for seed in range(20)]
    assert [agent.act(one) for one in obs] == [with_env.act(one) for one in obs]
    assert "Paid" in repr(agent)


def test_what_needs_the_environment_says_which_is_missing(tmp_path: Path) -> None:
    agent = remotely_rl.load(moved(tmp_path, env=functools.partial(Paid, 3.0)))
    with pytest.raises(TrainingError, match=r"pass it with env= or --env FILE\.py:NAME"):
        agent.trained.environments(2)


def test_a_folder_without_spaces_is_loaded_with_the_environment(tmp_path: Path) -> None:
    run = tmp_path / "run"
    a2c.train(dataclasses.replace(TRAINED, env=Paid), run=run)
    again = shutil.copytree(run, tmp_path / "again")
    run_folder.RunFolder(again).spaces.unlink()
    obs = Paid().reset(seed=1)[0]
    assert remotely_rl.load(again).act(obs) == remotely_rl.load(run).act(obs)
