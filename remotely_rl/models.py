"""Networks that map a batch of observations to `(logits, value)`.

    obs     [N, ...]      uint8 images [N, channels, height, width], or float32
    logits  [N, actions]  of the policy
    value   [N]           of the observation

That is all an algorithm asks of a model; a user's own is any `torch.nn.Module` that does
it, given as the class (or a function) of `(observation_shape, action_count)`, or made.

The networks here normalise what they see with a running mean and deviation of each pixel
or coordinate.  It is no nicety: Pong's background alone, at a raw pixel / 255, kills four
units in five of the first layer within 50,000 steps and learning with them.
"""

import copy
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl.errors import TrainingError

# What `model=` may be: a module, or what makes one of (observation_shape, action_count).
Maker = nn.Module | Callable[[tuple[int, ...], int], nn.Module]


class Normaliser(nn.Module):
    """Subtracts the running mean of each coordinate and divides by its running deviation.

    [N, ...] of any dtype -> float32 of the same shape.  In training mode each batch is
    counted in first; an actor, in eval mode, uses what it was sent.  The statistics are
    buffers: they travel and are saved with the weights.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], horizon: int = 200_000, floor: float = 0.03):
        """Old batches fade once `horizon` rows are counted; `floor` is added to the deviation,
        in units of the input's range (255 for uint8)."""
        super().__init__()
        self.horizon = horizon
        self.floor = floor
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        if self.training:
            # One row in 7 tells as much, and 7 is prime to the usual numbers of environments.
            self.count_in(obs[::7])
        scale = 1 / (self.variance.sqrt() + self.floor)
        unit = scale / 255 if obs.dtype == torch.uint8 else scale
        # In place: at these sizes a fresh tensor costs more (page faults) than the sum on it.
        normal = obs.to(torch.float32, copy=True, memory_format=_layout(obs))
        return normal.mul_(_like(unit, obs)).sub_(_like(self.mean * scale, obs)).clamp_(-10, 10)

    @torch.no_grad()
    def count_in(self, obs: Tensor) -> None:
        """Counts a batch [N, ...] into the statistics (Chan et al.'s parallel update)."""
        x = obs.to(torch.float32, copy=True)
        if obs.dtype == torch.uint8:
            x.div_(255)
        rows = float(len(x))
        total = self.count + rows
        away = x.sub_(self.mean).mean(0)
        spread = x.square_().mean(0) - away.square()
        joint = spread * rows + away.square() * (self.count * rows / total)
        self.variance.mul_(self.count).add_(joint).div_(total).clamp_(min=0)
        self.mean += away * rows / total
        self.count.copy_(total.clamp(max=self.horizon))


def _layout(obs: Tensor) -> torch.memory_format:
    """Channels last for images: on a CPU, convolutions are a sixth to a third faster so."""
    return torch.channels_last if obs.dim() == 4 else torch.contiguous_format


def _like(statistic: Tensor, obs: Tensor) -> Tensor:
    return statistic[None].contiguous(memory_format=_layout(obs))


class ActorCritic(nn.Module):
    """A normaliser, a body that maps to `width` features, and one linear head each."""

    def __init__(self, normaliser: Normaliser, body: nn.Module, width: int, action_count: int):
        super().__init__()
        self.normaliser = normaliser
        self.body = body
        self.policy = nn.Linear(width, action_count)
        self.value = nn.Linear(width, 1)
        _orthogonal(self.body, math.sqrt(2))
        _orthogonal(self.policy, 0.01)  # starts close to uniform
        _orthogonal(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self.normaliser(obs))
        return self.policy(features), self.value(features).squeeze(-1)


class NatureCNN(ActorCritic):
    """The three convolutions of Mnih et al. 2015 and 512 features, for 84x84 images."""

    def __init__(self, observation_shape: tuple[int, ...], action_count: int):
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
        super().__init__(Normaliser(observation_shape), body, 512, action_count)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class SmallCNN(ActorCritic):
    """Two convolutions and 256 features, for 42x42 images.

    Steps of 3 and 2 pixels where IMPALA's shallow network has 4 and 2: Pong's ball is one
    pixel here, and with coarser steps the agent learns to return it but not to aim.  On a
    CPU it learns from ten times as many steps a second as NatureCNN does at 84x84.
    """

    def __init__(self, observation_shape: tuple[int, ...], action_count: int):
        convolutions = nn.Sequential(
            nn.Conv2d(observation_shape[0], 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        body = _with_features(convolutions, observation_shape, 256)
        super().__init__(Normaliser(observation_shape), body, 256, action_count)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class MLP(nn.Module):
    """Two layers of 64 each for policy and value, for observations that are a vector.

    They share nothing: values are large here, and in a shared layer drown the policy's
    gradient.  CartPole takes ten times as many steps with a shared one.
    """

    def __init__(self, observation_shape: tuple[int, ...], action_count: int):
        super().__init__()
        self.normaliser = Normaliser(observation_shape)
        inputs = math.prod(observation_shape)
        self.policy_body, self.value_body = _hidden(inputs), _hidden(inputs)
        self.policy, self.value = nn.Linear(64, action_count), nn.Linear(64, 1)
        _orthogonal(self.policy, 0.01)
        _orthogonal(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        normal = self.normaliser(obs).flatten(1)
        logits = self.policy(self.policy_body(normal))
        return logits, self.value(self.value_body(normal)).squeeze(-1)


def _hidden(inputs: int) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    _orthogonal(layers, math.sqrt(2))
    return layers


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
    action_count: int,
) -> nn.Module:
    """Makes the model, the fitting one if none is given, and tries it on two observations.

    A module that is given made is copied.  Raises TrainingError, with the shapes expected
    and got, if the model does not map observations to `(logits, value)`.
    """
    if isinstance(maker, nn.Module):
        model = copy.deepcopy(maker)
    else:
        model = (maker or fitting(observation_shape))(observation_shape, action_count)
    if not isinstance(model, nn.Module):
        raise TrainingError(f"model= made a {type(model).__name__}, a torch.nn.Module is wanted")
    obs = torch.from_numpy(np.zeros((2, *observation_shape), dtype))
    try:
        with torch.no_grad():
            out = model(obs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise TrainingError(
            f"{type(model).__name__} fails on observations of shape {list(obs.shape)}"
            f" ({dtype}): {error}"
        ) from error
    want = f"(logits [2, {action_count}], value [2])"
    got = _shapes(out)
    if got != want:
        raise TrainingError(
            f"{type(model).__name__} maps observations {list(obs.shape)} to {got}; expected {want}"
        )
    return model


def state_of(model: nn.Module) -> dict[str, np.ndarray]:
    """Parameters and buffers as numpy arrays, copied: the learner may go on at once."""
    return {name: tensor.detach().numpy().copy() for name, tensor in model.state_dict().items()}


def load_state(model: nn.Module, state: dict[str, np.ndarray]) -> None:
    """Writes what `state_of` read, possibly read-only, into a model of the same make."""
    own = model.state_dict()
    if own.keys() != state.keys():
        raise ValueError(f"parameters of another model: {sorted(own.keys() ^ state.keys())}")
    for name, tensor in own.items():
        np.copyto(tensor.numpy(), state[name])


def _shapes(out: object) -> str:
    if not isinstance(out, tuple) or len(out) != 2:
        return f"a {type(out).__name__}"
    if not all(isinstance(part, Tensor) for part in out):
        return f"({', '.join(type(part).__name__ for part in out)})"
    return f"(logits {list(out[0].shape)}, value {list(out[1].shape)})"


def _with_features(convolutions: nn.Sequential, shape: tuple[int, ...], width: int) -> nn.Module:
    with torch.no_grad():
        flat = int(convolutions(torch.zeros(1, *shape)).shape[1])
    return nn.Sequential(convolutions, nn.Linear(flat, width), nn.ReLU())


def _orthogonal(module: nn.Module, gain: float) -> None:
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(part.weight, gain)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
