"""Agent: the policy of a run, to act in your own environment.

    agent = remotely_rl.load("runs/ppo-CartPole-v1")
    obs, info = env.reset()
    while not done:
        obs, reward, terminated, truncated, info = env.step(agent.act(obs))

Pass one observation of the environment or a batch; you get one action or a batch.  The agent
normalizes, converts and masks.  A recurrent model keeps its state between calls, one per row of a
batch, until `reset` or `begins` marks the beginning of an episode.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from remotely_rl import networks, trees
from remotely_rl.acting.policy import Policy, Trained
from remotely_rl.agents.load import load as load_trained
from remotely_rl.environments import Source, Wrapper
from remotely_rl.environments.masks import Masks
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.environments.spaces import Spaces
from remotely_rl.errors import TrainingError
from remotely_rl.runs.training import Train
from remotely_rl.supervision.rows import can_hold

Begins = bool | Sequence[bool] | NDArray[np.bool_]


def load(
    run: str | Path,
    which: str = "last",
    *,
    model: networks.ModelSource | None = None,
    env: Source | None = None,
    algorithm: Train[Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    seed: int = 0,
) -> "Agent":
    """Load the agent of a run folder, from its "last" or its "best" checkpoint.

    Pass your own `model` or `env` if only the training script defines it; otherwise the folder
    names its file.  Pass `algorithm`, the `train` of your own algorithm, if its file has moved.
    `env` may be another environment with the same spaces; it gets none of the run's arguments.
    The environment itself is needed only by `agent.trained.environments`: to act, the spaces that
    the folder keeps are enough.
    `env_kwargs` are added to those of the run, `wrappers` replace them.  Raises TrainingError if
    one of these is missing or does not fit, or if the folder is incomplete.
    """
    trained = load_trained(run, which, model, env, algorithm, env_kwargs, wrappers)
    assert trained.spaces is not None
    return Agent(trained, trained.spaces, seed)


class Agent:
    """See the module's docstring.  Use it in one thread at a time."""

    def __init__(self, trained: Trained, spaces: Spaces, seed: int = 0):
        """`spaces` are those of its environments; `seed` seeds the sampling of actions."""
        self.trained = trained
        self.model, self.config = trained.model, trained.config
        self.spaces = spaces
        self.observation_space, self.action_space = spaces.observation, spaces.action
        self.actions, self.spec = spaces.actions, spaces.spec
        self._seed = seed
        self._policy: Policy | None = None
        self._begins: NDArray[np.bool_] = np.ones(0, np.bool_)

    def __repr__(self) -> str:
        return f"<Agent: {self.trained.by or type(self.model).__name__}>"

    def act(
        self, obs: Any, *, deterministic: bool = True, mask: Any = None, begins: Begins = False
    ) -> Any:
        """Return the action for an observation, or the actions for a batch of them.

        obs            one observation of the environment, or a batch as in vector environments
        deterministic  take the most likely action instead of sampling one
        mask           if the environment masks actions through `info`: its "action_mask"
        begins         whether this is the first observation of an episode; for a batch, per row

        Raises TrainingError for an observation of another shape or another kind of numbers, for
        NaN or infinity, and for a missing mask.
        """
        count = rows_of(self.observation_space, obs)
        batch = _as_batch(self.observation_space, obs, is_single=count is None)
        seen = self.spaces.observations.of(batch)
        if self.spaces.is_masked:
            seen = {OBSERVATION: seen, ACTION_MASK: self._masks(batch, count, mask)}
        elif mask is not None:
            raise TrainingError("mask is given, but the agent was trained without action masks")
        policy = self._policy_of(1 if count is None else count)
        policy.greedy = deterministic
        action = policy.act(seen, self._begins | np.asarray(begins, np.bool_))
        self._begins = np.zeros_like(self._begins)
        taken = self.actions.to_environment(action)
        if count is not None:
            return taken
        return next(iter(iterate(batch_space(self.action_space, 1), taken)))

    def reset(self) -> None:
        """Reset the recurrent state: the next observation of each row begins an episode."""
        self._begins = np.ones_like(self._begins)

    def export(self, path: str | Path) -> Path:
        """Write the agent as a graph, FILE.onnx or FILE.pt2 (torch.export); see `export.py`."""
        from remotely_rl.agents import export  # noqa: PLC0415 - few need it

        return export.write(self, Path(path))

    def _policy_of(self, count: int) -> Policy:
        if self._policy is None or len(self._begins) != count:
            self._policy = Policy(
                self.config, self.model, self.actions, count, greedy=True, seed=self._seed
            )
            self._begins = np.ones(count, np.bool_)
        return self._policy

    def _masks(self, batch: Any, count: int | None, mask: Any) -> NDArray[np.bool_]:
        masks = Masks(self.actions, 1 if count is None else count)
        if self.spaces.mask_is_observed:
            return masks.of(batch[ACTION_MASK])
        if mask is None:
            raise TrainingError(
                'the agent was trained with action masks: pass mask=info["action_mask"]'
            )
        return masks.of_one(mask) if count is None else masks.of(mask)


def rows_of(space: gymnasium.Space[Any], obs: Any) -> int | None:
    """Return the number of observations in a batch; None for a single observation.

    Raises TrainingError for anything else.
    """
    counts: list[int | None] = [_rows(*leaf) for leaf in _leaves(space, obs, ())]
    if len(set(counts)) > 1:
        raise TrainingError("obs mixes single parts and batches, or batches of different lengths")
    return counts[0]


def _rows(path: trees.Path, leaf: gymnasium.Space[Any], given: Any) -> int | None:
    array, own, dtype = np.asarray(given), leaf.shape or (), np.dtype(leaf.dtype)
    if array.shape not in (own, (*array.shape[:1], *own)):
        raise TrainingError(
            f"obs{trees.named(path)} has shape {list(array.shape)}: an observation has {list(own)},"
            f" and a batch of N has {['N', *own]}".replace("'N'", "N")
        )
    if not can_hold(dtype, array):  # mostly images scaled to floats
        raise TrainingError(
            f"obs{trees.named(path)} has dtype {array.dtype}, and its space {dtype}: pass"
            " observations as the environment returns them"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = "" if array.shape == own else f", row {np.argwhere(~np.isfinite(array))[0][0]},"
        raise TrainingError(f"obs{trees.named(path)}{row} has NaN or infinity")
    return None if array.shape == own else len(array)


def _leaves(space: gymnasium.Space[Any], obs: Any, path: trees.Path) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.items():
            try:
                of_part = obs[key]
            except (KeyError, TypeError, IndexError):
                raise TrainingError(
                    f"obs{trees.named(path)} has no {key!r}: it is a dict with"
                    f" {', '.join(map(repr, space.keys()))}"
                ) from None
            yield from _leaves(part, of_part, (*path, key))
    elif isinstance(space, gymnasium.spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            raise TrainingError(f"obs{trees.named(path)} must be a tuple of {len(space)}")
        for i, part in enumerate(space):
            yield from _leaves(part, obs[i], (*path, i))
    else:
        yield path, space, obs


def _as_batch(space: gymnasium.Space[Any], obs: Any, is_single: bool) -> Any:
    match space:
        case gymnasium.spaces.Dict():
            return {key: _as_batch(part, obs[key], is_single) for key, part in space.items()}
        case gymnasium.spaces.Tuple():
            pairs = zip(space, obs, strict=True)
            return tuple(_as_batch(part, of_part, is_single) for part, of_part in pairs)
    array = np.asarray(obs, space.dtype)
    return array[None] if is_single else array
