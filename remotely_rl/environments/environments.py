"""Many environments stepped together, under one contract whatever they come from.

A step takes the actions of B environments and returns one row of each:

    obs         [B, ...]  the observation after the action
    reward      [B]       raw, never clipped: the learner clips, scores are true
    terminated  [B]       the episode ended there; nothing comes after
    truncated   [B]       the episode was cut there; unless it terminated as well, the
                          observation may be bootstrapped from
    valid       [B]       false where the row is no experience, and must not be trained on
    begins      [B]       the observation is the first of an episode: memory starts anew

Rows are not experience for two reasons.

1. Vector environments that reset themselves a step late (NEXT_STEP, the usual mode)
   spend one step on it: the action is ignored, the reward is 0.
2. Those that reset in the step itself (SAME_STEP) return the first observation of the
   next episode in place of the last of this one.  A terminated row does not need it, even
   if it is truncated too; a row that is only truncated would bootstrap from the wrong
   episode, so it is given up.  Those that do not reset at all (DISABLED) are reset here, and
   then are the same.

Observations are what a model wants: images as uint8, or float32 if they are no bytes, [channels,
height, width]; all else as one float32 vector or array.  Of a Box of three axes, which is taken
for an image, the channels are the first or the last, whichever is smaller.  Spaces that are no
Box (Discrete, Tuple, Dict) are flattened.  Actions are what `action_spaces.py` says of their space.

Atari games (`ALE/*`) run in ale-py's native vector environment, with the preprocessing
of `Atari` below.  Its defaults are not Gymnasium's: no sticky actions, the minimal set
of actions, frames in fours.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from remotely_rl.environments import action_spaces
from remotely_rl.errors import TrainingError, nearest

# An id, or something that makes the user's own: see `make`.
Source = str | Callable[..., Any]

gymnasium.register_envs(ale_py)


class Step(NamedTuple):
    """One row of each environment.  The module's docstring says what the fields mean."""

    obs: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    begins: NDArray[np.bool_]


class Episode(NamedTuple):
    """A finished episode: the sum of its raw rewards, and its steps (of 4 frames in Atari)."""

    score: float
    length: int


@dataclass(frozen=True)
class Atari:
    """Preprocessing of Atari games.  The rest is fixed: gray, 4 frames a step and
    the maximum of the last two, a stack of 4, up to 30 no-ops at reset, then FIRE where the game
    has it, 27,000 steps at most."""

    image_size: int = 84
    sticky_actions: float = 0.0
    life_loss_is_terminal: bool = False


class Environments:
    """B environments that reset themselves, out of any Gymnasium vector environment.

    `observation_shape` and `dtype` are those of one observation.
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any], *, lives: bool = False):
        """`lives`: `terminated` may also mean a lost life, after which the game goes on.

        Raises TrainingError if the actions are of a space that no policy fits.
        """
        self._vector = vector
        self._mode = AutoresetMode(vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._lives = lives
        self._space = vector.single_observation_space
        self._flat_space = batch_space(self._space, vector.num_envs)
        self.num_envs = vector.num_envs
        self.actions = action_spaces.of(vector.single_action_space)
        self.observation_shape = _observation_shape(self._space)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._frame = np.zeros(self.num_envs, np.int64)
        self._score = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int64)
        self._episodes: list[tuple[int, Episode]] = []

    def reset(self, seed: int | None = None) -> NDArray[Any]:
        """Starts all episodes anew, the i-th from `seed` + i; returns observations [B, ...]."""
        obs, info = self._vector.reset(seed=seed)
        self._ended[:] = False
        self._score[:] = 0
        self._length[:] = 0
        self._was_reset(info)
        return self._observation(obs)

    @property
    def vector(self) -> VectorEnv[Any, Any, Any]:
        """The vector environment itself, for what is not asked of it here: its pictures."""
        return self._vector

    @property
    def space(self) -> gymnasium.Space[Any]:
        """Of one observation, as the vector environment gives it."""
        return self._space

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self._space.dtype == np.uint8 and self._is_box else np.float32)

    @property
    def _is_box(self) -> bool:
        return isinstance(self._space, gymnasium.spaces.Box)

    def step(self, action: NDArray[Any]) -> Step:
        """Takes one step in each environment; `action` is [B, ...] as in `actions`."""
        return self._step(self.actions.to_environment(action))

    def _step(self, action: NDArray[Any]) -> Step:
        obs, reward, terminated, truncated, info = self._vector.step(action)
        # Copies: some vector environments hand out the same arrays at every step.
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        ended = terminated | truncated
        if self._mode is AutoresetMode.NEXT_STEP:
            played = ~(self._ended & self._was_reset(info))
            valid, begins = played, ~played
        else:
            played = np.ones_like(ended)
            valid, begins = terminated | ~truncated, ended
            if self._mode is AutoresetMode.DISABLED and ended.any():
                obs, _ = self._vector.reset(options={"reset_mask": ended.copy()})
        obs, reward = self._observation(obs), np.array(reward, np.float32)
        row = Step(obs, reward, terminated, truncated, valid, begins)
        self._score += row.reward * played
        self._length += played
        # After a lost life it takes the next row to tell whether the game was over.
        over = ~played if self._lives else ended
        for i in np.flatnonzero(over):
            episode = Episode(float(self._score[i]), int(self._length[i]))
            self._episodes.append((int(i), episode))
            self._score[i], self._length[i] = 0, 0
        self._ended = ended
        return row

    def set_apart(self, most: int, random: np.random.Generator) -> NDArray[Any]:
        """Plays up to `most` random steps in each environment, so that their episodes differ.

        All step `most` times; each begins anew that many steps before the end that its lot says.
        Returns the observations then.  Games that end meanwhile are not counted.  Raises
        TrainingError if the vector environment cannot reset one of its environments alone.
        (Stooke & Abbeel 2018, section 3: synchronised starts make early batches alike.)
        """
        lot = random.integers(0, most + 1, self.num_envs)
        space = self._vector.single_action_space
        space.seed(int(random.integers(2**31)))
        obs: NDArray[Any] = np.empty(0)
        for left in range(most, -1, -1):
            anew = lot == left
            if anew.any():
                try:
                    raw, info = self._vector.reset(options={"reset_mask": anew})
                except (TypeError, ValueError, KeyError) as error:
                    raise TrainingError(
                        f"random_start needs environments that can be reset one by one: {error}"
                    ) from error
                self._score[anew], self._length[anew], self._ended[anew] = 0, 0, False
                self._was_reset(info)
                obs = self._observation(raw)
            if left:
                obs = self._step(np.stack([space.sample() for _ in range(self.num_envs)])).obs
        self.pop_episodes()
        return obs

    def play_at_random(self, steps: int, seed: int) -> NDArray[Any]:
        """Plays random steps from a reset; returns the observations, [steps * B, ...]."""
        space = self._vector.single_action_space
        space.seed(seed)
        first = self.reset(seed)
        draws = [[space.sample() for _ in range(self.num_envs)] for _ in range(steps - 1)]
        return np.concatenate([first, *(self._step(np.stack(draw)).obs for draw in draws)])

    def pop_episodes(self) -> list[Episode]:
        """Returns the episodes finished since the last call."""
        return [episode for _, episode in self.pop_episodes_by_environment()]

    def pop_episodes_by_environment(self) -> list[tuple[int, Episode]]:
        """The same, each with the index of its environment: short ones come first and often."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Ends the environments."""
        self._vector.close()

    def _was_reset(self, info: dict[str, Any]) -> NDArray[np.bool_]:
        """Of environments that ended the step before: which of them have begun a new game."""
        if not self._lives:
            return np.ones(self.num_envs, np.bool_)
        frame = np.array(info["episode_frame_number"], np.int64)
        began = frame <= self._frame
        self._frame = frame
        return began

    def _observation(self, obs: Any) -> NDArray[Any]:
        if not isinstance(self._space, gymnasium.spaces.Box):
            rows = gymnasium.vector.utils.iterate(self._flat_space, obs)
            flat = [np.asarray(gymnasium.spaces.flatten(self._space, row)) for row in rows]
            return np.stack(flat).astype(np.float32)
        if _is_channels_last(self._space):
            obs = np.moveaxis(obs, -1, 1)
        if obs.dtype == np.uint8:
            return np.ascontiguousarray(obs)
        return np.array(obs, np.float32)


def make(source: Source, count: int, atari: Atari | None = None) -> Environments:
    """Makes `count` environments from a Gymnasium id or from the user's own callable.

    A callable with a parameter `num_envs` (a VectorEnv class has one) is called once with
    it and returns a Gymnasium VectorEnv; any other is called without arguments, `count`
    times, and returns a Gymnasium Env each time.  `atari` is for Atari games alone.
    Raises TrainingError for an unknown id, actions that no policy fits, or a callable that
    returns something else.
    """
    if isinstance(source, str):
        return _make_from_id(source, count, atari or Atari())
    if _takes_num_envs(source):
        vector = source(num_envs=count)
        if not isinstance(vector, VectorEnv):
            raise TrainingError(_is_not(source, vector, "gymnasium.vector.VectorEnv"))
        if vector.num_envs != count:
            raise TrainingError(
                f"{name_of(source)} made {vector.num_envs} environments, {count} were asked for"
            )
        return Environments(vector)
    return Environments(_side_by_side(source, count))


def name_of(source: Source) -> str:
    """The id, or the callable's name: what run folders and messages call the environment."""
    if isinstance(source, str):
        return source
    return getattr(source, "__qualname__", type(source).__qualname__)


def check_is_known(source: Source) -> None:
    """Raises TrainingError for an id that Gymnasium does not know; `module:id` may yet be."""
    if isinstance(source, str) and ":" not in source and source not in gymnasium.registry:
        raise TrainingError(f"no environment is called {source!r}{_nearest_id(source)}")


def is_atari(source: Source) -> bool:
    """Whether it is the id of an Atari game."""
    spec = gymnasium.registry.get(source) if isinstance(source, str) else None
    return spec is not None and spec.entry_point == "ale_py.env:AtariEnv"


def _make_from_id(env_id: str, count: int, atari: Atari) -> Environments:
    check_is_known(env_id)
    spec = gymnasium.registry.get(env_id)
    if spec is not None and is_atari(env_id) and not _wants_ram(spec):
        vector = AtariVectorEnv(
            spec.kwargs["game"],
            count,
            num_threads=1,
            img_height=atari.image_size,
            img_width=atari.image_size,
            repeat_action_probability=atari.sticky_actions,
            life_loss_info=atari.life_loss_is_terminal,
            reward_clipping=False,
            use_fire_reset=True,
        )
        return Environments(vector, lives=atari.life_loss_is_terminal)
    try:
        return Environments(_side_by_side(lambda: gymnasium.make(env_id), count))
    except (gymnasium.error.Error, ImportError) as error:
        raise TrainingError(f"Gymnasium cannot make {env_id!r}: {error}") from error


def _side_by_side(make_one: Callable[[], Any], count: int) -> VectorEnv[Any, Any, Any]:
    def make_checked() -> gymnasium.Env[Any, Any]:
        env = make_one()
        if not isinstance(env, gymnasium.Env):
            raise TrainingError(_is_not(make_one, env, "gymnasium.Env"))
        return env

    return SyncVectorEnv([make_checked] * count, autoreset_mode=AutoresetMode.NEXT_STEP)


def _takes_num_envs(source: Callable[..., Any]) -> bool:
    try:
        return "num_envs" in inspect.signature(source).parameters
    except ValueError:  # some built-ins tell nothing of themselves
        return False


def _is_not(source: Callable[..., Any], made: object, wanted: str) -> str:
    return f"{name_of(source)} returned a {type(made).__name__} where a {wanted} is wanted"


def _nearest_id(env_id: str) -> str:
    """Compares bare names first, so that "pong" finds "ALE/Pong-v5"."""

    def bare(name: str) -> str:
        return re.sub(r"-v\d+$", "", name.split("/")[-1]).lower()

    same = [known for known in gymnasium.registry if bare(known) == bare(env_id)]
    if same:
        best = max(same, key=lambda known: (known.startswith("ALE/"), "/" not in known, known))
        return f", did you mean {best!r}?"
    return nearest(env_id, gymnasium.registry)


def _wants_ram(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    return spec.kwargs.get("obs_type") == "ram"


def _is_channels_last(space: gymnasium.spaces.Box) -> bool:
    """Images have fewer channels than rows, so the smaller of the first and last axis are those."""
    return len(space.shape) == 3 and space.shape[-1] < space.shape[0]


def _observation_shape(space: gymnasium.Space[Any]) -> tuple[int, ...]:
    if not isinstance(space, gymnasium.spaces.Box):
        return (gymnasium.spaces.flatdim(space),)
    if _is_channels_last(space):
        return (space.shape[2], space.shape[0], space.shape[1])
    return space.shape
