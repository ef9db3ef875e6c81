"""What an agent may do, and what a policy's numbers mean.

A model ends in `outputs` numbers for each observation, whatever the actions are; here those
numbers become a distribution.  One class a Gymnasium space:

    space            outputs            policy                          an action
    Discrete         n                  logits of n actions             int64 []
    MultiDiscrete    sum of the counts  logits, one choice after other  int64 [choices]
    MultiBinary      2 a bit            the same, with counts of two    int64 [bits]
    Box              2 a coordinate     means, then log deviations + 1  float32 [coordinates]

A Box is acted on in its own units: the policy lives on [-1, 1], where it has bounds, and
`to_environment` clips and stretches.  Probabilities are those of the action before the clip.

All functions are pure: `policy` is [..., outputs], `action` [..., *shape], and what they
return is [...].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remotely_rl.errors import TrainingError

# What a model that says zero means.  With a deviation of 1 a third of all actions on [-1, 1] are
# clipped, and HalfCheetah's return after a million steps was 1,200 to 1,600; with this it was 2,900
# to 5,000.  With -2 two seeds of three had not learnt Pendulum after six minutes.
FIRST_LOG_DEVIATION = -1.0
# Beyond these a deviation is no number that a gradient could move.
MIN_LOG_DEVIATION, MAX_LOG_DEVIATION = -5.0, 2.0


class Actions(Protocol):
    """What the environments take, and the distributions over it."""

    @property
    def outputs(self) -> int:
        """How many numbers a model's policy has."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action, as trajectories hold it."""
        ...

    @property
    def dtype(self) -> type[np.generic]:
        """Of an action, as trajectories hold it."""
        ...

    def sample(self, policy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """An action drawn from each policy."""
        ...

    def mode(self, policy: Tensor) -> Tensor:
        """The likeliest action of each policy."""
        ...

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        """The log-probability, or log-density, of each action."""
        ...

    def entropy(self, policy: Tensor) -> Tensor:
        """The entropy of each policy, in nats."""
        ...

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        """Actions [B, *shape] as the environment wants them."""
        ...


@dataclass(frozen=True)
class Discrete:
    """One of `count` actions, which the environment numbers from `start`."""

    count: int
    start: int = 0
    dtype: ClassVar[type[np.generic]] = np.int64

    @property
    def outputs(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, policy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        # The first of exponential clocks that run at these rates is a draw from the softmax.
        clocks = torch.empty_like(policy).exponential_(generator=generator)
        return (policy - clocks.log()).argmax(-1)

    def mode(self, policy: Tensor) -> Tensor:
        return policy.argmax(-1)

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        return torch.log_softmax(policy, -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        log_prob = torch.log_softmax(policy, -1)
        return -(log_prob.exp() * log_prob).sum(-1)

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(action + self.start)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once, independent given the observation."""

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    dtype: ClassVar[type[np.generic]] = np.int64

    @property
    def outputs(self) -> int:
        return sum(self.counts)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.counts),)

    def sample(self, policy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self._each(policy, lambda choice, part: choice.sample(part, generator))

    def mode(self, policy: Tensor) -> Tensor:
        return self._each(policy, Discrete.mode)

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        one_each = iter(action.unbind(-1))
        return self._each(policy, lambda choice, part: choice.log_prob(part, next(one_each))).sum(
            -1
        )

    def entropy(self, policy: Tensor) -> Tensor:
        return self._each(policy, Discrete.entropy).sum(-1)

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(action + np.array(self.starts, action.dtype))

    def _each(self, policy: Tensor, of: Callable[[Discrete, Tensor], Tensor]) -> Tensor:
        parts = torch.split(policy, list(self.counts), -1)
        return torch.stack(
            [of(Discrete(n), p) for n, p in zip(self.counts, parts, strict=True)], -1
        )


@dataclass(frozen=True)
class Continuous:
    """A vector, by a Gaussian whose coordinates are independent given the observation."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    box: tuple[int, ...]  # the shape that the environment gives the vector
    dtype: ClassVar[type[np.generic]] = np.float32

    @property
    def outputs(self) -> int:
        return 2 * len(self.low)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.low),)

    def sample(self, policy: Tensor, generator: torch.Generator | None = None) -> Tensor:
        mean, log_deviation = _gaussian(policy)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return mean + log_deviation.exp() * noise

    def mode(self, policy: Tensor) -> Tensor:
        return _gaussian(policy)[0]

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        mean, log_deviation = _gaussian(policy)
        away = (action - mean) * torch.exp(-log_deviation)
        return (-0.5 * away.square() - log_deviation - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        _, log_deviation = _gaussian(policy)
        return (log_deviation + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore"):  # of the coordinates without bounds
            stretched = low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)
        own_units = np.where(bounded, stretched, np.clip(action, low, high))
        return np.asarray(own_units, np.float32).reshape(len(action), *self.box)


def _gaussian(policy: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log deviations, in float32: on a GPU the numbers may come as bfloat16."""
    mean, log_deviation = policy.float().chunk(2, -1)
    log_deviation = log_deviation + FIRST_LOG_DEVIATION
    return mean, log_deviation.clamp(MIN_LOG_DEVIATION, MAX_LOG_DEVIATION)


def of(space: gymnasium.Space[Any]) -> Actions:
    """The actions of a single environment's space.

    Raises TrainingError for a space that no policy here fits, and says which do.
    """
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscrete(tuple(map(int, space.nvec)), tuple(map(int, space.start)))
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, (int, np.integer)):
        return MultiDiscrete((2,) * int(space.n), (0,) * int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.flatten(), space.high.flatten()
        return Continuous(tuple(map(float, low)), tuple(map(float, high)), space.shape)
    raise TrainingError(
        f"this environment's actions are {space}; what fits is Discrete, MultiDiscrete and"
        " MultiBinary of one axis, and a Box of floats; wrap the environment to have one of those"
    )
