"""Norms of gradients and of updates by the size of the batch, over the training.

    python examples/studies/norms.py
    remotely-rl train dqn --env CartPole-v1 --metrics norms      # the same metrics, in any run

In a larger batch noise averages out.  Adam's updates do not shrink with it: they grow, because the
gradients of successive updates agree more.  But with a fixed number of draws for each step there
are fewer updates, and the parameters move less in all.
"""

from typing import Any

from remotely_rl import Hook, dqn

BATCHES = (64, 256, 1_024)
PARTS = 3  # of the training


class NormsOfParts(Hook):
    """Means of each part of the run: the norms of a gradient and of an update, whole and by layer.

    `way` is the length of all updates of a part, one after another.
    """

    def __init__(self) -> None:
        self.sums: list[dict[str, float]] = [{} for _ in range(PARTS)]
        self.updates = [0] * PARTS

    def on_update(self, session: Any, metrics: Any) -> None:
        part = min(PARTS - 1, int(session.progress * PARTS))
        self.updates[part] += 1
        for name, norm in metrics.items():
            if name.startswith("norms/"):
                self.sums[part][name] = self.sums[part].get(name, 0.0) + norm

    def mean(self, part: int, name: str) -> float:
        return self.sums[part].get(name, 0.0) / max(1, self.updates[part])

    def way(self, part: int) -> float:
        return self.sums[part].get("norms/update", 0.0)

    def layers(self) -> list[str]:
        """Return the layers that have moved, from the first to the last."""
        of_layers = [name for name in self.sums[-1] if name.startswith("norms/update/")]
        return [name.removeprefix("norms/update/") for name in of_layers if self.sums[-1][name]]


def main(total_steps: int = 20_000, seed: int = 1) -> None:
    lines = ["batch | part | updates | gradient | update | first layer | last layer | way"]
    for batch in BATCHES:
        hook = NormsOfParts()
        config = dqn.Config(
            env="CartPole-v1",
            actors=1,
            envs_per_actor=8,
            rollout_steps=4,
            learn_from=2_048,
            explore_steps=10_000,
            target_update_interval=500,
            n_step=3,
            dueling=False,
            batch_size=batch,
            replay_ratio=16,
            learning_rate=5e-4,
            learning_rate_end=5e-4,
            metrics="norms",
            total_steps=total_steps,
            seed=seed,
        )
        if dqn.train(config, hooks=[hook]).is_interrupted:
            return
        first, *_, last = hook.layers()
        for part in range(PARTS):
            norms = ["gradient", "update", f"update/{first}", f"update/{last}"]
            means = " | ".join(f"{hook.mean(part, f'norms/{name}'):.3g}" for name in norms)
            share = f"{part + 1} of {PARTS}"
            lines.append(
                f"{batch} | {share} | {hook.updates[part]:,} | {means} | {hook.way(part):.3g}"
            )
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
