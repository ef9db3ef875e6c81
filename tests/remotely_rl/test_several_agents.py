"""Training in games of several agents, with each algorithm."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remotely_rl
from remotely_rl import MultiAgent, a2c, algorithms, ppo
from remotely_rl.agents import evaluation
from tests.remotely_rl import toys
from tests.remotely_rl.agent_toys import Party, Roles
from tests.remotely_rl.space_toys import DISCRETE_TOO, FOR_BOXES

PARTY = MultiAgent(functools.partial(Party, "ab abc abC aBc ac AC"))
SMALL: dict[str, Any] = {
    "env": PARTY,
    "actors": 1,
    "envs_per_actor": 2,
    "random_start": 0,
    "total_steps": 300,
    "rollout_steps": 8,
    "learner_threads": 1,
    "log_interval_s": 0.0,
    "probe_steps": 8,
    "batch_rows": 48,
    "train_rows": 32,
}
REPLAYING = {"learn_from": 64, "batch_size": 32, "replay_rows": 1_000, "replay_ratio": 4.0}

pytestmark = pytest.mark.usefixtures("local", "no_curve")


def small(name: str, **more: Any) -> Any:
    Config = algorithms.named(name).Config
    known = {field.name for field in dataclasses.fields(Config)}
    given = {**SMALL, **REPLAYING, **more}
    if name in ("c51", "rainbow"):
        given["value_bound"] = 100.0
    return Config(**{key: value for key, value in given.items() if key in known})


@pytest.mark.parametrize(
    "name", [n for n in algorithms.ALGORITHMS if n not in FOR_BOXES or n in DISCRETE_TOO]
)
def test_every_algorithm_of_discrete_actions_learns_from_the_steps_of_present_agents(
    name: str, tmp_path: Path
) -> None:
    result = algorithms.named(name).train(small(name), run=tmp_path / "run")
    assert result.env_steps >= 300
    assert result.updates > 0
    # In a game: a 1 to 5, b 101 to 103, c 2 (it dies), then 4 and 5 (it is back).
    assert result.return_mean == pytest.approx(np.mean([15, 306, 11]))


def test_separate_agents_learn_to_act_differently_on_equal_observations(
    tmp_path: Path,
) -> None:
    config = ppo.Config(
        env=MultiAgent(Roles, separate=True),
        actors=1,
        envs_per_actor=16,
        batch_rows=384,
        total_steps=10_000,
        learner_threads=1,
        probe_steps=8,
        target=0.9,
    )
    result = ppo.train(config, run=tmp_path / "run")
    assert "is reached" in result.ended  # a shared policy would be right in a third of the games


def test_a_run_of_several_agents_is_resumed_to_the_bit(tmp_path: Path) -> None:
    config = small("a2c", anneal_steps=300)
    toys.assert_resumed_to_the_bit(a2c.train, config, (100, 300), tmp_path)


def test_evaluation_counts_whole_games_and_agents_act_by_name(tmp_path: Path) -> None:
    ppo.train(small("ppo"), run=tmp_path / "run")
    found = evaluation.evaluate(tmp_path / "run", 3, greedy=True, env=PARTY, envs=2)
    assert len(found.scores) == 3
    assert found.mean == pytest.approx(np.mean([15, 306, 11]))
    assert found.lengths == [5, 5, 5]
    agent = remotely_rl.load(tmp_path / "run", env=PARTY)
    game = Party("abc ABC")
    obs, _ = game.reset()
    assert {int(agent.act(obs[name])) for name in game.agents} <= {0, 1, 2}
    assert agent.act(np.stack(list(obs.values()))).shape == (3,)


def test_a_separate_agent_acts_by_its_index(tmp_path: Path) -> None:
    agent = separate(tmp_path)
    obs = {"observation": np.zeros((3, 2), np.float32), "agent_index": np.arange(3)}
    assert agent.act(obs).shape == (3,)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_separate_agents_are_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert separate(tmp_path).export(tmp_path / "agent.onnx").exists()


def separate(folder: Path) -> remotely_rl.Agent:
    env = MultiAgent(Roles, separate=True)
    ppo.train(small("ppo", env=env), run=folder / "run")
    return remotely_rl.load(folder / "run", env=env)


def test_a_round_has_as_many_rows_as_agents_have_steps() -> None:
    config = ppo.Config(env=PARTY, actors=2, envs_per_actor=4, batch_rows=480)
    assert config.rows_per_actor == 12
    assert config.resolved("rollout_steps") == 20
    assert "480 rows" in config.remarks()[0]
