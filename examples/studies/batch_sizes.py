"""Steps and updates to a return, by the size of the batch.

    python examples/studies/batch_sizes.py

Up to some size a larger batch needs fewer updates for the same steps: it learns faster where steps
are cheap.  Beyond it updates become no fewer, and steps are wasted.
"""

from typing import Any

import numpy as np

from remotely_rl import Hook, ppo

BATCHES = (512, 2_048, 8_192)
GOAL, GAMES = 450.0, 100


class UntilSolved(Hook):
    """Stops the run when the mean of the last 100 returns reaches the goal."""

    def __init__(self) -> None:
        self.steps = self.updates = 0

    def on_update(self, session: Any, metrics: Any) -> None:
        self.updates = session.learner.version
        returns = [episode.score for episode in session.tally.recent]
        if len(returns) == GAMES and np.mean(returns) >= GOAL:
            self.steps = session.env_steps
            session.stop(f"the mean return is {np.mean(returns):.0f}")


def main(total_steps: int = 150_000, seeds: int = 2) -> None:
    lines = [f"rows of a batch | steps to {GOAL:g}, by seed | updates, by seed"]
    for rows in BATCHES:
        hooks = [UntilSolved() for _ in range(seeds)]
        for seed, hook in enumerate(hooks, 1):
            config = ppo.Config(
                env="CartPole-v1",
                actors=1,
                envs_per_actor=16,
                batch_rows=rows,
                anneal_steps=150_000,
                total_steps=total_steps,
                seed=seed,
            )
            if ppo.train(config, hooks=[hook]).is_interrupted:
                return
        steps = ", ".join(f"{hook.steps:,}" if hook.steps else "not" for hook in hooks)
        updates = ", ".join(f"{hook.updates:,}" for hook in hooks)
        lines.append(f"{rows:,} | {steps} | {updates}")
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
