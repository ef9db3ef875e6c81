"""Agent: what a run has learnt, to act in an environment of yours.

    agent = remotely_rl.load("runs/ppo-CartPole-v1")
    obs, info = env.reset()
    while not done:
        obs, reward, terminated, truncated, info = env.step(agent.act(obs))

Observations are those of the environment, one or a batch of them, and so are actions: what
normalizes, converts and masks is inside.  A model with a memory remembers between calls, one memory
for each row of a batch, until `reset` or `begins` says that an episode begins.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from remotely_rl import networks, trees
from remotely_rl.acting.policy import Policy, Trained
from remotely_rl.agents.load import load as load_trained
from remotely_rl.environments import Environments, Source, Wrapper
from remotely_rl.environments.masks import Masks
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.errors import TrainingError
from remotely_rl.runs.training import Train

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

    Pass `model` if the run was trained with your own, and `env` if only the script that trained
    knows it: the folder has their names.
    `env` may be another environment of the same spaces.  `algorithm` is the `train` of one of your
    own whose file is not where it was.  `env_kwargs` are beside those of the run, `wrappers` in
    their place.  Raises TrainingError if one of these is missing or does not fit, or if the folder
    is incomplete.
    """
    trained = load_trained(run, which, model, env, algorithm, env_kwargs, wrappers)
    with closing(trained.environments(1)) as probe:
        probe.reset(seed)  # tells whether actions are masked
        return Agent(trained, probe, seed)


class Agent:
    """See the module's docstring.  It is used by one thread at a time."""

    def __init__(self, trained: Trained, envs: Environments, seed: int = 0):
        """`envs` are such as it acts in; `seed` is that of actions that are drawn."""
        self.trained = trained
        self.model, self.config = trained.model, trained.config
        self.observation_space = envs.space
        self.action_space: gymnasium.Space[Any] = envs.vector.single_action_space
        self.actions = envs.actions
        self.spec = envs.spec
        self._convert = envs.convert
        self._is_masked = isinstance(self.spec, dict) and ACTION_MASK in self.spec
        self._mask_is_observed = envs.mask_is_observed
        self._seed = seed
        self._policy: Policy | None = None
        self._begins: NDArray[np.bool_] = np.ones(0, np.bool_)

    def act(
        self, obs: Any, *, deterministic: bool = True, mask: Any = None, begins: Begins = False
    ) -> Any:
        """Return the action for an observation, or the actions for a batch of them.

        obs            one observation of the environment, or a batch as vector environments have it
        deterministic  the most likely action; otherwise one is drawn
        mask           where actions are masked by `info`: its "action_mask"
        begins         that an episode begins with this observation; for a batch, of each row

        Raises TrainingError for an observation of another shape, and a mask that is missing.
        """
        count = rows_of(self.observation_space, obs)
        batch = _as_batch(self.observation_space, obs) if count is None else obs
        seen = self._convert(batch)
        if self._is_masked:
            seen = {OBSERVATION: seen, ACTION_MASK: self._masks(batch, count, mask)}
        elif mask is not None:
            raise TrainingError("mask is given, and the agent was trained without masks of actions")
        policy = self._policy_of(1 if count is None else count)
        policy.greedy = deterministic
        action = policy.act(seen, self._begins | np.asarray(begins, np.bool_))
        self._begins = np.zeros_like(self._begins)
        taken = self.actions.to_environment(action)
        if count is not None:
            return taken
        return next(iter(iterate(batch_space(self.action_space, 1), taken)))

    def reset(self) -> None:
        """Let the next observation begin an episode, in each row: forget what was before."""
        self._begins = np.ones_like(self._begins)

    def export(self, path: str | Path) -> Path:
        """Write the agent as a graph, FILE.onnx or FILE.pt2 (torch.export); see `export.py`."""
        from remotely_rl.agents import export  # noqa: PLC0415 - it imports what few need

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
        if self._mask_is_observed:
            return masks.of(batch[ACTION_MASK])
        if mask is None:
            raise TrainingError(
                "the agent was trained with masks of actions, and has none here: pass"
                ' mask=info["action_mask"]'
            )
        return masks.of_one(mask) if count is None else masks.of(mask)


def rows_of(space: gymnasium.Space[Any], obs: Any) -> int | None:
    """Return how many observations a batch has; None for a single one.

    Raises TrainingError for what is neither.
    """
    counts: list[int | None] = [_rows(*leaf) for leaf in _leaves(space, obs, ())]
    if len(set(counts)) > 1:
        raise TrainingError("some parts of obs are a batch and others are not, or of other lengths")
    return counts[0]


def _rows(path: trees.Path, leaf: gymnasium.Space[Any], array: Any) -> int | None:
    shape, own = np.shape(array), leaf.shape
    if shape == own:
        return None
    if shape[1:] == own and shape:
        return int(shape[0])
    raise TrainingError(
        f"obs{trees.named(path)} has shape {list(shape)}: an observation has {list(own or ())}, and"
        f" a batch of N has {['N', *(own or ())]}".replace("'N'", "N")
    )


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
            raise TrainingError(f"obs{trees.named(path)} is a tuple of {len(space)}")
        for i, part in enumerate(space):
            yield from _leaves(part, obs[i], (*path, i))
    else:
        yield path, space, obs


def _as_batch(space: gymnasium.Space[Any], obs: Any) -> Any:
    into: Any = create_empty_array(space, 1)
    return concatenate(space, [obs], into)
