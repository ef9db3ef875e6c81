"""Masks of legal actions, provided by environments.

A mask comes from `info["action_mask"]` of `reset` and `step`, or from a leaf `action_mask` of a
Dict observation (the conventions of Gymnasium and PettingZoo).  1 or True means legal, 0 or False
illegal; `legal_of` refuses any other number, above all masks that are added to logits, in which 0
means legal.  The form of a mask depends on the action space:

    Discrete         [n]
    MultiDiscrete    a tuple of arrays, one per choice; or these concatenated
    MultiBinary      the same, two numbers per bit
    Dict, Tuple      a dict or a tuple of masks, where a missing one, or None, means all legal; or
                     one concatenated array for all discrete choices

The mask of a policy, [B, outputs], is True for legal actions and for all outputs that are not
discrete.  The last observation of an episode needs no mask; without one, all actions are legal.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remotely_rl.environments.action_spaces import Actions, Composite, MultiDiscrete
from remotely_rl.errors import TrainingError

MEANING = (
    "a mask has 1 or True for each legal action, and 0 or False for each illegal one (of a mask"
    " that is added to logits, as in RLlib's examples, pass `mask >= 0`)"
)


class Masks:
    """Converts the masks of B environments."""

    def __init__(self, actions: Actions, count: int):
        """Raises TrainingError if no actions are discrete."""
        self._actions = actions
        self._count = count
        self._is_choice = is_choice(actions)
        self._is_one_choice = actions.choices == (actions.outputs,)
        if not actions.choices:
            raise TrainingError(
                "the environment gives an action_mask, but its actions are continuous: only"
                " Discrete, MultiDiscrete and MultiBinary actions can be masked"
            )
        self._starts = np.concatenate([[0], np.cumsum(actions.choices)[:-1]])

    def of(
        self,
        raw: Any,
        read: NDArray[np.bool_] | None = None,
        acts: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.bool_]:
        """Return the masks of policies, [B, outputs].

        `raw` is batched as by a vector environment.  All actions are legal where `read` [B] is
        False, and where a mask allows none but `acts` [B] is False.  Raises TrainingError, which
        names the environment, for a mask of the wrong shape, or for a choice without a legal
        action where an environment acts.
        """
        flat = self._flat(raw, read)
        if read is not None:
            flat[~read] = True
        return self._checked(flat, acts)

    def of_one(self, raw: Any) -> NDArray[np.bool_]:
        """Return the mask of the policy of one environment, [1, outputs], from its own mask."""
        return self._checked(self._row(raw, 0)[None], None)

    def _checked(
        self, flat: NDArray[np.bool_], acts: NDArray[np.bool_] | None
    ) -> NDArray[np.bool_]:
        if self._is_one_choice and flat.any(1).all():
            return flat
        legal = np.logical_or.reduceat(flat, self._starts, axis=1)
        if acts is not None:
            unused = ~legal.all(1) & ~acts
            flat[unused] = legal[unused] = True
        if not legal.all():
            env, choice = np.argwhere(~legal)[0]
            which = f" in choice {choice}" if len(self._starts) > 1 else ""
            raise TrainingError(
                f"environment {env} has no legal action{which}: its action_mask is 0 for all"
                f" {self._actions.choices[choice]}, but its episode is not over; {MEANING}"
            )
        mask = np.ones((self._count, self._actions.outputs), np.bool_)
        mask[:, self._is_choice] = flat
        return mask

    def _flat(self, raw: Any, read: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Return the concatenated masks of all choices, [B, sum of the counts]."""
        width = sum(self._actions.choices)
        if _is_plain(raw) and raw.shape[1:] == (width,):
            return legal_of(raw, read)
        flat = np.ones((self._count, width), np.bool_)
        for env in range(self._count) if read is None else np.flatnonzero(read):
            flat[env] = self._row(_row_of(raw, int(env)), int(env))
        return flat

    def _row(self, mask: Any, env: int) -> NDArray[np.bool_]:
        choices = list(self._actions.choices)
        if _is_plain(mask) and mask.size == sum(choices):
            return legal_of(mask.reshape(1, -1), first=env).reshape(-1)
        try:
            parts = list(_parts(self._actions, mask))
        except LookupError as error:
            raise TrainingError(
                f"environment {env} has an action_mask for {error.args[0]}, which is not a part of"
                " its actions"
            ) from None
        if [len(part) for part in parts] != choices:
            raise TrainingError(
                f"environment {env} has an action_mask of {_described(mask)}; its actions need"
                f" {' + '.join(map(str, choices))} numbers"
            )
        return legal_of(np.concatenate(parts)[None], first=env).reshape(-1)


def legal_of(
    masks: NDArray[Any], read: NDArray[np.bool_] | None = None, first: int = 0
) -> NDArray[np.bool_]:
    """Return which actions are legal by the masks of environments, [B, n], as booleans.

    Rows that are not in `read` may hold anything.  Raises TrainingError, which names the
    environment, counted from `first`, unless all others are booleans, 0 or 1.
    """
    if masks.dtype.kind == "b":
        return masks.copy()
    is_number = masks.dtype.kind in "iuf"
    legal: NDArray[np.bool_] = masks != 0 if is_number else np.zeros(masks.shape, np.bool_)
    if is_number and (masks == legal).all():
        return legal
    wrong = masks != legal if is_number else np.ones(masks.shape, np.bool_)
    if read is not None:
        wrong &= read[:, None]
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise TrainingError(
            f"environment {first + row} has an action_mask with {masks[row, column]}; {MEANING}"
        )
    return legal


def is_choice(actions: Actions) -> NDArray[np.bool_]:
    """Return which outputs of a policy are logits, [outputs]."""
    parts = actions.parts if isinstance(actions, Composite) else (actions,)
    return np.concatenate([np.full(part.outputs, bool(part.choices)) for part in parts])


def _is_plain(mask: Any) -> bool:
    return isinstance(mask, np.ndarray) and mask.dtype != object


def _row_of(raw: Any, env: int) -> Any:
    """Return one environment's part of a batched mask."""
    if isinstance(raw, tuple):
        return tuple(_row_of(part, env) for part in raw)
    if not isinstance(raw, dict):
        return raw[env]
    row = {}
    for key, part in raw.items():
        # For each key of an info, Gymnasium adds a mask of the environments that have it.
        is_mask = key.startswith("_") and key[1:] in raw
        if not is_mask and raw.get(f"_{key}", _EVERY)[env]:
            row[key] = _row_of(part, env)
    return row


class _Every:
    """A mask that is True at every index."""

    def __getitem__(self, index: int) -> bool:
        return True


_EVERY = _Every()
_NO_MASK = np.empty(0)  # has the wrong length for any choice


def _parts(actions: Actions, mask: Any) -> Iterator[NDArray[Any]]:
    """Yield the mask of each choice."""
    if isinstance(actions, Composite):
        yield from _parts_of_composite(actions, actions.places, mask)
    elif mask is None:
        yield from (np.ones(count) for count in actions.choices)
    elif isinstance(actions, MultiDiscrete):
        choices = mask
        if _is_plain(mask) and mask.size == actions.outputs:
            choices = np.split(mask.reshape(-1), np.cumsum(actions.counts)[:-1])
        yield from (np.asarray(choice).reshape(-1) for choice in choices)
    elif actions.choices:
        yield np.asarray(mask).reshape(-1)


def _parts_of_composite(actions: Composite, places: Any, mask: Any) -> Iterator[NDArray[Any]]:
    if isinstance(places, (dict, tuple)):
        keys = list(places) if isinstance(places, dict) else range(len(places))
        if mask is not None and not isinstance(mask, type(places)):
            yield _NO_MASK
            return
        known = () if mask is None else mask
        has = known if isinstance(known, dict) else dict(enumerate(known))
        for key in has:
            if key not in keys:
                raise LookupError(repr(key))
        for key in keys:
            yield from _parts_of_composite(actions, places[key], has.get(key))
    else:
        yield from _parts(actions.parts[places], mask)


def _described(mask: Any) -> str:
    if isinstance(mask, np.ndarray):
        return f"shape {mask.shape}"
    if isinstance(mask, (tuple, list)):
        return f"a {type(mask).__name__} of {len(mask)}"
    return f"a {type(mask).__name__}"
