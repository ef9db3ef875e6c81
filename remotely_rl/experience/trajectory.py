"""Trajectory: rows of experience, `[T, B]`, as numpy arrays.

Row t holds observation t, the action taken on it, and the outcome.  There is one observation more
than rows: the last row bootstraps from the observation after the last action, which is also the
first of the next trajectory.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.experience.masked_rows import MaskedRows
from remotely_rl.trees import Tree


@dataclass(frozen=True)
class Trajectory:
    """T steps of B environments, in time order.

    The arrays are numpy's, so that a receiver need not import torch.  Observations that sampling
    has copied to a GPU are tensors there.
    """

    obs: Tree  # of arrays [T + 1, B, ...]
    action: NDArray[np.generic]  # [T, B, ...], as in `action_spaces.py`
    log_prob: NDArray[np.float32]  # [T, B], of the action, by the policy that chose it
    reward: NDArray[np.float32]  # [T, B], raw
    terminated: NDArray[np.bool_]  # [T, B]
    truncated: NDArray[np.bool_]  # [T, B]
    valid: NDArray[np.bool_]  # [T, B], false for autoreset rows
    begins: NDArray[np.bool_]  # [T + 1, B], true for the first observation of an episode
    value: NDArray[np.float32]  # [T + 1, B], V of the observations, by the model that acted
    state: NDArray[np.float32]  # [B, S], the model's memory before the first step; S may be 0
    version: NDArray[np.int64]  # [B], of the parameters that chose the actions

    def __post_init__(self) -> None:
        t, b = self.action.shape[:2]
        for name, want in {
            "obs": (t + 1, b),
            "log_prob": (t, b),
            "reward": (t, b),
            "terminated": (t, b),
            "truncated": (t, b),
            "valid": (t, b),
            "begins": (t + 1, b),
            "value": (t + 1, b),
            "state": (b,),
            "version": (b,),
        }.items():
            for path, array in trees.items(getattr(self, name)):
                got = array.shape[: len(want)]
                if got != want:
                    raise ValueError(
                        f"{name}{trees.named(path)} has shape {got}; expected {want} for {t} steps"
                        f" of {b}"
                    )

    @property
    def rows(self) -> MaskedRows:
        """The rows that are experience."""
        return MaskedRows(self.valid)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.action.shape[0])

    @property
    def width(self) -> int:
        """B."""
        return int(self.action.shape[1])


def columns(trajectory: Trajectory, which: slice) -> Trajectory:
    """Return the trajectory of some environments, as views."""
    return Trajectory(
        **{
            field.name: trees.map_tree(
                lambda x: x[which] if field.name in ("state", "version") else x[:, which],  # noqa: B023 - called at once
                getattr(trajectory, field.name),
            )
            for field in fields(Trajectory)
        }
    )


def stack(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Concatenate trajectories of the same length along B, in the order given."""
    lengths = {trajectory.steps for trajectory in trajectories}
    if len(lengths) != 1:
        raise ValueError(f"trajectories to stack must have the same length, not {sorted(lengths)}")
    if len(trajectories) == 1:
        return trajectories[0]
    return Trajectory(
        **{
            field.name: trees.join(
                functools.partial(_joined, 0 if field.name in ("state", "version") else 1),
                [getattr(trajectory, field.name) for trajectory in trajectories],
            )
            for field in fields(Trajectory)
        }
    )


def _joined(axis: int, arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis)
    import torch  # noqa: PLC0415 - imported already: these are its tensors

    return torch.cat(list(arrays), axis)
