"""A second learner that sees only what the first one plays, and never acts itself.

    python examples/studies/second_learner.py

Large batches may learn worse for two reasons: their updates are fewer, or what they play teaches
less.  The second learner tells them apart (Stooke and Abbeel 2018,
https://arxiv.org/abs/1803.02811): it begins with the same weights, learns as often from each step,
with batches of another size, and what it learns changes nothing that is played.
"""

import copy
import dataclasses
from typing import Any

from remotely_rl import Hook, dqn, replaying
from remotely_rl.acting.evaluation import measure
from remotely_rl.acting.policy import Trained
from remotely_rl.algorithms.dqn import QLearner
from remotely_rl.experience.replay import Ratio, Replay

SMALL, LARGE = 64, 2_048
GAMES = 20  # greedy, of each learner, at each look
LOOK_EVERY = 5_000


class SecondLearner(Hook):
    """Learns from the run's rollouts; `looks` are the steps, and the mean returns of both."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.looks: list[tuple[int, float, float]] = []
        self.replay: Replay | None = None

    def on_start(self, session: Any) -> None:
        first = session.learner
        config = self.config = dataclasses.replace(first.config, batch_size=self.batch_size)
        self.learner = QLearner(config, copy.deepcopy(first.model), first.actions)
        self.ratio = Ratio(config.replay_ratio, config.batch_size, config.learn_from)

    def on_rollout(self, session: Any, rollouts: Any) -> None:
        config, width = self.config, self.config.rows_per_actor
        replaying.count_in(self.learner, rollouts)
        for rollout in rollouts:
            if self.replay is None:
                rows, columns = config.replay_rows, config.actors * width
                played, bound = rollout.trajectory, config.clips_rewards_at
                self.replay = Replay(rows, columns, played, config.n_step, config.gamma, bound)
            self.replay.append(rollout.trajectory, column=rollout.actor * width)
            self.ratio.appended(rollout.steps)
        while self.replay is not None and len(self.replay) and self.ratio.updates_owed:
            steps = replaying.to_device(self.learner, self.replay.draw(config.batch_size))
            dqn.update(self.learner, steps, session.env_steps, session.progress)
            self.ratio.updated()

    def on_update(self, session: Any, metrics: Any) -> None:
        if session.env_steps >= LOOK_EVERY * (len(self.looks) + 1):
            pair = ((session.learner.config, session.model), (self.config, self.learner.model))
            means = [measure(Trained(*each), GAMES, greedy=True).mean for each in pair]
            self.looks.append((session.env_steps, *means))

    def on_row(self, session: Any, row: dict[str, float]) -> None:
        if self.looks:
            _, row["first/return"], row["second/return"] = self.looks[-1]


def main(total_steps: int = 30_000, seeds: int = 1) -> None:
    lines = ["plays | learns from that | best, of both | last, of both | updates, of both"]
    for first, second in ((SMALL, LARGE), (LARGE, SMALL)):
        for seed in range(1, seeds + 1):
            hook = SecondLearner(second)
            config = dqn.Config(
                env="CartPole-v1",
                actors=1,
                envs_per_actor=8,
                rollout_steps=4,
                learn_from=2_048,
                explore_steps=10_000,
                target_update_interval=500,
                n_step=3,
                batch_size=first,
                replay_ratio=16,
                learning_rate=5e-4,
                learning_rate_end=5e-4,
                total_steps=total_steps,
                seed=seed,
            )
            result = dqn.train(config, hooks=[hook])
            if result.is_interrupted:
                return
            _, ours, theirs = zip(*hook.looks or [(0, 0.0, 0.0)], strict=True)
            lines.append(
                f"{first} | {second} | {max(ours):.0f}, {max(theirs):.0f} | {ours[-1]:.0f},"
                f" {theirs[-1]:.0f} | {result.updates:,}, {hook.learner.version:,}"
            )
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
