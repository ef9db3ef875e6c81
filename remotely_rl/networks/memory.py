"""Calls models with a memory and models without one through the same functions."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.trees import Tree

CHUNK = 256  # observations of a forward pass on a CPU


def is_recurrent(model: nn.Module) -> bool:
    """Whether a model has a memory."""
    return hasattr(model, "initial_state")


def initial_state(model: nn.Module, count: int) -> Tensor:
    """Return a model's memory before an episode, [count, S]; S is 0 if it has none."""
    if not is_recurrent(model):
        return torch.zeros(count, 0)
    return cast(Tensor, model.initial_state(count))  # type: ignore[operator]


def unroll(
    model: Callable[..., Any], obs: Tree, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a model of either kind to [T, B] observations: policy, value, final memory."""
    if state.shape[-1]:
        return cast(tuple[Tensor, Tensor, Tensor], model(obs, state, begins))
    # In chunks: one [T * B] batch of images does not stay in the cache of a CPU.
    flat = trees.map_tree(lambda x: x.flatten(0, 1), obs)
    rows = begins.numel()
    size = rows if begins.is_cuda else CHUNK
    chunks = [
        model(trees.map_tree(lambda x: x[start : start + size], flat))  # noqa: B023 - called at once
        for start in range(0, rows, size)
    ]
    policy, value = (torch.cat(part) for part in zip(*chunks, strict=True))
    return policy.view(*begins.shape, -1), value.view(begins.shape), state
