"""MaskedRows: which rows of a trajectory are experience, and what is computed over them.

A row [t, b] may be no experience (the contract of environments, `environments/contract.py`, has
the cases): the environment was being reset, has crashed or waits, or the agent is not in its game.
Its fields may hold anything, NaN too.  So no one else looks at the mask: statistics, means, losses,
minibatches and replays get the rows that `select` returns, and models that run over whole sequences
get zeros for what `fill` and `fill_read` leave out.  The only other use of a mask is that of the
recursions in time, `functions/returns.py`.  Steps that are drawn one by one have no rows without
experience, but next observations that they do not bootstrap from: `repeat_unread`.

It does not import torch, as Trajectory does not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.trees import Tree

if TYPE_CHECKING:
    from torch import Tensor

A = TypeVar("A", bound="NDArray[Any] | Tensor")


class MaskedRows:
    """Rows [T, B] with a mask, which is a numpy array or a tensor like the fields to select from.

    valid    the mask [T, B]
    """

    __slots__ = ("_places", "valid")

    def __init__(self, valid: Any, places: Any = None):
        """`places` are the sorted places of the rows among all T * B, if they are known."""
        self.valid = valid
        self._places = places

    @property
    def count(self) -> int:
        """N, the number of rows that are experience."""
        return int(self.valid.sum())

    @property
    def columns(self) -> Any:
        """The environments that have experience, as sorted indices."""
        any_of = self.valid.any(0)
        return any_of.nonzero()[0] if isinstance(any_of, np.ndarray) else any_of.nonzero()[:, 0]

    def select(self, fields: Tree) -> Any:
        """Return the rows of experience, [N, ...], of arrays [T, B, ...] or [T + 1, B, ...]."""
        valid, places = self.valid, self._places
        if places is None:
            return trees.map_tree(lambda x: x[: len(valid)][valid], fields)
        return trees.map_tree(lambda x: x[: len(valid)].flatten(0, 1)[places], fields)

    def of(self, which: Any) -> "MaskedRows":
        """Return the rows of some environments."""
        return MaskedRows(self.valid[:, which])

    def to(self, device: Callable[[Any], Any]) -> "MaskedRows":
        """Return the rows with the mask as `device` returns it.

        Their places are looked up here: there, each `select` would wait for the device to do it.
        """
        return MaskedRows(device(self.valid), device(np.flatnonzero(self.valid)))

    def minibatches_in(self, is_recurrent: bool) -> int:
        """Return into how many minibatches at most the rows can be split, none without experience.

        Those of a recurrent model have whole columns.
        """
        return len(self.columns) if is_recurrent else self.count

    def fill(self, field: A) -> A:
        """Return a field [T, B, ...] with zeros in the rows that are no experience."""
        filled: A = _zeroed(field, ~self.valid)
        return filled

    def fill_read(self, field: A, terminated: A) -> A:
        """Return a field [T + 1, B, ...] of observations, with zeros in those that no row reads.

        A row reads its own and, unless it has terminated, the next one, to bootstrap from.
        Integers are returned as they are: they are never NaN, and no row depends on them.
        """
        if not _is_floating(field):
            return field
        steps, width = self.valid.shape
        is_array = isinstance(self.valid, np.ndarray)
        ones: Any = np.ones if is_array else self.valid.new_ones
        unread = ones((steps + 1, width), dtype=self.valid.dtype)
        unread[:-1] = ~self.valid
        unread[1:] &= ~self.valid | terminated
        filled: A = _zeroed(field, unread)
        return filled


def repeat_unread(next_obs: Tree, obs: Tree, discount: NDArray[np.float32]) -> None:
    """Put a step's own observation in place of the next one, where it does not bootstrap from it.

    Observations are [N, ...], those of `next_obs` are changed.  No value depends on what is put
    there, but normalization over a batch does (CrossQ): zeros would be far from all that it sees.
    """
    unread = (discount == 0).nonzero()[0]
    for after, before in zip(trees.leaves(next_obs), trees.leaves(obs), strict=True):
        after[unread] = before[unread]


def _is_floating(field: Any) -> bool:
    if isinstance(field, np.ndarray):
        return np.issubdtype(field.dtype, np.floating)
    return bool(field.is_floating_point())


def _zeroed(field: Any, where: Any) -> Any:
    wide = where.reshape(*where.shape, *[1] * (field.ndim - where.ndim))
    if isinstance(field, np.ndarray):
        return np.where(wide, np.zeros((), field.dtype), field)
    return field.masked_fill(wide, 0)
