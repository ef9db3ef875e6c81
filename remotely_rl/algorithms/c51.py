"""C51: DQN that learns the distribution of returns, not their mean alone.

Bellemare, Dabney and Munos 2017, https://arxiv.org/abs/1707.06887.  It is `dqn.py` with 51 atoms
from -10 to 10, as in the paper.  Rewards are clipped to 1 in Atari games, where discounted returns
seldom leave these bounds; elsewhere set `value_bound` to what returns may reach.  Theirs has no
dueling heads, targets of one step, and chooses the action to bootstrap from by the target network:
`--no-dueling --n-step 1 --no-double`.
"""

import dataclasses

from remotely_rl.algorithms import dqn
from remotely_rl.runs.training import Train


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """The settings.  Their prose is the help of `remotely-rl train c51`."""

    atoms: int = 51


train = Train("c51", Config, dqn.loop, learner=dqn.QLearner)
