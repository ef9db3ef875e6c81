"""Board: the rows of all environments of a VectorEnv, in one block of shared memory.

    observations   [n, ...] per leaf, twice: steps write the two in turn
    actions        [n, ...] per leaf
    rewards, terminated, truncated   [n]
    mail           [hosts, MAIL]: the pickled infos of a host's step, one part at a time
    mail_nbytes    [hosts]: PENDING until the host has taken the step; then the length of the part,
                   negative if more follow; FAILED if the host's call of `serve` is about to raise

Each host writes its own rows, from `begins[host]` to `begins[host + 1]`.  bells.py has the order.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import remotely
from remotely_rl import trees
from remotely_rl.supervision.rows import EnvRows, leaves_of

MAIL = 1 << 16
FAILED = np.iinfo(np.int64).min
PENDING = FAILED + 1
ALIGNMENT = 64


class Board:
    """The memory and arrays over it.  A pickled Board shares the memory with the original.

    Raises TypeError for a space with parts that are not arrays.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        begins: Sequence[int],
        memory: "remotely.SharedArray | None" = None,
    ):
        """`begins` are the first rows of all hosts, and the number of rows."""
        self._arguments = observation_space, action_space, list(begins)
        self.begins, count, hosts = list(begins), begins[-1], len(begins) - 1
        fields: list[tuple[Any, tuple[int, ...]]] = [
            *2 * [(leaf.dtype, (count, *leaf.shape)) for leaf in leaves_of(observation_space)],
            *((leaf.dtype, (count, *leaf.shape)) for leaf in leaves_of(action_space)),
            (np.float64, (count,)),
            (np.bool_, (count,)),
            (np.bool_, (count,)),
            (np.uint8, (hosts, MAIL)),
            (np.int64, (hosts,)),
        ]
        sizes = [_aligned(np.dtype(one).itemsize * int(np.prod(shape))) for one, shape in fields]
        self.memory = memory or remotely.SharedArray(sum(sizes), np.uint8)
        arrays: list[NDArray[Any]] = []
        offset = 0
        for (dtype, shape), size in zip(fields, sizes, strict=True):
            arrays.append(np.ndarray(shape, dtype, self.memory.array, offset))
            offset += size
        *parts, self.rewards, self.terminated, self.truncated, self.mail, self.mail_nbytes = arrays
        leaves = len(list(leaves_of(observation_space)))
        self.observations = parts[:leaves], parts[leaves : 2 * leaves]
        self._actions = EnvRows(action_space, count, parts[2 * leaves :]).value(copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Board, (*self._arguments, self.memory)

    def rows(self, parity: int) -> EnvRows:
        """Return the rows over one of the two lists of observations."""
        return EnvRows(self._arguments[0], self.begins[-1], self.observations[parity])

    def write_actions(self, actions: Any) -> None:
        """Write a batch of actions, as Gymnasium batches them, cast to the dtype of their space.

        Raises ValueError for numbers of another kind, such as floats for a Discrete space.
        """
        trees.map_tree(_write, self._actions, actions)

    def read_actions(self, host: int) -> Any:
        """Return a copy of the actions of one host."""
        rows = slice(self.begins[host], self.begins[host + 1])
        return trees.map_tree(lambda array: array[rows].copy(), self._actions)


def _aligned(nbytes: int) -> int:
    return max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT


def _write(array: NDArray[Any], batch: Any) -> None:
    actions = np.asarray(batch)
    is_whole = actions.dtype.kind in "biu" and array.dtype.kind in "iu"
    if not is_whole and not np.can_cast(actions.dtype, array.dtype, "same_kind"):
        raise ValueError(f"actions have dtype {actions.dtype}; their space has {array.dtype}")
    array[:] = actions
