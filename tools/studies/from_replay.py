"""DQN's loop as a recipe: an actor fills a replay, and one or several learners learn from it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import remotely
from remotely_rl import dqn
from remotely_rl.algorithms.dqn import QActor, QLearner
from remotely_rl.experience.replay import Draw, Ratio, Replay
from remotely_rl.runs import replaying
from remotely_rl.runs.replaying import Steps, Update
from remotely_rl.runs.training import make_learner

# What differs from the defaults, which are Pong's.  Draws are uniform and rates stay as they are,
# so that nothing but the batch makes two learners different.
CARTPOLE: dict[str, Any] = {
    "env": CartPoleVectorEnv, "actors": 1, "envs_per_actor": 8, "rollout_steps": 4,
    "replay_rows": 100_000, "learn_from": 2_048, "n_step": 3, "explore_steps": 20_000,
    "target_update_interval": 1_000,
}  # fmt: skip
ATARI: dict[str, Any] = {"actors": 1, "envs_per_actor": 16}


class FromReplay:
    """A learner, and the updates that it owes: `replay_ratio` for each step, by its own batch."""

    def __init__(
        self,
        config: dqn.Config,
        kind: type[QLearner] = QLearner,
        draw: Callable[[Replay, int], Draw] = Replay.draw,
    ):
        self.learner = make_learner(config, kind=kind)
        self.ratio = Ratio(config.replay_ratio, config.batch_size, config.learn_from)
        self._draw = draw

    def learn(self, replay: Replay, env_steps: int) -> None:
        """Make the updates that are owed."""
        while self.ratio.updates_owed and len(replay):
            draw = self._draw(replay, self.learner.config.batch_size)
            self.update(replaying.to_device(self.learner, draw), env_steps)
            self.ratio.updated()

    def update(self, steps: Steps, env_steps: int) -> Update:
        """Make one update."""
        return dqn.update(self.learner, steps, env_steps, 0.0)


def play(learners: Sequence[FromReplay], total_steps: int) -> Iterator[tuple[int, list[float]]]:
    """Play by the first of the learners, and have all learn from that.

    Yields the steps so far and the scores of all games after each round.
    """
    torch.set_num_threads(1)
    first = learners[0].learner
    config = first.config
    actor = remotely.local(QActor, config, first.model, config.seed)
    replay, steps, scores = None, 0, list[float]()
    while steps < total_steps:
        actor.set_param(first.parameters(steps))
        rollout = actor.sample()
        steps += rollout.steps
        scores += [game.score for game in rollout.episodes]
        replay = replay or Replay(
            config.replay_rows, config.envs_per_actor, rollout.trajectory, config.n_step,
            config.gamma, config.clips_rewards_at, seed=config.seed,
        )  # fmt: skip
        replay.append(rollout.trajectory)
        for one in learners:
            one.ratio.appended(rollout.steps)
            replaying.count_in(one.learner, [rollout])
            one.learn(replay, steps)
        yield steps, scores
    actor.close()
