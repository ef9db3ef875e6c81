"""Saturated units and near-deterministic policies, by the size of the learning rate.

    python examples/studies/saturation.py

A unit of tanh whose output is close to 1 or -1 for an observation passes hardly any gradient for
it, and a policy that gives an action all of the probability no longer explores.  Both end learning
early, and large steps bring them on.
"""

from typing import Any

import torch
from torch import nn

from remotely_rl import Hook, a2c

CLOSE = 0.99  # to 1: of a unit's output, and of an action's probability
RATES = (7e-4, 7e-3, 7e-2)


class Saturation(Hook):
    """Shares of saturated outputs and of near-deterministic policies, over the last rollouts."""

    def __init__(self) -> None:
        self.shares: list[tuple[float, float]] = []
        self.seen: list[Any] = []

    def on_rollout(self, session: Any, rollouts: Any) -> None:
        self.seen = [rollout.trajectory.rows.select(rollout.trajectory.obs) for rollout in rollouts]

    def on_row(self, session: Any, row: dict[str, float]) -> None:
        if not self.seen:
            return
        outputs: list[torch.Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            outputs.append(output)

        units = [part for part in session.model.modules() if isinstance(part, nn.Tanh)]
        watched = [part.register_forward_hook(keep) for part in units]
        with torch.no_grad():
            obs = torch.cat([torch.as_tensor(each) for each in self.seen])
            policy, _ = session.model(obs.to(session.learner.device))
        for handle in watched:
            handle.remove()
        units_saturated = torch.cat([each.flatten() for each in outputs]).abs() > CLOSE
        likely = policy.softmax(-1).max(-1).values > CLOSE
        self.shares.append((float(units_saturated.float().mean()), float(likely.float().mean())))
        row["saturation/units"], row["saturation/policies"] = self.shares[-1]


def main(total_steps: int = 40_000, seed: int = 1) -> None:
    lines = ["learning rate | return | saturated units | near-deterministic policies"]
    for rate in RATES:
        hook = Saturation()
        config = a2c.Config(
            env="CartPole-v1",
            actors=1,
            learning_rate=rate,
            learning_rate_end=rate,
            activation="tanh",
            log_interval_s=1.0,
            total_steps=total_steps,
            seed=seed,
        )
        result = a2c.train(config, hooks=[hook])
        if result.is_interrupted:
            return
        units, policies = hook.shares[-1]
        lines.append(f"{rate:g} | {result.return_mean:.0f} | {units:.1%} | {policies:.1%}")
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
