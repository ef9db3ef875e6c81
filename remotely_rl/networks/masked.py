"""MaskedPolicy: a model whose policy gives illegal actions no probability."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.functions.distributions import ILLEGAL
from remotely_rl.networks.state import is_recurrent
from remotely_rl.trees import Tree


class MaskedPolicy(nn.Module):
    """A model with action masks (`environments/masks.py`).

    It maps {"observation": ..., "action_mask": bool [..., outputs]}, and passes the observation to
    the model.  The logits of illegal actions become ILLEGAL.
    """

    illegal: Tensor

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, obs: Tree, *memory: Tensor) -> tuple[Any, ...]:
        policy, *rest = self.model(obs[OBSERVATION], *memory)
        return (torch.where(obs[ACTION_MASK], policy.float(), ILLEGAL), *rest)


class MaskedRecurrentPolicy(MaskedPolicy):
    """The same for a recurrent model."""

    def initial_state(self, count: int) -> Tensor:
        return cast(Tensor, self.model.initial_state(count))  # type: ignore[operator]


def masked(model: nn.Module) -> MaskedPolicy:
    """Wrap a model, recurrent or not, with masks."""
    return MaskedRecurrentPolicy(model) if is_recurrent(model) else MaskedPolicy(model)
