"""Values of states where a time limit ends an episode and where actions are masked."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import remotely
from remotely_rl import algorithms, dqn, environments, n_step_q
from remotely_rl.agents import load
from remotely_rl.algorithms.dqn import QActor, QLearner
from remotely_rl.experience.replay import Replay
from remotely_rl.learning.learner import RewardScale, gae_batch
from remotely_rl.runs import replaying
from tests.remotely_rl import space_toys

pytestmark = pytest.mark.usefixtures("no_curve")

GAMMA = 0.5


class Turns(gymnasium.Env[Any, Any]):
    """Two alternating states that only the masks distinguish, under a time limit.

    Each has one legal action, its number.  Only the first state's is rewarded.
    """

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state, self.left = int(self.np_random.integers(2)), 2
        return self.seen()

    def step(self, action: Any) -> Any:
        assert action == self.state, "an illegal action"
        self.state, self.left = 1 - self.state, self.left - 1
        obs, info = self.seen()
        return obs, float(action == 0), False, self.left == 0, info

    def seen(self) -> Any:
        return np.ones(1, np.float32), {"action_mask": np.eye(2, dtype=np.int8)[self.state]}


def oracle() -> list[float]:
    """Return the value of each state's only action without a time limit, by value iteration."""
    values = [0.0, 0.0]
    for _ in range(100):
        values = [1.0 + GAMMA * values[1], 0.0 + GAMMA * values[0]]
    return values


def with_values(model: Any, *values: float) -> nn.Module:
    """Set a network to these values of the actions for every observation."""
    with torch.no_grad():
        for part in model.parameters():
            part.zero_()
        model.model.policy.bias.copy_(torch.tensor(values))
    return model  # type: ignore[no-any-return]


def made(config: Any) -> nn.Module:
    envs = environments.make(Turns, 1)
    envs.reset()
    return with_values(config.make_model(None, envs.spec, envs.actions), 7.0, 3.0)


# For each action: its reward, plus half the value of the other state's legal action.
ONE_STEP = [1 + GAMMA * 3.0, 0 + GAMMA * 7.0]


@pytest.mark.parametrize("double", [False, True])
def test_a_target_of_dqn_takes_the_best_of_the_legal_actions_at_a_time_limit(double: bool) -> None:
    config = dqn.Config(
        env=Turns,
        envs_per_actor=2,
        rollout_steps=12,
        gamma=GAMMA,
        dueling=False,
        double=double,
        device="cpu",
    )
    model = made(config)
    rows = remotely.local(QActor, config, model, 5).sample().trajectory
    replay = Replay(64, 2, rows, n_step=1, gamma=GAMMA)
    replay.append(rows)
    learner = QLearner(config, model, environments.make(Turns, 1).actions)

    drawn = replaying.to_device(learner, replay.draw(200))
    targets = dqn.compute_targets(learner, drawn, dqn.compute_heads(learner, drawn))

    assert rows.truncated.sum() >= 6
    assert targets.tolist() == [ONE_STEP[action] for action in drawn.action.tolist()]


def test_a_target_of_n_step_q_takes_the_best_of_the_legal_actions_at_a_time_limit() -> None:
    config = n_step_q.Config(
        env=Turns,
        envs_per_actor=2,
        rollout_steps=12,
        gamma=GAMMA,
        gae_lambda=0.0,
        dueling=False,
        random_start=0,
        reward_clip=0.0,
    )
    work = n_step_q.make_work(config, made(config), 5)
    # Rewards of 1 were met before; until one is, values count for nothing.
    work.learner.value_scale = RewardScale(variance=1.0, count=1.0)
    rows = work.actor.sample().trajectory

    batch = gae_batch(work.learner, rows, normalize_advantage=False)

    assert rows.truncated.sum() >= 6
    targets = work.learner.value_scale.denormalize(batch.transition_rows.value_target)
    wanted = [ONE_STEP[action] for action in rows.action[rows.valid]]
    assert targets.tolist() == pytest.approx(wanted)


@pytest.mark.learning
@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", space_toys.LEARN_Q)
def test_values_at_time_limits_are_within_two_percent_of_the_exact_ones(
    name: str, tmp_path: Path
) -> None:
    algorithm = algorithms.named(name)
    given = {**space_toys.SETTINGS, **space_toys.OF_ALGORITHM[name], "gamma": GAMMA}
    if name == "n_step_q":
        given |= {"target_every": 500, "optimizer": "adam"}
        given |= {"learning_rate": 3e-3, "learning_rate_end": 3e-4}
    if name != "pqn":  # dueling heads have one value for both states: they look the same
        given["dueling"] = False
    config = algorithm.Config(env=Turns, total_steps=12_000, log_interval_s=1e6, **given)
    algorithm.train(config, run=tmp_path / "run")

    agent = load.load(tmp_path / "run", env=Turns)
    obs = {"observation": torch.ones(2, 1), "action_mask": torch.eye(2).bool()}
    policy, _ = agent.model(obs)

    assert policy.diagonal().tolist() == pytest.approx(oracle(), rel=0.02)
