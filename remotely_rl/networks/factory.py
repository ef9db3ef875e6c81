"""Construction and checks of models: the default network for the observations, or your own."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl import trees
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, ObservationLeaf
from remotely_rl.errors import TrainingError
from remotely_rl.networks.architecture import DEFAULT, LAYER, Architecture
from remotely_rl.networks.cnn import cnn_for
from remotely_rl.networks.encoders import check_has_images, encoder_of, is_image
from remotely_rl.networks.layers import add_layer_norm
from remotely_rl.networks.masked import masked
from remotely_rl.networks.mlp import MLP
from remotely_rl.networks.per_agent import for_each_agent
from remotely_rl.networks.recurrent import Recurrent, RecurrentMLP
from remotely_rl.networks.state import initial_state, is_recurrent
from remotely_rl.trees import Tree

# The argument `model=`: a module, or a callable that makes one from (observation_shape, outputs).
# The shape of a nested observation is a tree of shapes.
ModelSource = nn.Module | Callable[[Any, int], nn.Module]
AdaptHead = Callable[[nn.Linear], nn.Module]


def default_network(spec: Tree, outputs: int, architecture: Architecture = DEFAULT) -> nn.Module:
    """Make the default network for observations, with this architecture.

    An image goes through convolutions chosen by its size.  A vector goes through an MLP, and so do
    the features of anything else (`encoders.py`).  Raises TrainingError for an architecture that
    does not fit.
    """
    model = _without_norm(spec, outputs, architecture)
    return add_layer_norm(model) if architecture.norm == LAYER else model


def _without_norm(spec: Tree, outputs: int, architecture: Architecture) -> nn.Module:
    check_has_images(spec, architecture)
    is_leaf, lstm = isinstance(spec, ObservationLeaf), architecture.lstm
    convolves = is_leaf and is_image(spec) and architecture.network != "mlp"
    if convolves and len(spec.shape) == 3:
        plain = cnn_for(spec.shape, architecture.network)(spec.shape, outputs, architecture)
        if not lstm:
            return plain
        features = nn.Sequential(plain.normalizer, plain.body)
        return Recurrent(features, plain.width, outputs, lstm)
    is_vector = is_leaf and not spec.counts and not convolves
    encoder = None if is_vector else encoder_of(spec, architecture)
    shape = spec.shape if encoder is None else (encoder.width,)
    if lstm:
        return RecurrentMLP(shape, outputs, lstm, encoder, architecture)
    return MLP(shape, outputs, encoder, architecture)


def build(
    source: ModelSource | None,
    spec: Tree,
    outputs: int,
    architecture: Architecture = DEFAULT,
    outputs_are: str = "",
    head: AdaptHead | None = None,
) -> nn.Module:
    """Make the model and try it on two observations.

    `spec` describes the observations.  Without a `source` it is the default network with this
    architecture, in which `head` may change or replace the policy's last layer.  A module given as
    an instance is copied.  Raises TrainingError, with the expected and actual shapes, if the model
    does not map observations to `(policy, value)`; `outputs_are` is the meaning of the outputs, for
    that message.
    """
    return with_masks(lambda of: _build(source, of, outputs, architecture, outputs_are, head), spec)


def with_masks(make: Callable[[Tree], nn.Module], spec: Tree) -> nn.Module:
    """Make a model for observations, or one for each agent, and apply the masks of actions."""
    is_masked = isinstance(spec, dict) and ACTION_MASK in spec
    model = for_each_agent(make, spec[OBSERVATION] if is_masked else spec)
    return masked(model) if is_masked else model


def build_unmasked(
    source: ModelSource | None,
    spec: Tree,
    outputs: int,
    architecture: Architecture = DEFAULT,
    outputs_are: str = "",
    head: AdaptHead | None = None,
) -> nn.Module:
    """Make the model as `build` does, without masking.

    Even if the observation itself contains a mask, as PettingZoo's do, it is not applied.  If
    observations have an agent index, there is a model for each agent.
    """
    return for_each_agent(
        lambda of: _build(source, of, outputs, architecture, outputs_are, head), spec
    )


def _build(
    source: ModelSource | None,
    spec: Tree,
    outputs: int,
    architecture: Architecture,
    outputs_are: str,
    head: AdaptHead | None,
) -> nn.Module:
    if source is not None and architecture.lstm:
        raise TrainingError(
            "lstm= adds an LSTM to the networks of remotely_rl; a model of your own has its own"
            " (networks.Recurrent), so leave lstm at 0"
        )
    if isinstance(source, nn.Module):
        model = copy.deepcopy(source)
    elif source is None:
        model = default_network(spec, outputs, architecture)
        if head is not None:
            default: Any = model
            default.policy = head(default.policy)
    else:
        model = source(trees.map_tree(lambda leaf: leaf.shape, spec), outputs)
    if not isinstance(model, nn.Module):
        raise TrainingError(f"model= made a {type(model).__name__}, not a torch.nn.Module")
    obs = trees.map_tree(_sample, spec)
    try:
        with torch.no_grad():
            if is_recurrent(model):
                state, begins = initial_state(model, 2), torch.ones(1, 2, dtype=torch.bool)
                found = model(trees.map_tree(lambda x: x[None], obs), state, begins)
                expected = f"(policy [1, 2, {outputs}], value [1, 2], state {list(state.shape)})"
            else:
                found = model(obs)
                expected = f"(policy [2, {outputs}], value [2])"
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise TrainingError(
            f"{type(model).__name__} fails on observations {_described(obs)}:"
            f" {type(error).__name__}: {error}"
        ) from error
    shapes = _shapes(found)
    if shapes != expected:
        what = f" ({outputs} is {outputs_are})" if outputs_are else ""
        raise TrainingError(
            f"{type(model).__name__} maps observations {_described(obs)} to {shapes};"
            f" expected {expected}{what}"
        )
    return model


def _sample(leaf: ObservationLeaf) -> Tensor:
    """Return two observations that are in the space."""
    least = np.reshape(leaf.starts, leaf.shape) if leaf.counts else 0
    return torch.from_numpy(np.full((2, *leaf.shape), least, leaf.dtype))


def _described(obs: Tree) -> str:
    """Describe the shape and type of each leaf."""
    return ", ".join(
        f"{trees.named(path)} of shape {list(leaf.shape)} ({str(leaf.dtype)[6:]})".lstrip()
        for path, leaf in trees.items(obs)
    )


def _shapes(found: object) -> str:
    if not isinstance(found, tuple):
        return f"a {type(found).__name__}"
    if not all(isinstance(part, Tensor) for part in found):
        return f"({', '.join(type(part).__name__ for part in found)})"
    names = ("policy", "value", "state", *["more"] * len(found))
    shapes = [f"{name} {list(part.shape)}" for name, part in zip(names, found, strict=False)]
    return f"({', '.join(shapes)})"
