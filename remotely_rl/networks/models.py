"""Networks that map a batch of observations to `(policy, value)`.

    obs     [N, ...]      uint8 images [N, channels, height, width], or float32
    policy  [N, outputs]  numbers that `action_spaces.py` makes a distribution of: logits, for
                          actions that are numbered
    value   [N]           of the observation

That is all an algorithm asks of a model; a user's own is any `torch.nn.Module` that does
it, given as the class (or a function) of `(observation_shape, outputs)`, or made.

A model with a memory has a method `initial_state(count)`, which returns float32
[count, S], and maps pieces of several steps:

    obs [T, B, ...], state [B, S], begins [T, B]  ->  policy [T, B, outputs], value [T, B],
                                                      state [B, S]

`begins` is true where an episode does: the memory there is the initial state.  `recurrent.py`
has two such, and asks models of both kinds about pieces of experience.

The networks here normalise what they see with a running mean and deviation of each pixel
or coordinate (`normaliser.py`).
"""

import copy
import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl.errors import TrainingError
from remotely_rl.networks.layers import ask, orthogonal, tanh_layers
from remotely_rl.networks.normaliser import (
    COUNTED_EVERY,
    Normaliser,
    State,
    count_in,
    load_statistics,
    normalises,
    statistics_of,
)
from remotely_rl.networks.recurrent import (
    Recurrent,
    RecurrentMLP,
    initial_state,
    is_recurrent,
    unroll,
)

# What a model is made of, and asked by, is to be had here too.
__all__ = [
    "ActorCritic",
    "COUNTED_EVERY",
    "MLP",
    "Maker",
    "NatureCNN",
    "Normaliser",
    "Recurrent",
    "RecurrentMLP",
    "ResNet",
    "SmallCNN",
    "State",
    "build",
    "count_in",
    "fitting",
    "initial_state",
    "is_recurrent",
    "load_state",
    "load_statistics",
    "normalises",
    "on_cpu",
    "state_of",
    "statistics_of",
    "unroll",
    "with_memory",
]

# What `model=` may be: a module, or what makes one of (observation_shape, outputs).
Maker = nn.Module | Callable[[tuple[int, ...], int], nn.Module]


class ActorCritic(nn.Module):
    """A normaliser, a body that maps to `width` features, and one linear head each."""

    def __init__(self, normaliser: Normaliser, body: nn.Module, width: int, outputs: int):
        super().__init__()
        self.normaliser = normaliser
        self.body = body
        self.width = width
        self.policy = nn.Linear(width, outputs)
        self.value = nn.Linear(width, 1)
        orthogonal(self.body, math.sqrt(2))
        orthogonal(self.policy, 0.01)  # starts close to uniform
        orthogonal(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self.normaliser(obs))
        return ask(self.policy, features), ask(self.value, features).squeeze(-1)


class NatureCNN(ActorCritic):
    """The three convolutions of Mnih et al. 2015 and 512 features, for 84x84 images."""

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        convolutions = nn.Sequential(
            nn.Conv2d(observation_shape[0], 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        body = _with_features(convolutions, observation_shape, 512)
        super().__init__(Normaliser(observation_shape), body, 512, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class SmallCNN(ActorCritic):
    """Two convolutions and 256 features, for 42x42 images.

    Steps of 3 and 2 pixels where IMPALA's shallow network has 4 and 2: Pong's ball is one
    pixel here, and with coarser steps the agent learns to return it but not to aim.  On a
    CPU it learns from ten times as many steps a second as NatureCNN does at 84x84.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        convolutions = nn.Sequential(
            nn.Conv2d(observation_shape[0], 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        body = _with_features(convolutions, observation_shape, 256)
        super().__init__(Normaliser(observation_shape), body, 256, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class ResNet(ActorCritic):
    """IMPALA's deep network: three stages of two residual blocks each, 15 convolutions.

    Espeholt et al. 2018, figure 3, without the LSTM.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        stages: list[nn.Module] = []
        channels = observation_shape[0]
        for width in (16, 32, 32):
            stages += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _Residual(width),
                _Residual(width),
            ]
            channels = width
        convolutions = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        body = _with_features(convolutions, observation_shape, 256)
        super().__init__(Normaliser(observation_shape), body, 256, outputs)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class _Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.layers(x))


class MLP(nn.Module):
    """Two layers of 64 each for policy and value, for observations that are a vector.

    They share nothing: values are large here, and in a shared layer drown the policy's
    gradient.  CartPole takes ten times as many steps with a shared one.
    """

    def __init__(self, observation_shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.normaliser = Normaliser(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, self.value_body = tanh_layers(inputs), tanh_layers(inputs)
        self.policy, self.value = nn.Linear(64, outputs), nn.Linear(64, 1)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        normal = self.normaliser(obs).flatten(1)
        policy = ask(self.policy, self.policy_body(normal))
        return policy, ask(self.value, self.value_body(normal)).squeeze(-1)


def with_memory(observation_shape: tuple[int, ...], outputs: int, units: int) -> nn.Module:
    """The network that fits the observations, with LSTMs of `units`."""
    kind = fitting(observation_shape)
    if kind is MLP:
        return RecurrentMLP(observation_shape, outputs, units)
    whole = kind(observation_shape, outputs)
    assert isinstance(whole, ActorCritic)
    return Recurrent(nn.Sequential(whole.normaliser, whole.body), whole.width, outputs, units)


def fitting(observation_shape: tuple[int, ...]) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The network for observations of this shape: by their size, images or not."""
    if len(observation_shape) == 3:
        side = min(observation_shape[1:])
        if side >= 64:
            return NatureCNN
        if side >= 20:
            return SmallCNN
    return MLP


def build(
    maker: Maker | None,
    observation_shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    outputs: int,
    units: int = 0,
) -> nn.Module:
    """Makes the model, the fitting one if none is given, and tries it on two observations.

    `units`, if not 0: the fitting one gets an LSTM of so many.  A module that is given made is
    copied.  Raises TrainingError, with the shapes expected and got, if the model does not map
    observations to `(policy, value)`.
    """
    if maker is not None and units:
        raise TrainingError(
            "lstm= adds a memory to the networks of remotely_rl; a model of your own brings its"
            " own (models.Recurrent), so leave lstm at 0"
        )
    if isinstance(maker, nn.Module):
        model = copy.deepcopy(maker)
    elif units:
        model = with_memory(observation_shape, outputs, units)
    else:
        model = (maker or fitting(observation_shape))(observation_shape, outputs)
    if not isinstance(model, nn.Module):
        raise TrainingError(f"model= made a {type(model).__name__}, a torch.nn.Module is wanted")
    obs = torch.from_numpy(np.zeros((2, *observation_shape), dtype))
    try:
        with torch.no_grad():
            if is_recurrent(model):
                state, begins = initial_state(model, 2), torch.ones(1, 2, dtype=torch.bool)
                out = model(obs[None], state, begins)
                want = f"(policy [1, 2, {outputs}], value [1, 2], state {list(state.shape)})"
            else:
                out = model(obs)
                want = f"(policy [2, {outputs}], value [2])"
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise TrainingError(
            f"{type(model).__name__} fails on observations of shape {list(obs.shape)}"
            f" ({dtype}): {error}"
        ) from error
    got = _shapes(out)
    if got != want:
        raise TrainingError(
            f"{type(model).__name__} maps observations {list(obs.shape)} to {got}; expected {want}"
        )
    return model


def on_cpu(model: nn.Module) -> nn.Module:
    """A copy for actors, which have no GPU."""
    return copy.deepcopy(model).cpu()


def state_of(model: nn.Module) -> dict[str, np.ndarray]:
    """Parameters and buffers as numpy arrays, copied: the learner may go on at once."""
    return {
        name: tensor.detach().cpu().contiguous().numpy().copy()
        for name, tensor in model.state_dict().items()
    }


def load_state(model: nn.Module, state: dict[str, np.ndarray]) -> None:
    """Writes what `state_of` read, possibly read-only, into a model of the same make on a CPU."""
    own = model.state_dict()
    if own.keys() != state.keys():
        raise ValueError(f"parameters of another model: {sorted(own.keys() ^ state.keys())}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(np.array(state[name])))  # writable, or torch warns


def _shapes(out: object) -> str:
    if not isinstance(out, tuple):
        return f"a {type(out).__name__}"
    if not all(isinstance(part, Tensor) for part in out):
        return f"({', '.join(type(part).__name__ for part in out)})"
    names = ("policy", "value", "state", *["more"] * len(out))
    shapes = [f"{name} {list(part.shape)}" for name, part in zip(names, out, strict=False)]
    return f"({', '.join(shapes)})"


def _with_features(convolutions: nn.Sequential, shape: tuple[int, ...], width: int) -> nn.Module:
    with torch.no_grad():
        flat = int(convolutions(torch.zeros(1, *shape)).shape[1])
    return nn.Sequential(convolutions, nn.Linear(flat, width), nn.ReLU())
