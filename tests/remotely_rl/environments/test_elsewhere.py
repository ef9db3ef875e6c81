"""Environments in another interpreter than their actor's."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import remotely
from remotely_rl import a2c, environments
from remotely_rl.environments.elsewhere import Interpreter
from remotely_rl.environments.goals import judge_of
from remotely_rl.errors import TrainingError
from remotely_rl.runs import training
from remotely_rl.supervision import Cause, CrashReport
from tests.remotely_rl import toys
from tests.remotely_rl.environments.test_goals import OneByOne

ROOT = Path(__file__).resolve().parents[3]
ONLY_THERE = """
import os
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class There(CartPoleEnv):
    def __init__(self):
        assert os.environ["SIMULATORS"] == "here"
        super().__init__()

class Fails(There):
    def step(self, action):
        raise ValueError("not this one")

gymnasium.register("There-v0", There, max_episode_steps=9)
gymnasium.register("Fails-v0", Fails)
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """An interpreter that has a module which this one lacks, and a cluster of this process."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "only_there.py").write_text(ONLY_THERE)
    python = folder / "python"
    path = f"{folder}{os.pathsep}{ROOT}"
    python.write_text(
        f'#!/bin/sh\nSIMULATORS=here PYTHONPATH="{path}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    remotely.connect(cpus=2)
    yield Interpreter(str(python))
    remotely.shutdown()


def played(envs: environments.Environments, steps: int) -> list[Any]:
    """Play at random; return each row."""
    with closing(envs):
        rows: list[Any] = [envs.reset(5)]
        random = np.random.default_rng(1)
        for _ in range(steps):
            step = envs.step(random.integers(2, size=envs.num_envs))
            rows.append((step.obs, step.reward, step.terminated, step.truncated, step.valid))
        return rows


def test_the_rows_are_those_of_the_actors_own_python(theirs: Interpreter) -> None:
    ours = played(environments.make("CartPole-v1", 3, kwargs={"max_episode_steps": 12}), 40)
    there = environments.make(
        "CartPole-v1", 3, kwargs={"max_episode_steps": 12}, interpreter=theirs
    )
    for one, other in zip(ours, played(there, 40), strict=True):
        for mine, their in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, their)


def test_an_id_may_be_known_there_alone(theirs: Interpreter) -> None:
    rows = played(environments.make("only_there:There-v0", 2, interpreter=theirs), 20)
    assert np.asarray([row[3] for row in rows[1:]]).any()


def test_those_of_a_run_and_of_its_evaluations_are_there(theirs: Interpreter) -> None:
    config = a2c.Config(env="only_there:There-v0", env_python=theirs.python, evaluate_every=100)
    config.check_run()  # this Python does not know the id
    for each in (config, config.of_evaluations()):
        with closing(each.make_environments(1)) as envs:
            assert envs.reset(1).shape == (1, 4)


def test_crashes_there_are_reported_in_the_actor(theirs: Interpreter) -> None:
    with closing(environments.make("only_there:Fails-v0", 2, interpreter=theirs)) as envs:
        envs.reset(1)
        assert not envs.step(np.zeros(2, np.int64)).valid.any()
        reports = envs.pop_crashes()
        assert [report.env for report in reports] == [0, 1]
        assert all("ValueError: not this one" in report.what for report in reports)
        assert not envs.pop_crashes()


def test_wrappers_and_arguments_are_applied_there(theirs: Interpreter) -> None:
    envs = environments.make(
        "CartPole-v1",
        2,
        wrappers=[gymnasium.wrappers.TimeAwareObservation],
        kwargs={"max_episode_steps": 3},
        interpreter=theirs,
    )
    rows = played(envs, 3)
    assert rows[0].shape == (2, 5)
    assert rows[3][3].all()


def test_wrappers_there_keep_no_statistics_either(theirs: Interpreter) -> None:
    wrapper: Any = gymnasium.wrappers.NormalizeObservation
    with pytest.raises(TrainingError, match="NormalizeObservation keeps running statistics"):
        environments.make("CartPole-v1", 1, wrappers=[wrapper], interpreter=theirs)


class AsksWhere(OneByOne):
    """Rewards goals in the other Python alone, and dies of the first that it is asked for.

    It must have been reset before.
    """

    def __init__(self, folder: Path):
        super().__init__(3)
        self.folder = folder

    def reset(self, **kwargs: Any) -> Any:
        self.factor = 1
        return super().reset(**kwargs)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        assert os.environ["SIMULATORS"] == "here"
        if not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os._exit(3)
        return self.factor * super().compute_reward(achieved_goal, desired_goal, info)


def test_goals_are_judged_there_even_if_that_process_dies(
    theirs: Interpreter, tmp_path: Path
) -> None:
    crashes: list[CrashReport] = []
    kwargs = {"folder": tmp_path}
    with closing(environments.make(AsksWhere, 1, kwargs=kwargs, interpreter=theirs)) as envs:
        judge = judge_of(envs, crashes.append)
        bits = np.array([[0, 1, 1], [1, 1, 1]], np.float32)
        for _ in range(2):
            assert judge(bits, np.ones_like(bits)).reward.tolist() == [-1, 0]
    assert [(report.cause, report.env, report.actor) for report in crashes] == [
        (Cause.DIED, None, None)
    ]


def of_no_kind() -> Any:
    return object()


def test_a_maker_of_something_else_is_told_the_same_there(theirs: Interpreter) -> None:
    told = set()
    for interpreter in (Interpreter(), theirs):
        with pytest.raises(TrainingError, match="of_no_kind returned a object") as refused:
            environments.make(of_no_kind, 1, interpreter=interpreter)
        told.add(str(refused.value))
    assert len(told) == 1


def test_an_interpreter_that_does_not_exist_is_told_once_and_not_tried_again(
    theirs: Interpreter,
) -> None:
    config = a2c.Config(env="CartPole-v1", env_python="/no/such/python")
    with pytest.raises(TrainingError) as refused:
        training.probe(config)
    assert str(refused.value).startswith("env_python: the actor cannot be started:")


def test_a_run_is_refused_before_it_starts_a_cluster_that_would_have_no_such_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "hardware_of", pytest.fail)
    config = a2c.Config(env="CartPole-v1", env_python="/no/such/python")
    with pytest.raises(TrainingError, match="there is no interpreter '/no/such/python'"):
        a2c.train(config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "ALE/Pong-v5"}, "ALE/Pong-v5 steps as one in its actor"),
        ({"env": toys.counting_vector}, "counting_vector steps as one"),
        ({"env": toys.Counting, "resets": "in_pause"}, "cannot wait there for the pause"),
        ({"env": toys.Counting, "frame_stack": 2}, "frame_stack cannot reach"),
        ({"env": toys.Counting, "env_packages": "six"}, "env_packages='six' must be a list"),
        ({"env": toys.Counting, "env_packages": [6]}, "env_packages has 6, which is no"),
        ({"env": toys.Counting, "env_python": ""}, "env_python is an empty text"),
    ],
)
def test_what_cannot_be_in_another_python_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        _ = a2c.Config(**{"env_python": sys.executable, **settings}).plan
