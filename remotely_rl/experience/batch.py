"""Batches: a trajectory as tensors, and the training data made from it.

    DeviceTrajectory   a trajectory [T, B] on the learner's device
    Batch              observations and transitions to train on; yields minibatches of experience

A `Trajectory` has numpy arrays, because it travels between processes.  The learner turns it into a
`DeviceTrajectory`, computes targets and advantages, and makes a `Batch` from them.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from remotely_rl import trees
from remotely_rl.experience.masked_rows import MaskedRows
from remotely_rl.trees import Tree


class DeviceTrajectory(NamedTuple):
    """A trajectory on the learner's device: [T, B] tensors unless a comment says otherwise."""

    obs: Tree  # of tensors [T + 1, B, ...]
    action: Tensor  # [T, B, ...]
    log_prob: Tensor  # of the action, by the policy that acted
    reward: Tensor  # clipped, if the config says so
    discount: Tensor  # gamma, or 0 where the episode ended
    rows: MaskedRows  # those that are experience; the fields of others are zeros
    begins: Tensor  # [T + 1, B]
    value: Tensor  # [T + 1, B], by the model that acted, in units of rewards
    state: Tensor  # [B, S]

    @property
    def valid(self) -> Tensor:
        """The mask of the rows that are experience, for recursions in time."""
        mask: Tensor = self.rows.valid
        return mask


class Transitions(NamedTuple):
    """The training data of each action: one row per transition, in any order."""

    action: Tensor
    old_log_prob: Tensor  # the denominator of a loss's probability ratio
    advantage: Tensor
    value_target: Tensor  # in the units of the model's values
    start_log_prob: Tensor  # by the policy before the update, the reference of approx_kl


class RecurrentInput(NamedTuple):
    """Inputs of a recurrent model besides observations: it runs over whole sequences."""

    state: Tensor  # [B, S]
    begins: Tensor  # [T, B]
    rows: MaskedRows  # [T, B]


class Batch(NamedTuple):
    """Observations and transitions.

    For a feed-forward model all are rows, [N, ...], in any order: those that are experience.  For a
    recurrent model all are [T, B, ...], and minibatches are cut along B only.
    """

    obs: Tree
    transitions: Transitions
    recurrent: RecurrentInput | None = None

    def minibatches(self, count: int, generator: torch.Generator) -> Iterator["Batch"]:
        """Shuffle the batch and yield `count` minibatches whose sizes differ by at most 1.

        With fewer rows there are fewer minibatches; none is without experience.  One minibatch is
        the batch itself, and draws no random numbers.
        """
        if count == 1:
            yield self
            return
        leaf = trees.first(self.obs)
        if self.recurrent is None:
            for which in _shuffled(torch.arange(len(leaf)), count, generator, leaf.device):
                yield Batch(
                    trees.map_tree(lambda x: x[which], self.obs),  # noqa: B023 - called at once
                    Transitions(*(part[which] for part in self.transitions)),
                )
            return
        state, begins, rows = self.recurrent
        for which in _shuffled(rows.columns, count, generator, leaf.device):
            yield Batch(
                trees.map_tree(lambda x: x[:, which], self.obs),  # noqa: B023 - called at once
                Transitions(*(part[:, which] for part in self.transitions)),
                RecurrentInput(state[which], begins[:, which], rows.of(which)),
            )

    @property
    def obs_rows(self) -> Tree:
        """The observations of experience as rows, [N, ...]."""
        return self.obs if self.recurrent is None else self.recurrent.rows.select(self.obs)

    @property
    def transition_rows(self) -> Transitions:
        """The transitions of experience as rows, in the order of `forward`."""
        if self.recurrent is None:
            return self.transitions
        return Transitions(*map(self.recurrent.rows.select, self.transitions))

    def forward(self, network: Callable[..., Any]) -> tuple[Tensor, Tensor, Transitions]:
        """Run a network; return policy [rows, outputs], value [rows], and their transitions."""
        if self.recurrent is None:
            policy, value = network(self.obs)
            return full(policy), full(value), self.transitions
        state, begins, rows = self.recurrent
        policy, value, _ = network(self.obs, state, begins)
        return full(rows.select(policy)), full(rows.select(value)), self.transition_rows


def full(output: Tensor) -> Tensor:
    """Return a network's output in float32, for losses; float64 stays float64."""
    return output if output.dtype == torch.float64 else output.float()


def _shuffled(
    which: Tensor, count: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, ...]:
    """Return `which` in a random order, in at most `count` parts, none of them empty."""
    order = torch.randperm(len(which), generator=generator).to(device)
    return which.to(device)[order].tensor_split(min(count, len(which)))
