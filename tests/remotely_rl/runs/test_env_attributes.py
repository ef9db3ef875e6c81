"""Attributes of environments set by hooks."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from remotely_rl import (
    Hook,
    MultiAgent,
    SelfPlay,
    TrainingError,
    a2c,
    a3c,
    algorithms,
    dqn,
    ga3c,
    ppo,
)
from remotely_rl.acting.actor import EnvAttributes, Parameters
from remotely_rl.environments import Episode
from tests.remotely_rl import toys
from tests.remotely_rl.agent_toys import Race, Roles
from tests.remotely_rl.runs.sessions import TRAINED
from tests.remotely_rl.space_toys import FOR_BOXES

pytestmark = pytest.mark.usefixtures("no_curve")


class Level(toys.Guess):
    """Reports its level when an episode ends, and raises now and then."""

    level = 1
    breaks = 0.02

    def step(self, action: int) -> Any:
        if self.np_random.random() < self.breaks:
            raise RuntimeError("no contact")
        *row, info = super().step(action)
        return *row, info | {"episode": {"level": self.level}}


class Whole(Level):
    breaks = 0.0


def side_by_side(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: TimeLimit(Whole(), 9)] * num_envs)


class Stages(Roles):
    """Games of several agents, with levels."""

    level = 1

    def step(self, actions: dict[str, int]) -> Any:
        *row, infos = super().step(actions)
        return *row, {agent: {"episode": {"level": self.level}} for agent in infos}


class Stadium(Race):
    """A game of two who take turns, with levels."""

    level = 1

    def last(self) -> Any:
        *row, is_over, cut, info = super().last()
        return *row, is_over, cut, info | ({"episode": {"level": self.level}} if is_over else {})


class Climbs(Hook):
    """Sets level 3 and later 5; records the levels of the episodes of each update."""

    def __init__(self) -> None:
        self.seen: list[set[float]] = []

    def on_start(self, session: Any) -> None:
        session.set_env_attr("level", 3)

    def on_update(self, session: Any, metrics: Any) -> None:
        recent = list(session.tally.recent)[-8:]
        self.seen.append({episode.metrics["level"] for episode in recent})
        if session.progress > 0.5 and 5 not in session.learner.env_attributes.values.values():
            session.set_env_attr("level", 5)


RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a2c": (a2c, {}),
    "a vector": (a2c, {"env": side_by_side}),
    "several agents": (a2c, {"env": MultiAgent(Stages)}),
    "self-play": (a2c, {"env": SelfPlay(Stadium)}),
    "a3c": (a3c, {}),
    "ga3c": (ga3c, {"train_rows": 16}),
}


def climbs(algorithm: Any, folder: Path, **changes: Any) -> list[set[float]]:
    given = {
        "env": Level,
        "actors": 1,
        "envs_per_actor": 4,
        "rollout_steps": 4,
        "total_steps": 200,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
        "random_start": 0,
        "learner_threads": 1,
    } | changes
    known = {field.name for field in dataclasses.fields(algorithm.Config)}
    hook = Climbs()
    config = algorithm.Config(**{name: given[name] for name in given.keys() & known})
    algorithm.train(config, run=folder / "run", hooks=[hook])
    return hook.seen


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", RUNS)
def test_an_attribute_is_set_in_all_environments_from_the_next_rollout_on(
    name: str, tmp_path: Path
) -> None:
    algorithm, changes = RUNS[name]
    seen = climbs(algorithm, tmp_path, **changes)
    assert seen[0] == {3}
    assert seen[-1] == {5}


class Aims(toys.Aim):
    level = 1

    def step(self, action: Any) -> Any:
        *row, info = super().step(action)
        return *row, info | {"episode": {"level": self.level}}


class ClimbsEarly(Hook):
    """Sets level 3 at the second rollout; records the levels of the episodes of each rollout."""

    def __init__(self) -> None:
        self.seen: list[set[float]] = []

    def on_rollout(self, session: Any, rollouts: Any) -> None:
        self.seen += [{episode.metrics["level"] for episode in one.episodes} for one in rollouts]
        if len(self.seen) == 2:
            session.set_env_attr("level", 3)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    "name",
    [
        "dqn",
        "c51",
        "qr_dqn",
        "rainbow",
        "sac",
        "td3",
        "crossq",
        "impala",
        "appo",
        "a2c",
        "ppo",
        "pqn",
    ],
)
def test_an_attribute_is_set_before_the_first_update_too(name: str, tmp_path: Path) -> None:
    algorithm, hook = algorithms.named(name), ClimbsEarly()
    given: dict[str, Any] = {
        "env": Aims if name in FOR_BOXES else Whole,
        "actors": 1,
        "envs_per_actor": 2,
        "rollout_steps": 4,
        "random_start": 0,
        "total_steps": 80,
    }
    if hasattr(algorithm.Config, "replay_rows"):
        given |= {"learn_from": 1_000, "replay_rows": 2_000}
    if name in ("impala", "appo"):
        given |= {"batch_trajectories": 100}
    algorithm.train(algorithm.Config(**given), run=tmp_path / "run", hooks=[hook])
    assert hook.seen[:2] == [{1}, {1}]
    assert len(hook.seen) > 5
    assert set().union(*hook.seen[4:]) == {3}  # one rollout was sampled meanwhile


@pytest.mark.usefixtures("local")
def test_epsilon_falls_while_a_replay_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def epsilons_at(its: Any, env_steps: int) -> torch.Tensor:
        seen.append(env_steps)
        return torch.ones(2)

    monkeypatch.setattr(dqn.Config, "epsilons_at", epsilons_at)
    config = dqn.Config(
        env=Whole, actors=1, envs_per_actor=2, rollout_steps=4, total_steps=40, learn_from=1_000
    )
    dqn.train(config, run=tmp_path / "run")
    assert len(set(seen)) > 4


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("env", [Level, side_by_side, MultiAgent(Stages)])
def test_an_attribute_is_set_with_central_sampling_too(env: Any, tmp_path: Path) -> None:
    changes = {
        "env": env,
        "actors": 2,
        "sampling": "alternating",
        "device": "cpu",
        "batch_rows": 64,
    }
    seen = climbs(ppo, tmp_path, **changes)
    assert seen[0] == {3}
    assert seen[-1] == {5}


def test_a_replacement_actor_sets_the_attributes_too() -> None:
    actor = toys.actor(dataclasses.replace(TRAINED, env=Whole), toys.network())
    state = {name: tensor.numpy() for name, tensor in actor.model.state_dict().items()}
    actor.set_param(Parameters(9, state, 0, EnvAttributes(4, {"level": 7, "breaks": 0.0})))
    episodes: list[Episode] = actor.sample().episodes
    assert {episode.metrics["level"] for episode in episodes} == {7}
    actor.close()


class Counts(Whole):
    """Counts its steps in the attribute that was set."""

    counted: Any = None

    def step(self, action: int) -> Any:
        if self.counted is not None:
            self.counted["steps"] += 1
            self.level = self.counted["steps"]
        return super().step(action)


class CountsFromZero(Hook):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_start(self, session: Any) -> None:
        counted = {"steps": 0}
        session.set_env_attr("counted", counted)
        counted["steps"] = 1_000

    def on_end(self, session: Any, result: Any) -> None:
        self.seen += [episode.metrics["level"] for episode in session.tally.recent]


@pytest.mark.usefixtures("local")
def test_each_environment_has_its_own_copy_of_the_value_as_set(tmp_path: Path) -> None:
    hook = CountsFromZero()
    config = dataclasses.replace(TRAINED, env=Counts, envs_per_actor=2, total_steps=8)
    a2c.train(config, run=tmp_path / "run", hooks=[hook])
    assert max(hook.seen) == len(hook.seen) / 2  # an episode is one step


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("env", [Whole, side_by_side])
def test_an_unknown_attribute_is_named(env: Any, tmp_path: Path) -> None:
    class Mistypes(Hook):
        def on_update(self, session: Any, metrics: Any) -> None:
            session.set_env_attr("levle", 3)

    config = dataclasses.replace(TRAINED, env=env)
    with pytest.raises(TrainingError, match="the environments have no attribute 'levle' that can"):
        a2c.train(config, run=tmp_path / "run", hooks=[Mistypes()])


@pytest.mark.usefixtures("own_cluster")
def test_several_learners_reject_attributes_even_in_on_start(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINED, env=Whole, learners=2, device="cpu")
    with pytest.raises(
        TrainingError, match="attributes of environments cannot be changed in a run"
    ):
        a2c.train(config, run=tmp_path / "run", hooks=[Climbs()])
