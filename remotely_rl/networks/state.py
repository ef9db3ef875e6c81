"""A model's state as numpy arrays: what travels from the learner to the actors."""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

# The tensors of a model as arrays, by name.
State = dict[str, NDArray[Any]]


def copy_to_cpu(model: nn.Module) -> nn.Module:
    """Return a copy on the CPU, for actors, which have no GPU."""
    return copy.deepcopy(model).cpu()


def state_of(model: nn.Module) -> State:
    """Return parameters and buffers as numpy arrays, copied: the learner may go on at once."""
    return {
        name: tensor.detach().cpu().contiguous().numpy().copy()
        for name, tensor in model.state_dict().items()
    }


def load_state(model: nn.Module, state: State) -> None:
    """Write what `state_of` returned into a model of the same architecture on a CPU.

    The arrays may be read-only.  Raises ValueError if the names differ.
    """
    own = model.state_dict()
    if own.keys() != state.keys():
        raise ValueError(f"parameters of another model: {sorted(own.keys() ^ state.keys())}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(np.array(state[name])))  # writable, or torch warns
