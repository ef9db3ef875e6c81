"""QR-DQN: DQN that learns quantiles of returns instead of their mean.

Dabney et al. 2017, https://arxiv.org/abs/1710.10044: `dqn.py` with the paper's 200 quantiles.
Unlike C51's atoms they need no bounds.  On small problems fewer are enough, and faster.  The paper
has no dueling heads, one-step targets and no double Q-learning:
`--no-dueling --n-step 1 --no-double`.
"""

import dataclasses

from remotely_rl.algorithms import dqn
from remotely_rl.runs.training import Train


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """The settings; their descriptions are the help of `remotely-rl train qr_dqn`."""

    quantiles: int = 200


train = Train("qr_dqn", Config, dqn.loop, learner=dqn.QLearner)
