"""Action spaces, and the policies over them.

A model returns `outputs` numbers for each observation.  An action space says what these mean as
a distribution, and turns the actions drawn from it into those of the environment:

    space            outputs            policy                          an action
    Discrete         n                  logits of n actions             int64 []
    MultiDiscrete    sum of the counts  logits, one choice after other  int64 [choices]
    MultiBinary      2 a bit            the same, with counts of two    int64 [bits]
    Box              2 a coordinate     means, then log std + 1         float32 [coordinates]
    Dict, Tuple      those of its       those of its parts, one after   float32, the actions of its
                     parts              the other                       parts one after the other

The policy over a Box with bounds lives on [-1, 1]; `to_environment` clips its actions and scales
them to the bounds.  In a Box of integers each has an equal part of [-1, 1].  Probabilities are
those of the action before that.  The parts of a Dict or a Tuple are independent given the
observation.

Illegal actions have a logit of ILLEGAL, which `masks.py` writes there.  Their probability is 0, and
so is their part of the entropy and of every gradient.

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
        """How many numbers a model's policy has."""
        ...

    @property
    def choices(self) -> tuple[int, ...]:
        """How many logits each discrete choice has, in their order; none for a Box."""
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
        """Draw an action from each policy; several generators draw for equal parts of them."""
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
    """Several choices at once, independent given the observation."""

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
    box: tuple[int, ...]  # the shape that the vector has in the environment
    box_dtype: str = "float32"  # and its dtype, perhaps one of integers
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
        given = np.asarray(action, np.float64)  # in which no bound of a smaller dtype is rounded
        part = (np.clip(given, -1, 1) + 1) / 2  # of the way from low to high
        with np.errstate(invalid="ignore", over="ignore"):  # from coordinates without bounds
            if dtype.kind == "f":
                bounded = np.isfinite(low) & np.isfinite(high)
                wanted = np.where(bounded, low * (1 - part) + high * part, given)
                inside = np.clip(wanted.astype(dtype), low, high)
            else:  # modulo 2**64, where neither dtype nor distance is too large
                first, span = low.astype(np.uint64), high.astype(np.uint64) - low.astype(np.uint64)
                steps = np.minimum(part * (span.astype(np.float64) + 1), BELOW_2_64)
                inside = (first + np.minimum(steps.astype(np.uint64), span)).astype(dtype)
        return np.asarray(inside).reshape(len(action), *self.box)

    @functools.cached_property
    def _bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.array(self.low, self.box_dtype), np.array(self.high, self.box_dtype)


@dataclass(frozen=True)
class Composite:
    """The actions of a Dict or a Tuple.

    `parts` are those of its leaves, in order; `places` is the tree of their indices.  An action is
    one vector, in which the numbers of discrete actions are exact: float32 has 24 bits for them.
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
        return self._joined(policy, lambda part, of_part: part.sample(of_part, randoms))

    def mode(self, policy: Tensor) -> Tensor:
        return self._joined(policy, lambda part, of_part: part.mode(of_part))

    def log_prob(self, policy: Tensor, action: Tensor) -> Tensor:
        actions = torch.split(action, self._widths, -1)
        of_parts = zip(self.parts, self._split(policy), actions, strict=True)
        return self._sum(
            part.log_prob(
                of_part,
                (taken.long() if part.choices else taken).reshape((*taken.shape[:-1], *part.shape)),
            )
            for part, of_part, taken in of_parts
        )

    def entropy(self, policy: Tensor) -> Tensor:
        of_parts = zip(self.parts, self._split(policy), strict=True)
        return self._sum(part.entropy(of_part) for part, of_part in of_parts)

    def to_environment(self, action: NDArray[Any]) -> Any:
        taken = np.split(action, np.cumsum(self._widths)[:-1], -1)
        actions = [
            part.to_environment(of_part.astype(part.dtype).reshape(len(action), *part.shape))
            for part, of_part in zip(self.parts, taken, strict=True)
        ]
        return trees.map_tree(lambda place: actions[place], self.places)

    @property
    def _widths(self) -> list[int]:
        return [math.prod(part.shape) for part in self.parts]

    def _split(self, policy: Tensor) -> Sequence[Tensor]:
        return torch.split(policy, [part.outputs for part in self.parts], -1)

    def _joined(self, policy: Tensor, draw: Callable[[Actions, Tensor], Tensor]) -> Tensor:
        drawn = [
            draw(part, of_part).to(torch.float32).reshape(*policy.shape[:-1], width)
            for part, of_part, width in zip(
                self.parts, self._split(policy), self._widths, strict=True
            )
        ]
        return torch.cat(drawn, -1)

    @staticmethod
    def _sum(of_parts: Iterable[Tensor]) -> Tensor:
        return torch.stack(list(of_parts)).sum(0)


def of(space: gymnasium.Space[Any]) -> Actions:
    """Return the actions of a single environment's action space.

    Raises TrainingError for a space that no policy here fits, and says which spaces do.
    """
    tree = tree_of(space)
    parts = [of_leaf(leaf, path) for path, leaf in trees.items(tree)]
    if tree is space:
        return parts[0]
    numbers = iter(range(len(parts)))
    return Composite(tuple(parts), trees.map_tree(lambda _: next(numbers), tree))


def tree_of(space: gymnasium.Space[Any]) -> Tree:
    """Return the tree of a space's leaves: those that are no Dict or Tuple, or an empty one."""
    match space:
        case gymnasium.spaces.Dict() if space.spaces:
            return {key: tree_of(part) for key, part in space.items()}
        case gymnasium.spaces.Tuple() if space.spaces:
            return tuple(tree_of(part) for part in space)
    return space


def of_leaf(space: gymnasium.Space[Any], path: trees.Path = ()) -> Actions:
    """Return the actions of a space, which is at `path` in an environment's action space."""
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
    """Return a policy [outputs] of choices that are alike, and of Gaussians around 0 with this
    log standard deviation."""
    match actions:
        case Continuous():
            return gaussian_start(len(actions.low), log_std)
        case Composite():
            return torch.cat([policy_start(part, log_std) for part in actions.parts])
    return torch.zeros(actions.outputs)


def described(actions: Actions) -> str:
    """Return which outputs of a model are for which part, for messages; nothing if it has none."""
    if not isinstance(actions, Composite):
        return ""
    paths = [path for path, _ in trees.items(actions.places)]
    return ", ".join(
        f"{part.outputs} for action{trees.named(path)}"
        for path, part in zip(paths, actions.parts, strict=True)
    )
