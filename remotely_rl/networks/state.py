"""The state of a model: parameters and buffers as arrays, for actors, and recurrent state.

The functions take recurrent and other models alike.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.trees import Tree

# Parameters and buffers of a model as arrays, by name.
State = dict[str, NDArray[Any]]


def copy_to_cpu(model: nn.Module) -> nn.Module:
    """Return a copy on the CPU, for actors, which have no GPU."""
    return copy.deepcopy(model).cpu()


def state_of(model: nn.Module) -> State:
    """Return copies of parameters and buffers as numpy arrays."""
    return arrays_of(model.state_dict())


def arrays_of(tensors: Mapping[str, Tensor]) -> State:
    """Return copies of the tensors of a `state_dict` as numpy arrays."""
    return {
        name: tensor.detach().cpu().contiguous().numpy().copy() for name, tensor in tensors.items()
    }


def load_state(model: nn.Module, state: State) -> None:
    """Load the result of `state_of` into a model of the same architecture on a CPU.

    The arrays may be read-only.  Raises ValueError if the names differ.
    """
    own = model.state_dict()
    if own.keys() != state.keys():
        raise ValueError(f"parameters of another model: {sorted(own.keys() ^ state.keys())}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(np.array(state[name])))  # writable, or torch warns


CHUNK = 256  # observations per forward pass on a CPU


def is_recurrent(model: nn.Module) -> bool:
    """Return whether a model has recurrent state."""
    return hasattr(model, "initial_state")


def initial_state(model: nn.Module, count: int) -> Tensor:
    """Return a model's initial state, [count, S]; S is 0 if it is not recurrent."""
    if not is_recurrent(model):
        return torch.zeros(count, 0)
    return cast(Tensor, model.initial_state(count))  # type: ignore[operator]


def unroll(
    model: Callable[..., Any], obs: Tree, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a recurrent or other model to [T, B] observations: policy, value, final state."""
    if state.shape[-1]:
        return cast(tuple[Tensor, Tensor, Tensor], model(obs, state, begins))
    # In chunks, because a [T * B] batch of images does not fit the cache of a CPU.
    flat = trees.map_tree(lambda x: x.flatten(0, 1), obs)
    rows = begins.numel()
    size = rows if begins.is_cuda else CHUNK
    chunks = [
        model(trees.map_tree(lambda x: x[start : start + size], flat))  # noqa: B023 - called at once
        for start in range(0, rows, size)
    ]
    policy, value = (torch.cat(part) for part in zip(*chunks, strict=True))
    return policy.view(*begins.shape, -1), value.view(begins.shape), state
