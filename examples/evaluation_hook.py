"""Two hooks: a curriculum, and one that stops the run when an evaluation succeeds.

Every 2,000 steps the current policy plays 20 episodes on the full corridor, in an actor of its own
while training continues.  Training starts on a short corridor, which grows as the agent solves it.

    python examples/evaluation_hook.py
    remotely-rl train ppo --env examples/evaluation_hook.py:Corridor --evaluate-every 2000 \\
        --hook examples/evaluation_hook.py:Curriculum --hook examples/evaluation_hook.py:Solved
"""

from typing import Any

import gymnasium
import numpy as np

from remotely_rl import Hook, ppo


class Corridor(gymnasium.Env[Any, Any]):
    """The end is `length` steps to the right; the observation does not show where."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    length = 24  # `session.set_env_attr` changes this attribute

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.end, self.at, self.now = self.length, 0, 0
        return self.seen(), {}

    def step(self, action: int) -> Any:
        self.at += 1 if action else -1
        self.now += 1
        is_there = self.at == self.end
        is_late = self.now == 2 * self.end
        info = {"success": is_there, "episode": {"corridor": self.end}}
        return self.seen(), float(is_there), is_there, is_late and not is_there, info

    def seen(self) -> Any:
        return np.array([np.tanh(self.at / 8)], np.float32)


class Curriculum(Hook):
    """Starts with a corridor of 3 steps; doubles it when over 90 % of episodes reach its end."""

    def on_start(self, session: Any) -> None:
        self.length = 3
        session.set_env_attr("length", self.length)

    def on_update(self, session: Any, metrics: Any) -> None:
        recent = [episode.metrics for episode in session.tally.recent]
        success = [each["success"] for each in recent if each["corridor"] == self.length]
        if len(success) >= 20 and np.mean(success) > 0.9 and self.length < Corridor.length:
            self.length = min(2 * self.length, Corridor.length)
            session.set_env_attr("length", self.length)
            session.say(f"the corridor has {self.length} steps now")


class Solved(Hook):
    """Stops the run when every episode of an evaluation reaches the end."""

    def on_evaluation(self, session: Any, evaluation: Any) -> None:
        session.say(f"after {evaluation.env_steps:,} steps: {evaluation}")
        if evaluation.metrics["success"] == 1.0:
            session.stop("every episode of an evaluation succeeded")


def main() -> None:
    config = ppo.Config(
        env=Corridor,
        actors=2,
        envs_per_actor=8,
        batch_rows=512,
        total_steps=200_000,
        evaluate_every=2_000,
        evaluate_episodes=20,
        evaluate_greedy=False,
        reward_clip=0,
    )
    result = ppo.train(config, hooks=[Curriculum(), Solved()])
    print(f"the policy of the best evaluation is in {result.run}/best.pt")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
