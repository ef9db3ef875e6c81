"""Rainbow: DQN with six extensions combined.

Hessel et al. 2018, https://arxiv.org/abs/1710.02298: `dqn.py`, which has double Q-learning, dueling
heads and n-step targets, plus C51's distributions, prioritized replay and noisy layers.  Noisy
layers are slow: `--no-noisy` is the epsilon-Rainbow of Stooke and Abbeel 2018,
https://arxiv.org/abs/1803.02811, which explores epsilon-greedily instead.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from remotely_rl.algorithms import dqn
from remotely_rl.runs.training import Train


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """The settings; their descriptions are the help of `remotely-rl train rainbow`."""

    atoms: int = 51
    noisy: bool = True
    prioritized_alpha: float = 0.5

    # Table 1 of the paper and the text above it, in agent's steps, of four frames each.
    paper: ClassVar[Mapping[str, Any]] = {
        "n_step": 3,
        "learning_rate": 6.25e-5,
        "batch_size": 32,
        "replay_ratio": 8.0,
        "replay_rows": 1_000_000,
        "learn_from": 20_000,
        "target_update_interval": 8_000,
        "prioritized_alpha": 0.5,
        "prioritized_beta": 0.4,
        "value_bound": 10.0,
        "image_size": 84,
    }


train = Train("rainbow", Config, dqn.loop, learner=dqn.QLearner)
