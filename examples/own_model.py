"""A model of your own: any torch module that maps observations to (policy, value).

    python examples/own_model.py
    remotely-rl train ppo --env CartPole-v1 --model examples/own_model.py:Model

It is made with the shape of an observation and the number of outputs of the policy, trained
here for a minute on CartPole, and tried out.
"""

import contextlib
import math

import torch
from torch import Tensor, nn

from remotely_rl import ppo
from remotely_rl.agents import evaluation
from remotely_rl.networks import Normalizer


class Model(nn.Module):
    """Observations [N, ...] -> what the policy is made of [N, outputs], value [N]."""

    def __init__(self, observation_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        inputs = math.prod(observation_shape)
        self.normalizer = Normalizer(observation_shape)
        last = nn.Linear(128, outputs)
        nn.init.zeros_(last.weight)  # at first all actions are as good
        self.policy = nn.Sequential(nn.Linear(inputs, 128), nn.ELU(), last)
        self.value = nn.Sequential(nn.Linear(inputs, 128), nn.ELU(), nn.Linear(128, 1))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        seen: Tensor = self.normalizer(obs).flatten(1)
        return self.policy(seen), self.value(seen).squeeze(-1)


def main(minutes: float = 1.0) -> None:
    torch.manual_seed(1)
    config = ppo.Config(env="CartPole-v1", minutes=minutes, target=475.0)
    result = ppo.train(config, model=Model)
    print(evaluation.evaluate(result.run, episodes=20, model=Model))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()
