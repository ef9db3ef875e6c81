"""Random transitions for the learners of SAC and TD3."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from remotely_rl.environments.action_spaces import of
from remotely_rl.environments.observations import ObservationLeaf
from remotely_rl.runs.replaying import Steps

VECTOR = ObservationLeaf((3,), np.dtype(np.float32))
BOX = of(spaces.Box(-1, 1, (2,), np.float32))


def batch(rows: int = 6) -> Steps:
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    return Steps(
        obs=drawn(rows, 3),
        action=2 * drawn(rows, 2) - 1,
        reward=drawn(rows),
        discount=torch.full((rows,), 0.9),
        next_obs=drawn(rows, 3),
        weight=torch.ones(rows),
    )
