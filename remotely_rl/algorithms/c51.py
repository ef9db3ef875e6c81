"""C51: DQN that learns the distribution of returns instead of their mean.

Bellemare, Dabney and Munos 2017, https://arxiv.org/abs/1707.06887: `dqn.py` with the paper's 51
atoms from -10 to 10.  In Atari games, rewards are clipped to 1 and discounted returns seldom leave
these bounds; elsewhere set `value_bound` to the largest return.  The paper has no dueling heads,
one-step targets and no double Q-learning: `--no-dueling --n-step 1 --no-double`.
"""

import dataclasses

from remotely_rl.algorithms import dqn
from remotely_rl.runs.training import Train


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """The settings; their descriptions are the help of `remotely-rl train c51`."""

    atoms: int = 51


train = Train("c51", Config, dqn.loop, learner=dqn.QLearner)
