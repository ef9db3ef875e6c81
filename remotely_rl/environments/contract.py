"""The contract of environments that are stepped together, whatever their source.

A step takes the actions of B environments and returns one row for each:

    obs         [B, ...]  the observation after the action
    reward      [B]       raw: the learner clips, so that scores are correct
    terminated  [B]       the episode ended here, in a terminal state
    truncated   [B]       the episode was cut here; unless it terminated as well, bootstrap from
                          the observation
    valid       [B]       False if the row is not experience, and must not be trained on
    begins      [B]       the observation is the first of an episode: reset recurrent state

Rows are not experience in four cases.

1. Vector environments that reset in the step after the end (NEXT_STEP, the usual mode) spend one
   step on the reset: the action is ignored, the reward is 0.  Those that are reset in the pause of
   an update spend all steps until then.
2. Those that reset in the last step itself (SAME_STEP) return the first observation of the next
   episode instead of the last one of this episode.  A terminated row does not need the latter, even
   if it is truncated too.  A row that is only truncated would bootstrap from the wrong episode, so
   it is not valid.  Environments without autoreset (DISABLED) are reset here in the last step, with
   the same result.
3. The environment crashed in this step (see supervision/vector.py): the result of the action is
   unknown.  The row is truncated, and the one before it bootstraps from the last observation.  The
   episode is not counted.
4. The row belongs to an agent that is not in its game (see multi_agent.py): its episode is over in
   each step, from the reset on if `info` has `absent` there.

With several agents per game, B is the total number of agents.  An episode is a whole game; its
score is the mean over the agents.

`observations.py` describes observations, `action_spaces.py` actions, and `masks.py` legal actions.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from remotely_rl import trees
from remotely_rl.environments import episodes
from remotely_rl.environments.elsewhere import Elsewhere
from remotely_rl.environments.episodes import Episode
from remotely_rl.environments.games import ABSENT
from remotely_rl.environments.masks import Masks
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION
from remotely_rl.environments.spaces import Spaces
from remotely_rl.errors import TrainingError
from remotely_rl.functions.distributions import ILLEGAL
from remotely_rl.supervision import CrashReport, SupervisedVectorEnv
from remotely_rl.supervision.vector import CRASH
from remotely_rl.supervision.whole import WatchedVectorEnv, envs_of, method_of
from remotely_rl.trees import Tree
from remotely_rl.vector import vector_env

T = TypeVar("T")

FRAME = "episode_frame_number"  # in the infos of ale-py's games


class Step(NamedTuple):
    """One row of each environment; see the module's docstring for the fields."""

    obs: Tree
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    begins: NDArray[np.bool_]


class Environments:
    """B environments with autoreset, made from any Gymnasium vector environment.

    `space` is the environment's own observation space; `spec` describes observations as models
    take them; `spaces` has both, and the actions.  `vector` is the vector environment itself, for
    rendering and the like.
    """

    def __init__(
        self,
        vector: VectorEnv[Any, Any, Any],
        *,
        lives: bool = False,
        channels_first: bool = False,
        steps_apart: bool = False,
        waits: bool = False,
        agents: int = 1,
    ):
        """`lives`: `terminated` may also mean a lost life, after which the game continues.

        `channels_first`: an observation with three axes is known to be [channels, height, width].
        `steps_apart`: the vector environment steps in other processes, between its `step_async`
        and its `step_wait`.  `waits`: an environment whose episode is over stays there, with
        invalid rows, until `end_pause`.  `agents` is the number of rows per game.

        Raises TrainingError for unsupported spaces.
        """
        self.vector = vector
        self.num_envs = vector.num_envs
        self.space: gymnasium.Space[Any] = vector.single_observation_space
        self.spaces = Spaces(self.space, vector.single_action_space, channels_first)
        self.actions, self._observations = self.spaces.actions, self.spaces.observations
        self._mask_is_observed = self.spaces.mask_is_observed
        self._masks = Masks(self.actions, self.num_envs) if self._mask_is_observed else None
        self._mask: NDArray[np.bool_] | None = None  # of the last observations
        self._was_reset_once = False
        self._mode = AutoresetMode(vector.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._lives = lives
        self._steps_apart = steps_apart
        self._waits = waits
        self.agents = agents
        self._begun: Any = None  # actions of the step in progress
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._never = np.zeros(self.num_envs, np.bool_)
        self._frame = np.zeros(self.num_envs, np.int64)
        self._score = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int64)
        self._episodes: list[tuple[int, Episode]] = []

    @property
    def spec(self) -> Tree:
        """The leaves of one observation, as models take it (`observations.py`).

        A mask in `info` is included from the first reset on.
        """
        return self.spaces.spec

    def reset(self, seed: int | Sequence[int] | None = None) -> Tree:
        """Reset all environments, the i-th with `seed` + i or with `seed[i]`.

        Returns observations [B, ...].
        """
        if isinstance(seed, Sequence) and list(seed) == list(range(seed[0], seed[0] + len(seed))):
            seed = seed[0]  # every vector environment accepts a single seed
        given: Any = seed
        obs, info = self.vector.reset(seed=given)
        if ACTION_MASK in info and not self._was_reset_once and self._masks is None:
            self._masks = Masks(self.actions, self.num_envs)
            self.spaces = replace(self.spaces, masks_in_info=True)
        self._was_reset_once = True
        self._ended[:] = info.get(ABSENT, False)
        self._score[:] = 0
        self._length[:] = 0
        self._was_reset(info)
        acts = ~self._ended
        return self._observation(obs, info, acts, acts)

    def step(self, action: NDArray[Any]) -> Step:
        """Take one step in each environment; `action` is [B, ...] as in `actions`."""
        self.begin(action)
        return self.finish()

    def begin(self, action: NDArray[Any]) -> None:
        """Start a step; `finish` waits for it."""
        self._begin(self.actions.to_environment(action))

    def _begin(self, action: Any) -> None:
        self._begun = action
        if self._steps_apart:
            vector: Any = self.vector
            vector.step_async(action)

    def finish(self) -> Step:
        """Return the rows of the step in progress."""
        vector: Any = self.vector
        row = vector.step_wait() if self._steps_apart else vector.step(self._begun)
        obs, reward, terminated, truncated, info = row
        final_info = info.get("final_info", {}) if self._mode is AutoresetMode.SAME_STEP else info
        # Copies: some vector environments return the same arrays at every step.
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        ended, reward = terminated | truncated, np.array(reward, np.float32)
        if reward.shape != (self.num_envs,) or ended.shape != reward.shape:
            raise TrainingError(
                f"a step of {self.num_envs} environments has rewards of shape {reward.shape} and"
                f" ends of shape {ended.shape}: the vector environment must return one of each per"
                " environment"
            )
        waiting = self._ended if self._waits else self._never
        if self._waits:
            played = ~waiting
            valid, begins = played, self._never.copy()
        elif self._mode is AutoresetMode.NEXT_STEP:
            played = ~(self._ended & self._was_reset(info))
            valid, begins = played, ~played
        else:
            played = np.ones_like(ended)
            valid, begins = terminated | ~truncated, ended
        acts = read = None
        if self._mode is not AutoresetMode.SAME_STEP:  # which returns no last observation
            # No action follows the last observation, but a truncated one is bootstrapped from.
            acts, read = ~(ended | waiting), ~(terminated | waiting)
        observed = self._observation(obs, info, read, acts)
        crashed = info.get(f"_{CRASH}")
        if crashed is not None:
            valid = valid & ~crashed
        if self._mode is AutoresetMode.DISABLED and ended.any() and not self._waits:
            obs, info = self.vector.reset(options={"reset_mask": ended.copy()})
            observed = self._observation(obs, info, ended, ended, keep=~ended)
        row = Step(observed, reward, terminated, truncated, valid, begins)
        self._score += row.reward * played
        self._length += played
        # After a lost life only the next row shows whether the game is over.
        over = ~played if self._lives else ended
        if crashed is not None and self._lives:  # the next row begins a game; this one has no score
            self._frame[crashed] = np.iinfo(np.int64).max
            self._score[crashed], self._length[crashed] = 0, 0
        self._end_episodes(over, crashed, final_info)
        self._ended = ended | waiting
        return row

    def _end_episodes(
        self, over: NDArray[np.bool_], crashed: NDArray[np.bool_] | None, infos: dict[str, Any]
    ) -> None:
        """Keep the episodes of games that are `over` for all agents, unless they have `crashed`.

        Their metrics are those in `infos`, averaged over several agents.
        """
        for game in np.flatnonzero(over.reshape(-1, self.agents).all(1)).tolist():
            rows = slice(game * self.agents, (game + 1) * self.agents)
            has_played = self._length[rows] > 0
            if has_played.any() and (crashed is None or not crashed[rows].any()):
                score, length = self._score[rows][has_played].mean(), self._length[rows].max()
                by_agent = [
                    Episode(float(score), int(length), episodes.metrics_of(infos, i))
                    for i in range(rows.start, rows.stop)
                ]
                metrics = by_agent[0].metrics if self.agents == 1 else episodes.means(by_agent)
                self._episodes.append((game, by_agent[0]._replace(metrics=metrics)))
            self._score[rows], self._length[rows] = 0, 0

    def end_pause(self) -> tuple[Tree, NDArray[np.bool_]] | None:
        """Reset the waiting environments; return the observations, and which were reset.

        Returns None if none waits.
        """
        if not self._waits or not self._ended.any():
            return None
        reset = self._ended.copy()
        obs, info = self.vector.reset(options={"reset_mask": reset})
        self._ended[:] = False
        return self._observation(obs, info, reset, reset, keep=~reset), reset

    def decorrelate(self, max_steps: int, randoms: Sequence[np.random.Generator]) -> Tree:
        """Play up to `max_steps` random steps in each environment; return the observations.

        Afterwards the environments are at different points of their episodes; synchronized starts
        correlate early batches (Stooke & Abbeel 2018, https://arxiv.org/abs/1803.02811, section
        3).  All environments take `max_steps` steps; each is reset once, a random number of steps
        before the end.  Episodes that end meanwhile are not counted.  Each generator draws for an
        equal part of the environments.

        Raises TrainingError if the vector environment cannot reset single environments.
        """
        width = self.num_envs // len(randoms)
        steps_after_reset = np.concatenate(
            [
                random.integers(0, max_steps + 1, width // self.agents).repeat(self.agents)
                for random in randoms
            ]
        )
        draw = self._random_actions([int(random.integers(2**31)) for random in randoms])
        obs: Tree = None
        for left in range(max_steps, -1, -1):
            to_reset = steps_after_reset == left
            if to_reset.any():
                try:
                    raw, info = self.vector.reset(options={"reset_mask": to_reset})
                except (TypeError, ValueError, KeyError) as error:
                    raise TrainingError(
                        f"random_start needs environments that can be reset one by one: {error}"
                    ) from error
                self._score[to_reset], self._length[to_reset] = 0, 0
                self._ended[to_reset] = info.get(ABSENT, self._never)[to_reset]
                self._was_reset(info)
                acts = to_reset & ~self._ended
                obs = self._observation(raw, info, acts, acts, keep=~to_reset)
            if left:
                self._begin(draw())
                obs = self.finish().obs
        self.pop_episodes()
        return obs

    def play_randomly(self, steps: int, seed: int) -> Iterator[Tree]:
        """Reset and play random steps; yield the observations of each, [N, ...].

        N is B without the environments whose next row is no experience.
        """
        draw = self._random_actions([seed])
        obs = self.reset(seed)
        for step in range(steps):
            if step:
                self._begin(draw())
                obs = self.finish().obs
            acts = self._acts()
            yield trees.map_tree(lambda x: x[acts], obs)  # noqa: B023 - called at once

    def _acts(self) -> NDArray[np.bool_]:
        """Return in which environments an action on the last observation is experience."""
        resets_later = self._mode is AutoresetMode.NEXT_STEP or self._waits
        return ~self._ended if resets_later else ~self._never

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes finished since the last call."""
        return [episode for _, episode in self.pop_episodes_by_environment()]

    def pop_episodes_by_environment(self) -> list[tuple[int, Episode]]:
        """Return the episodes finished since the last call, each with the index of its game.

        Short episodes finish first and more often: an unbiased mean needs the environment of
        each.
        """
        episodes, self._episodes = self._episodes, []
        return episodes

    def pop_crashes(self) -> list[CrashReport]:
        """Return the crashes since the last call."""
        vector = self.vector.unwrapped
        return vector.pop_crashes() if isinstance(vector, SupervisedVectorEnv | Elsewhere) else []

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of all environments and of their replacements, to a copy for each.

        Raises TrainingError for an attribute that they do not have, or that cannot be set.
        """
        for name, value in attributes.items():
            values = [copy.deepcopy(value) for _ in range(self.num_envs)]
            try:
                method_of(self.vector, "get_attr")(name)  # setting an unknown one would do nothing
                method_of(self.vector, "set_attr")(name, values)
            except (AttributeError, NotImplementedError) as error:
                raise TrainingError(
                    f"the environments have no attribute {name!r} that can be set: {error}"
                ) from None

    def ask_first(self, function: Callable[..., T], *args: Any) -> T:
        """Return `function(env, *args)` of the first environment, from the process that it is in.

        A third-party vector environment that does not show its `envs` is asked itself.
        """
        vector: Any = self.vector.unwrapped
        if isinstance(vector, vector_env.VectorEnv):
            found: list[T] = vector.apply_at([0], function, *args)
            return found[0]
        return function(envs_of(vector)[0], *args)

    def watch(self, flight: Any, step_timeout_s: float) -> None:
        """Start the watchdog of environments that were made, or pickled, in another process."""
        if isinstance(self.vector, (SupervisedVectorEnv, WatchedVectorEnv)):
            self.vector.watch(flight, step_timeout_s)

    def take_over(self, old: "Environments") -> bool:
        """Continue from the pickled environments `old`, instead of newly made ones.

        Environments in other processes continue there.  Returns False if they cannot.
        """
        if not self._steps_apart:
            old.close()
            return True
        paused, self.vector = self.vector, old.vector
        vector: Any = old.vector
        restored: bool = vector.resume(paused)
        return restored

    def close(self) -> None:
        """Close the environments."""
        self.vector.close()

    def __getstate__(self) -> dict[str, Any]:
        vector: Any = self.vector
        return {**self.__dict__, "vector": vector.pause() if self._steps_apart else vector}

    def _observation(
        self,
        obs: Any,
        info: dict[str, Any],
        read: NDArray[np.bool_] | None = None,
        acts: NDArray[np.bool_] | None = None,
        keep: NDArray[np.bool_] | None = None,
    ) -> Tree:
        """Convert observations, and add masks.

        Masks are read for the rows in `read`, which must include those that `acts` next; where
        `keep`, the previous masks still apply.  By default all rows are read, and act.
        """
        tree = self._observations.of(obs)
        if self._masks is None:
            if ACTION_MASK in info:
                raise TrainingError(
                    "the environment's info has an action_mask in `step` but had none in the first"
                    " `reset`: return one from `reset` too, for the first observation"
                )
            return tree
        if self._mask_is_observed:
            mask = self._masks.of(obs[ACTION_MASK], read, acts)
        else:
            has = info.get(f"_{ACTION_MASK}", self._never)
            acting = has if acts is None else has & acts
            if not acting.any() and (acts is None or acts.any()):
                raise TrainingError(
                    "the environment's info has an action_mask in `reset` but none in `step`:"
                    " return one from both"
                )
            mask = self._masks.of(info.get(ACTION_MASK), has if read is None else has & read, acts)
        if keep is not None and self._mask is not None:
            mask[keep] = self._mask[keep]
        self._mask = mask
        return {OBSERVATION: tree, ACTION_MASK: mask}

    def _random_actions(self, seeds: Sequence[int]) -> Callable[[], Any]:
        """Return a function that draws a batch of random actions, legal ones if there are masks.

        Each seed is for an equal part of the environments.
        """
        count, width = self.num_envs, self.num_envs // len(seeds)
        spaces = [copy.deepcopy(self.vector.single_action_space) for _ in seeds]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for space, seed in zip(spaces, seeds, strict=True):
            space.seed(seed)

        def draw() -> Any:
            if self._mask is None:
                samples = [space.sample() for space in spaces for _ in range(width)]
                into: Any = create_empty_array(spaces[0], count)
                return concatenate(spaces[0], samples, into)
            policy = torch.zeros(count, self.actions.outputs)
            policy[~torch.from_numpy(self._mask)] = ILLEGAL
            parts = zip(torch.split(policy, width), generators, strict=True)
            actions = [self.actions.sample(part, generator) for part, generator in parts]
            return self.actions.to_environment(torch.cat(actions).numpy())

        return draw

    def _was_reset(self, info: dict[str, Any]) -> NDArray[np.bool_]:
        """Return which environments, if an episode ended in the last step, now start a new game."""
        if not self._lives:
            return np.ones(self.num_envs, np.bool_)
        # Infos from several processes have a mask of the environments that set them.
        frame = np.array(info.get(FRAME, self._frame), np.int64)
        frame = np.where(info.get(f"_{FRAME}", FRAME in info), frame, self._frame)
        began = frame <= self._frame
        self._frame = frame
        return began
