"""Makes models: the default network for an environment's observations, or your own."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl.errors import TrainingError
from remotely_rl.networks.actor_critic import ActorCritic
from remotely_rl.networks.cnn import NatureCNN, SmallCNN
from remotely_rl.networks.memory import initial_state, is_recurrent
from remotely_rl.networks.mlp import MLP
from remotely_rl.networks.recurrent import Recurrent, RecurrentMLP

# What `model=` may be: a module, or a callable that makes one from (observation_shape, outputs).
ModelSource = nn.Module | Callable[[tuple[int, ...], int], nn.Module]


def default_network(observation_shape: tuple[int, ...]) -> Callable[..., nn.Module]:
    """Return the class of network for observations of this shape: images, by size, or vectors."""
    if len(observation_shape) == 3:
        side = min(observation_shape[1:])
        if side >= 64:
            return NatureCNN
        if side >= 20:
            return SmallCNN
    return MLP


def recurrent_network(observation_shape: tuple[int, ...], outputs: int, units: int) -> nn.Module:
    """Make the default network with LSTMs of `units` units."""
    kind = default_network(observation_shape)
    if kind is MLP:
        return RecurrentMLP(observation_shape, outputs, units)
    plain = kind(observation_shape, outputs)
    assert isinstance(plain, ActorCritic)
    return Recurrent(nn.Sequential(plain.normalizer, plain.body), plain.width, outputs, units)


def build(
    source: ModelSource | None,
    observation_shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    outputs: int,
    lstm_units: int = 0,
) -> nn.Module:
    """Make the model and try it on two observations.

    Without a `source` it is the default network, with an LSTM if `lstm_units` is not 0.  A module
    given as an instance is copied.  Raises TrainingError, with the shapes expected and found, if
    the model does not map observations to `(policy, value)`.
    """
    if source is not None and lstm_units:
        raise TrainingError(
            "lstm= adds a memory to the networks of remotely_rl; a model of your own brings its"
            " own (networks.Recurrent), so leave lstm at 0"
        )
    if isinstance(source, nn.Module):
        model = copy.deepcopy(source)
    elif lstm_units:
        model = recurrent_network(observation_shape, outputs, lstm_units)
    else:
        model = (source or default_network(observation_shape))(observation_shape, outputs)
    if not isinstance(model, nn.Module):
        raise TrainingError(f"model= made a {type(model).__name__}; expected a torch.nn.Module")
    obs = torch.from_numpy(np.zeros((2, *observation_shape), dtype))
    try:
        with torch.no_grad():
            if is_recurrent(model):
                state, begins = initial_state(model, 2), torch.ones(1, 2, dtype=torch.bool)
                found = model(obs[None], state, begins)
                expected = f"(policy [1, 2, {outputs}], value [1, 2], state {list(state.shape)})"
            else:
                found = model(obs)
                expected = f"(policy [2, {outputs}], value [2])"
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise TrainingError(
            f"{type(model).__name__} fails on observations of shape {list(obs.shape)}"
            f" ({dtype}): {error}"
        ) from error
    shapes = _shapes(found)
    if shapes != expected:
        raise TrainingError(
            f"{type(model).__name__} maps observations {list(obs.shape)} to {shapes};"
            f" expected {expected}"
        )
    return model


def _shapes(found: object) -> str:
    if not isinstance(found, tuple):
        return f"a {type(found).__name__}"
    if not all(isinstance(part, Tensor) for part in found):
        return f"({', '.join(type(part).__name__ for part in found)})"
    names = ("policy", "value", "state", *["more"] * len(found))
    shapes = [f"{name} {list(part.shape)}" for name, part in zip(names, found, strict=False)]
    return f"({', '.join(shapes)})"
