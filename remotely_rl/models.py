"""Networks that map a batch of observations to `(policy, value)`.

    obs     [N, ...]      uint8 images [N, channels, height, width], or float32
    policy  [N, outputs]  numbers that `actions.py` makes a distribution of: logits, for
                          actions that are numbered
    value   [N]           of the observation

That is all an algorithm asks of a model; a user's own is any `torch.nn.Module` that does
it, given as the class (or a function) of `(observation_shape, outputs)`, or made.

A model with a memory has a method `initial_state(count)`, which returns float32
[count, S], and maps pieces of several steps:

    obs [T, B, ...], state [B, S], begins [T, B]  ->  policy [T, B, outputs], value [T, B],
                                                      state [B, S]

`begins` is true where an episode does: the memory there is the initial state.  `Recurrent`
below is one such, and `unroll` asks models of both kinds about pieces of experience.

The networks here normalise what they see with a running mean and deviation of each pixel
or coordinate.  It is no nicety: Pong's background alone, at a raw pixel / 255, kills four
units in five of the first layer within 50,000 steps and learning with them.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl.errors import TrainingError

# What `model=` may be: a module, or what makes one of (observation_shape, outputs).
Maker = nn.Module | Callable[[tuple[int, ...], int], nn.Module]
# Tensors of a model as arrays, by their names.
State = dict[str, NDArray[Any]]


class Normaliser(nn.Module):
    """Subtracts the running mean of each coordinate and divides by its running deviation.

    [N, ...] of any dtype -> float32 of the same shape.  What it is asked about is not counted:
    who learns does so once for each batch of observations (`count_in`, below), between two
    updates, so that actors and learner see the same numbers.  The statistics are buffers: they
    travel and are saved with the weights.
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
        self._kept: tuple[object, tuple[Tensor, Tensor]] | None = None
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        scale, shift = self._affine(obs)
        # In place: at these sizes a fresh tensor costs more (page faults) than the sum on it.
        normal = obs.to(torch.float32, copy=True, memory_format=_layout(obs))
        return normal.mul_(scale).sub_(shift).clamp_(-10, 10)

    def _affine(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """By what observations are multiplied, and what is subtracted then.

        Kept for actors, who ask many times between two updates of the statistics.
        """
        of = (self.mean._version, self.variance._version, obs.dtype, obs.dim())
        if torch.is_inference_mode_enabled() and self._kept and self._kept[0] == of:
            return self._kept[1]
        scale = 1 / (self.variance.sqrt() + self.floor)
        unit = scale / 255 if obs.dtype == torch.uint8 else scale
        affine = _like(unit, obs), _like(self.mean * scale, obs)
        if torch.is_inference_mode_enabled():
            self._kept = (of, affine)
        return affine

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


# One row in 7 tells as much, and 7 is prime to the usual numbers of environments.
COUNTED_EVERY = 7


def count_in(model: nn.Module, obs: Tensor, every: int = COUNTED_EVERY) -> None:
    """Counts observations [N, ...], of which so many are one, into every Normaliser of a model."""
    for part in model.modules():
        if isinstance(part, Normaliser):
            part.count_in(obs[::every])


def statistics_of(model: nn.Module) -> State:
    """What the Normalisers of a model have counted, copied."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in _statistics(model).items()}


def load_statistics(model: nn.Module, statistics: State) -> None:
    """Writes what `statistics_of` read into a model of the same make."""
    for name, tensor in _statistics(model).items():
        tensor.copy_(torch.from_numpy(np.array(statistics[name])))  # writable, or torch warns


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": tensor
        for name, part in model.named_modules()
        if isinstance(part, Normaliser)
        for key, tensor in part.named_buffers()
    }


def normalises(model: nn.Module) -> bool:
    """Whether there is a Normaliser in a model."""
    return any(isinstance(part, Normaliser) for part in model.modules())


class ActorCritic(nn.Module):
    """A normaliser, a body that maps to `width` features, and one linear head each."""

    def __init__(self, normaliser: Normaliser, body: nn.Module, width: int, outputs: int):
        super().__init__()
        self.normaliser = normaliser
        self.body = body
        self.width = width
        self.policy = nn.Linear(width, outputs)
        self.value = nn.Linear(width, 1)
        _orthogonal(self.body, math.sqrt(2))
        _orthogonal(self.policy, 0.01)  # starts close to uniform
        _orthogonal(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(self.normaliser(obs))
        return _head(self.policy, features), _head(self.value, features).squeeze(-1)


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
        self.policy_body, self.value_body = _hidden(inputs), _hidden(inputs)
        self.policy, self.value = nn.Linear(64, outputs), nn.Linear(64, 1)
        _orthogonal(self.policy, 0.01)
        _orthogonal(self.value, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        normal = self.normaliser(obs).flatten(1)
        policy = _head(self.policy, self.policy_body(normal))
        return policy, _head(self.value, self.value_body(normal)).squeeze(-1)


class Recurrent(nn.Module):
    """An LSTM between a network's features and its heads.

    `state` is its hidden and cell state side by side, [B, 2 * units], zero at first.
    """

    def __init__(self, features: nn.Module, width: int, outputs: int, units: int = 256):
        """`features` maps observations [N, ...] to [N, width]."""
        super().__init__()
        self.features = features
        self.units = units
        self.lstm = nn.LSTM(width, units)
        self.policy, self.value = nn.Linear(units, outputs), nn.Linear(units, 1)
        for name, weight in self.lstm.named_parameters():
            nn.init.orthogonal_(weight) if "weight" in name else nn.init.zeros_(weight)
        _orthogonal(self.policy, 0.01)
        _orthogonal(self.value, 1.0)

    def initial_state(self, count: int) -> Tensor:
        """What it remembers before an episode: nothing."""
        return torch.zeros(count, 2 * self.units)

    def forward(self, obs: Tensor, state: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        steps, width = obs.shape[:2]
        features = self.features(obs.flatten(0, 1)).view(steps, width, -1)
        # One call of the LSTM for each stretch in which no episode begins.
        cuts = [t for t in range(1, steps) if bool(begins[t].any())]
        seen = []
        for start, stop in zip([0, *cuts], [*cuts, steps], strict=True):
            state = state * ~begins[start][:, None]
            hidden, cell = (part.contiguous() for part in state[None].chunk(2, -1))
            out, (hidden, cell) = self.lstm(features[start:stop], (hidden, cell))
            state = torch.cat((hidden, cell), -1)[0]
            seen.append(out)
        memory = torch.cat(seen)
        return _head(self.policy, memory), _head(self.value, memory).squeeze(-1), state.float()


def with_memory(observation_shape: tuple[int, ...], outputs: int, units: int) -> Recurrent:
    """The network that fits the observations, with an LSTM of `units`."""
    if len(observation_shape) == 3:
        whole = fitting(observation_shape)(observation_shape, outputs)
        if isinstance(whole, ActorCritic):
            features = nn.Sequential(whole.normaliser, whole.body)
            return Recurrent(features, whole.width, outputs, units)
    inputs = math.prod(observation_shape)
    features = nn.Sequential(Normaliser(observation_shape), nn.Flatten(), _hidden(inputs))
    return Recurrent(features, 64, outputs, units)


def is_recurrent(model: nn.Module) -> bool:
    """Whether a model has a memory."""
    return hasattr(model, "initial_state")


def initial_state(model: nn.Module, count: int) -> Tensor:
    """A model's memory before an episode, [count, S]; S is 0 if it has none."""
    if not is_recurrent(model):
        return torch.zeros(count, 0)
    return cast(Tensor, model.initial_state(count))  # type: ignore[operator]


def unroll(
    model: Callable[..., Any], obs: Tensor, state: Tensor, begins: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Asks a model of either kind about [T, B] observations: policy, value, memory after."""
    if state.shape[-1]:
        return cast(tuple[Tensor, Tensor, Tensor], model(obs, state, begins))
    # In pieces: one [T * B] batch of images would not stay in the cache of a CPU.
    flat = obs.flatten(0, 1)
    size = len(flat) if flat.is_cuda else 256
    pieces = [model(piece) for piece in torch.split(flat, size)]
    policy, value = (torch.cat(part) for part in zip(*pieces, strict=True))
    return policy.view(*obs.shape[:2], -1), value.view(obs.shape[:2]), state


def _head(layer: nn.Linear, features: Tensor) -> Tensor:
    """In float32, whatever the body computes in: actions may differ by less than bfloat16 tells."""
    with torch.autocast(features.device.type, enabled=False):
        return cast(Tensor, layer(features.float()))


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


def _orthogonal(module: nn.Module, gain: float) -> None:
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(part.weight, gain)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
