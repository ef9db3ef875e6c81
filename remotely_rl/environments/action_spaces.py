"""Action spaces, and the policies over them.

A model returns `outputs` numbers per observation.  An action space interprets them as a
distribution, and converts actions drawn from it to the environment's:

    space            outputs            policy                            an action
    Discrete         n                  logits of n actions               int64 []
    MultiDiscrete    sum of the counts  concatenated logits per choice    int64 [choices]
    MultiBinary      2 per bit          the same, with counts of two      int64 [bits]
    Box              2 per coordinate   means, then log std + 1           float32 [coordinates]
    Dict, Tuple      sum of its parts'  concatenated policies of its      float32, concatenated
                                        parts                             actions of its parts

The policy over a bounded Box is defined on [-1, 1]; `to_environment` clips its actions and scales
them to the bounds.  In a Box of integers each integer has an equal part of [-1, 1].  Probabilities
are those of the action before this conversion.  The parts of a Dict or a Tuple are independent
given the observation.

Illegal actions have a logit of ILLEGAL, written by `masks.py`.  Their probability is 0, and so are
their contributions to the entropy and to every gradient.

`policy` is [..., outputs], `action` is [..., *shape], and results are [...].  The distributions
are pure functions (`functions/distributions.py`).
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remotely_rl import trees
from remotely_rl.environments.observations import check_is_not_empty
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import (
    Randoms,
    categorical_entropy,
    categorical_log_prob,
    categorical_mode,
    categorical_sample,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_mode,
    gaussian_sample,
    gaussian_start,
)
from remotely_rl.trees import Tree

BELOW_2_64 = np.nextafter(2.0**64, 0)  # the largest float that fits 64 bits


class Actions(Protocol):
    """The actions of an environment, and the distributions over them."""

    @property
    def outputs(self) -> int:
        """The number of outputs of a model's policy."""
        ...

    @property
    def choices(self) -> tuple[int, ...]:
        """The number of logits of each discrete choice, in order; empty for a Box."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one action in a trajectory."""
        ...

    @property
    def dtype(self) -> type[np.generic]:
        """The dtype of an action in a trajectory."""
        ...

    def sample(self, policy: Tensor, randoms: Randoms = None) -> Tensor:
        """Draw an action from each policy; each of several generators draws for an equal part."""
        ...

    def mode(self, policy: Tensor) -> Tensor:
        """Return the most probable action of each policy."""
        ...

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability, or log-density, of each action."""
        ...

    def entropy(self, policy: Tensor) -> Tensor:
        """Return the entropy of each policy, in nats."""
        ...

    def to_environment(self, action: NDArray[Any]) -> Any:
        """Convert actions [B, *shape] to a batch of those of the environment."""
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
    def choices(self) -> tuple[int, ...]:
        return (self.count,)

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, policy: Tensor, randoms: Randoms = None) -> Tensor:
        return categorical_sample(policy, randoms)

    def mode(self, policy: Tensor) -> Tensor:
        return categorical_mode(policy)

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        return categorical_log_prob(policy, action)

    def entropy(self, policy: Tensor) -> Tensor:
        return categorical_entropy(policy)

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(action + self.start)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several simultaneous choices, independent given the observation."""

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    dtype: ClassVar[type[np.generic]] = np.int64

    @property
    def outputs(self) -> int:
        return sum(self.counts)

    @property
    def choices(self) -> tuple[int, ...]:
        return self.counts

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.counts),)

    def sample(self, policy: Tensor, randoms: Randoms = None) -> Tensor:
        return self._each(policy, lambda logits: categorical_sample(logits, randoms))

    def mode(self, policy: Tensor) -> Tensor:
        return self._each(policy, categorical_mode)

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        pairs = zip(self._choices(policy), action.unbind(-1), strict=True)
        return torch.stack([categorical_log_prob(*pair) for pair in pairs], -1).sum(-1)

    def entropy(self, policy: Tensor) -> Tensor:
        return self._each(policy, categorical_entropy).sum(-1)

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(action + np.array(self.starts, action.dtype))

    def _choices(self, policy: Tensor) -> Iterable[Tensor]:
        return torch.split(policy, list(self.counts), -1)

    def _each(self, policy: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.stack([function(logits) for logits in self._choices(policy)], -1)


@dataclass(frozen=True)
class Continuous:
    """A vector, with a Gaussian policy whose coordinates are independent given the observation."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    box: tuple[int, ...]  # the shape in the environment
    box_dtype: str = "float32"  # the dtype in the environment, perhaps an integer one
    dtype: ClassVar[type[np.generic]] = np.float32

    @property
    def outputs(self) -> int:
        return 2 * len(self.low)

    @property
    def choices(self) -> tuple[int, ...]:
        return ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.low),)

    def sample(self, policy: Tensor, randoms: Randoms = None) -> Tensor:
        return gaussian_sample(policy, randoms)

    def mode(self, policy: Tensor) -> Tensor:
        return gaussian_mode(policy)

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        return gaussian_log_prob(policy, action)

    def entropy(self, policy: Tensor) -> Tensor:
        return gaussian_entropy(policy)

    def to_environment(self, action: NDArray[Any]) -> NDArray[Any]:
        low, high, dtype = *self._bounds, np.dtype(self.box_dtype)
        raw = np.asarray(action, np.float64)  # exact for the bounds of any smaller dtype
        fraction = (np.clip(raw, -1, 1) + 1) / 2  # of the way from low to high
        with np.errstate(invalid="ignore", over="ignore"):  # from unbounded coordinates
            if dtype.kind == "f":
                bounded = np.isfinite(low) & np.isfinite(high)
                scaled = np.where(bounded, low * (1 - fraction) + high * fraction, raw)
                result = np.clip(scaled.astype(dtype), low, high)
            else:  # modulo 2**64, which fits every dtype and every distance
                first, span = low.astype(np.uint64), high.astype(np.uint64) - low.astype(np.uint64)
                steps = np.minimum(fraction * (span.astype(np.float64) + 1), BELOW_2_64)
                result = (first + np.minimum(steps.astype(np.uint64), span)).astype(dtype)
        return np.asarray(result).reshape(len(action), *self.box)

    @functools.cached_property
    def _bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.array(self.low, self.box_dtype), np.array(self.high, self.box_dtype)


@dataclass(frozen=True)
class Composite:
    """The actions of a Dict or a Tuple.

    `parts` are the actions of its leaves, in order; `places` is the tree of their indices.  An
    action is one vector; float32 represents discrete actions exactly up to 24 bits.
    """

    parts: tuple[Actions, ...]
    places: Tree
    dtype: ClassVar[type[np.generic]] = np.float32

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @property
    def choices(self) -> tuple[int, ...]:
        return tuple(count for part in self.parts for count in part.choices)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(self._widths),)

    def sample(self, policy: Tensor, randoms: Randoms = None) -> Tensor:
        return self._joined(policy, lambda part, outputs: part.sample(outputs, randoms))

    def mode(self, policy: Tensor) -> Tensor:
        return self._joined(policy, lambda part, outputs: part.mode(outputs))

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        actions = torch.split(action, self._widths, -1)
        parts = zip(self.parts, self._split(policy), actions, strict=True)
        return self._sum(
            part.log_prob(
                outputs,
                (taken.long() if part.choices else taken).reshape((*taken.shape[:-1], *part.shape)),
            )
            for part, outputs, taken in parts
        )

    def entropy(self, policy: Tensor) -> Tensor:
        parts = zip(self.parts, self._split(policy), strict=True)
        return self._sum(part.entropy(outputs) for part, outputs in parts)

    def to_environment(self, action: NDArray[Any]) -> Any:
        split = np.split(action, np.cumsum(self._widths)[:-1], -1)
        actions = [
            part.to_environment(taken.astype(part.dtype).reshape(len(action), *part.shape))
            for part, taken in zip(self.parts, split, strict=True)
        ]
        return trees.map_tree(lambda place: actions[place], self.places)

    @property
    def _widths(self) -> list[int]:
        return [math.prod(part.shape) for part in self.parts]

    def _split(self, policy: Tensor) -> Sequence[Tensor]:
        return torch.split(policy, [part.outputs for part in self.parts], -1)

    def _joined(self, policy: Tensor, draw: Callable[[Actions, Tensor], Tensor]) -> Tensor:
        drawn = [
            draw(part, outputs).to(torch.float32).reshape(*policy.shape[:-1], width)
            for part, outputs, width in zip(
                self.parts, self._split(policy), self._widths, strict=True
            )
        ]
        return torch.cat(drawn, -1)

    @staticmethod
    def _sum(terms: Iterable[Tensor]) -> Tensor:
        return torch.stack(list(terms)).sum(0)


def of(space: gymnasium.Space[Any]) -> Actions:
    """Return the actions of a single environment's action space.

    Raises TrainingError for an unsupported space, and names the supported ones.
    """
    tree = tree_of(space)
    parts = [of_leaf(leaf, path) for path, leaf in trees.items(tree)]
    if tree is space:
        return parts[0]
    numbers = iter(range(len(parts)))
    return Composite(tuple(parts), trees.map_tree(lambda _: next(numbers), tree))


def check_is_discrete(name: str, actions: Actions) -> Discrete:
    """Return Discrete actions.  Raises TrainingError, naming the algorithm, for any others."""
    if isinstance(actions, Discrete):
        return actions
    other = "continuous actions use sac, td3 or ppo"
    if actions.choices:
        other = "several choices at once use ppo"
    raise TrainingError(f"{name} needs a Discrete(n) action space; for {other}")


def tree_of(space: gymnasium.Space[Any]) -> Tree:
    """Return the tree of a space's leaves: spaces other than Dict and Tuple, or empty ones."""
    match space:
        case gymnasium.spaces.Dict() if space.spaces:
            return {key: tree_of(part) for key, part in space.items()}
        case gymnasium.spaces.Tuple() if space.spaces:
            return tuple(tree_of(part) for part in space)
    return space


def of_leaf(space: gymnasium.Space[Any], path: trees.Path = ()) -> Actions:
    """Return the actions of the space at `path` in an environment's action space."""
    spaces = gymnasium.spaces
    where = f"action{trees.named(path)}" if path else "this environment's action space"
    check_is_not_empty(space, where)
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return MultiDiscrete(tuple(map(int, space.nvec)), tuple(map(int, space.start)))
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, (int, np.integer)):
        return MultiDiscrete((2,) * int(space.n), (0,) * int(space.n))
    if isinstance(space, spaces.Box) and (space.dtype.kind == "f" or space.is_bounded()):
        low, high = (tuple(bound.flatten().tolist()) for bound in (space.low, space.high))
        return Continuous(low, high, space.shape, space.dtype.name)
    raise TrainingError(
        f"{where} is {space}; supported are Discrete, MultiDiscrete and MultiBinary of one axis, a"
        " Box of floats, or of integers with bounds, and Dict and Tuple of these: wrap the"
        " environment to have one of these"
    )


def policy_start(actions: Actions, log_std: float) -> Tensor:
    """Return the outputs [outputs] of a policy with uniform choices, and with Gaussians around 0
    with this log standard deviation."""
    match actions:
        case Continuous():
            return gaussian_start(len(actions.low), log_std)
        case Composite():
            return torch.cat([policy_start(part, log_std) for part in actions.parts])
    return torch.zeros(actions.outputs)


def are_log_stds(actions: Actions) -> Tensor:
    """Return which outputs [outputs] of a policy are log standard deviations."""
    return policy_start(actions, 0.0) != policy_start(actions, 1.0)


def described(actions: Actions) -> str:
    """Return the number of outputs for each part, for messages; empty if there are no parts."""
    if not isinstance(actions, Composite):
        return ""
    paths = [path for path, _ in trees.items(actions.places)]
    return ", ".join(
        f"{part.outputs} for action{trees.named(path)}"
        for path, part in zip(paths, actions.parts, strict=True)
    )
