"""Your own model: any torch module that maps observations to (policy, value).

    python examples/own_model.py
    remotely-rl train ppo --env CartPole-v1 --model examples/own_model.py:Model

remotely_rl constructs it with the shape of an observation and the number of policy outputs.  This
script trains it on CartPole for a minute, then evaluates it.
"""

import math

import torch
from torch import Tensor, nn

from remotely_rl import ppo
from remotely_rl.agents import evaluation
from remotely_rl.networks import Normalizer


class Model(nn.Module):
    """Observations [N, ...] -> policy outputs [N, outputs] (logits here), values [N]."""

    def __init__(self, observation_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        inputs = math.prod(observation_shape)
        self.normalizer = Normalizer(observation_shape)
        last = nn.Linear(128, outputs)
        nn.init.zeros_(last.weight)  # start with a uniform policy
        self.policy = nn.Sequential(nn.Linear(inputs, 128), nn.ELU(), last)
        self.value = nn.Sequential(nn.Linear(inputs, 128), nn.ELU(), nn.Linear(128, 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features: Tensor = self.normalizer(obs).flatten(1)
        return self.policy(features), self.value(features).squeeze(-1)


def main(minutes: float = 1.0) -> None:
    torch.manual_seed(1)
    config = ppo.Config(env="CartPole-v1", minutes=minutes, target=475.0)
    result = ppo.train(config, model=Model)
    print(evaluation.evaluate(result.run, episodes=20, model=Model))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
