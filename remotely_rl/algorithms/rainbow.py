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

    paper: ClassVar[Mapping[str, Any]] = {"n_step": 3, "image_size": 84}


train = Train("rainbow", Config, dqn.loop, learner=dqn.QLearner)
