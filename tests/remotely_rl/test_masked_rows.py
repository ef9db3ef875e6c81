"""Rows that are no experience may hold anything: nothing that is learnt changes by a bit."""

import copy
import dataclasses
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from remotely_rl import algorithms
from remotely_rl.acting import actor
from remotely_rl.algorithms import ga3c
from remotely_rl.environments import MultiAgent
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.runs import metrics
from remotely_rl.runs.training import make_learner
from tests.remotely_rl import toys
from tests.remotely_rl.space_toys import FOR_BOXES

NAN = float("nan")
WITH_REPLAY = ("dqn", "c51", "qr_dqn", "rainbow", "sac", "td3", "crossq")


class Leaving:
    """A game of four agents: "d" never comes, "b" and "c" leave early; games end in turn by
    termination and truncation."""

    possible_agents = ["a", "b", "c", "d"]  # noqa: RUF012 - never modified
    metadata: dict[str, Any] = {"name": "leaving"}  # noqa: RUF012
    render_mode = None

    def __init__(self, actions: gymnasium.Space[Any]):
        self.actions, self.games = actions, 0

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-9, 9, (3,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self.actions

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.now, self.games = ["a", "b", "c"], 0, self.games + 1
        self.random = np.random.default_rng(seed)
        return self._obs(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.now += 1
        over = {agent: self.now >= (3 if agent in "bc" else 7) for agent in self.agents}
        obs = self._obs()
        reward = {agent: float(np.sum(actions[agent]) > 0.5) for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        never = dict.fromkeys(over, False)
        ends = (over, never) if self.games % 2 else (never, over)
        return obs, reward, *ends, {agent: {} for agent in over}

    def close(self) -> None: ...

    def _obs(self) -> dict[str, Any]:
        return {agent: self.random.uniform(-1, 1, 3).astype(np.float32) for agent in self.agents}


def discrete() -> Leaving:
    return Leaving(gymnasium.spaces.Discrete(2))


def continuous() -> Leaving:
    return Leaving(gymnasium.spaces.Box(-1, 1, (2,), np.float32))


def spoil(seen: Trajectory, *, keeps_first: bool) -> None:
    """Write NaN into all fields of rows that are no experience, in place.

    An observation that the row before bootstraps from is experience of that row.  `keeps_first`:
    so is that of the first row here, of the last row of the trajectory before.
    """
    absent = ~seen.valid
    unread = np.ones_like(seen.begins)
    unread[:-1] = absent
    unread[1:] &= absent | seen.terminated
    unread[0] &= not keeps_first
    unread[-1] &= not keeps_first
    seen.obs[unread], seen.value[unread] = NAN, NAN
    seen.reward[absent], seen.log_prob[absent] = NAN, NAN
    seen.action[absent] = NAN if np.issubdtype(seen.action.dtype, np.floating) else 1_000_000
    seen.terminated[absent] ^= True
    seen.truncated[absent] ^= True


def config_of(name: str, lstm: int) -> Any:
    algorithm = algorithms.named(name)
    given: dict[str, Any] = {
        "env": MultiAgent(continuous if name in FOR_BOXES else discrete),
        "actors": 1,
        "envs_per_actor": 2,
        "rollout_steps": 10,
        "random_start": 0,
        "probe_steps": 20,
        "total_steps": 300,
        "log_interval_s": 1e6,
        "checkpoint_interval_s": 1e6,
        "device": "cpu",
    }
    if name in WITH_REPLAY:
        given |= {"learn_from": 32, "batch_size": 16, "replay_ratio": 1.0}
    if name in ("ppo", "pqn", "impala", "appo"):
        given |= {"minibatches": 4, "epochs": 2}
    if lstm:
        given |= {"lstm": lstm, "sequence_length": 8, "burn_in": 4}
    names = {field.name for field in dataclasses.fields(algorithm.Config)}
    return algorithm.Config(**{key: value for key, value in given.items() if key in names})


@pytest.mark.usefixtures("local", "no_curve")
@pytest.mark.parametrize(
    ("name", "lstm"),
    [
        # GA3C's threads do not repeat a run.
        *((name, 0) for name in algorithms.ALGORITHMS if name != "ga3c"),
        *((name, 4) for name in toys.WITH_LSTM),
    ],
)
def test_rows_that_are_no_experience_change_no_bit(
    name: str, lstm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, config, play = algorithms.named(name).train, config_of(name, lstm), actor.play
    train(config, run=tmp_path / "clean")
    count = 0

    def spoilt(*args: Any) -> Any:
        nonlocal count
        seen, seconds = play(*args)
        count += int((~seen.valid).sum())
        spoil(seen, keeps_first=name in WITH_REPLAY)
        return seen, seconds

    monkeypatch.setattr(actor, "play", spoilt)
    train(config, run=tmp_path / "spoilt")

    assert count > 50
    toys.assert_same_bits(tmp_path / "clean", tmp_path / "spoilt")
    one, other = (metrics.read(tmp_path / run / "metrics.csv") for run in ("clean", "spoilt"))
    for row, like in zip(one, other, strict=True):
        same = [key for key in row if not key.startswith(("time/", "utilization/"))]
        assert {key: row[key] for key in same} == pytest.approx(
            {key: like[key] for key in same}, rel=0, abs=0, nan_ok=True
        )


@pytest.mark.usefixtures("local")
def test_rows_that_are_no_experience_change_no_bit_of_an_update_of_ga3c() -> None:
    config = config_of("ga3c", 0)
    learnt = []
    for spoils in (False, True):
        learner = make_learner(config)
        trajectory = toys.actor(config, learner.model).sample().trajectory
        assert (~trajectory.valid).any()
        if spoils:
            spoil(trajectory, keeps_first=False)
        recorded: list[Any] = []
        ga3c.update(
            learner,
            copy.deepcopy(learner.model),
            threading.Lock(),
            trajectory,
            0.0,
            lambda metrics, staleness, into=recorded: into.append(metrics),  # type: ignore[misc]
        )
        learnt.append((recorded, toys.weights(learner.model)))
    (one, weights), (other, same) = learnt
    assert one == other
    assert torch.equal(weights, same)
