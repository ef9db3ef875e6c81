"""QR-DQN: DQN that learns quantiles of returns, not their mean alone.

Dabney et al. 2017, https://arxiv.org/abs/1710.10044.  It is `dqn.py` with 200 quantiles, as in the
paper.  Unlike C51's atoms they need no bounds: they go where the returns are.  For small problems
fewer do, in less time.  Theirs has no dueling heads, targets of one step, and chooses the action to
bootstrap from by the target network: `--no-dueling --n-step 1 --no-double`.
"""

import dataclasses

from remotely_rl.algorithms import dqn
from remotely_rl.runs.training import Train


@dataclasses.dataclass(frozen=True)
class Config(dqn.Config):
    """The settings.  Their prose is the help of `remotely-rl train qr_dqn`."""

    quantiles: int = 200


train = Train("qr_dqn", Config, dqn.loop, learner=dqn.QLearner)
