"""DQN's loop with an actor that fills a replay, and one or more learners."""

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

# Differences from the defaults, which are for Pong.  Draws are uniform and rates constant, so that
# two learners differ only in their batches.
CARTPOLE: dict[str, Any] = {
    "env": CartPoleVectorEnv, "actors": 1, "envs_per_actor": 8, "rollout_steps": 4,
    "replay_rows": 100_000, "learn_from": 2_048, "n_step": 3, "explore_steps": 20_000,
    "target_update_interval": 1_000,
}  # fmt: skip
ATARI: dict[str, Any] = {"actors": 1, "envs_per_actor": 16}


class FromReplay:
    """A learner with a number of updates for each step, by `replay_ratio` and its batch."""

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
        """Make the updates that are due."""
        while self.ratio.updates_owed and len(replay):
            draw = self._draw(replay, self.learner.config.batch_size)
            self.update(replaying.to_device(self.learner, draw), env_steps)
            self.ratio.updated()

    def update(self, steps: Steps, env_steps: int) -> Update:
        """Make one update."""
        return dqn.update(self.learner, steps, env_steps, 0.0)


def play(learners: Sequence[FromReplay], total_steps: int) -> Iterator[tuple[int, list[float]]]:
    """Play with the first learner's policy; all learners learn from that.

    Yields the steps and the scores of all games so far after each round.
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
