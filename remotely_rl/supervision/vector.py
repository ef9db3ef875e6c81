"""SupervisedVectorEnv: environments stepped in turn, each recreated when it crashes.

    step raises      the row is a crash row: last observation, reward 0, truncated, and the
                     CrashReport in info["crash_report"]; the next reset recreates the environment
    reset raises     the environment is recreated and reset with another seed, up to RESETS times
    bad results      NaN or infinity in observation or reward, an observation outside the space, or
                     a row that breaks Gymnasium's interface: as if `step` had raised

The transition of a crashed step is unknown, so a learner should leave the crash row out.  To other
learners the row truncates the episode at its last observation.

The owner of the process must detect what ends the process (a native crash, a kill, `sys.exit`) or
never returns.  The flight record (flight.py) says what the process was doing.

Otherwise it is Gymnasium's SyncVectorEnv, but faster: it writes observations directly into two
arrays in turn.  So a crash that leaves one half-written does no harm: the last observation is in
the other.
"""

import contextlib
import importlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, iterate
from numpy.typing import NDArray

from remotely.arguments import signature_of
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import infos as infos_module
from remotely_rl.supervision.flight import FlightRecord
from remotely_rl.supervision.infos import Info
from remotely_rl.supervision.report import Cause, CrashReport, describe
from remotely_rl.supervision.rows import (
    ARRAYS,
    NUMBERS,
    EnvRows,
    NotFinite,
    WrongRow,
    WrongShape,
    checked_reset,
    covering,
    fault_of,
    reward_of,
)
from remotely_rl.supervision.seeds import Seeds, of_each
from remotely_rl.supervision.watchdog import Watchdog

RESETS = 10  # attempts of one reset
CRASH = "crash_report"  # a key of infos; driving environments use `crashed` for other things

Make = Callable[[], gymnasium.Env[Any, Any]]


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of an id, or of `module:id` after importing the module.

    Raises ImportError if there is no such module, and Gymnasium's error for an unknown id.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    is_registered(name)
    return gymnasium.spec(name)


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium knows an id; imports ale-py only for an unknown id."""
    if env_id not in gymnasium.registry:
        import ale_py  # noqa: PLC0415 - slow, and rarely needed

        gymnasium.register_envs(ale_py)
    return env_id in gymnasium.registry


def maker_of(env_id: str, kwargs: dict[str, Any] | None = None) -> Make:
    """Return a callable that makes an environment in any process, by `gymnasium.make`.

    It holds the spec, because an id may be registered only in the user's script.
    """
    return partial(gymnasium.make, spec_of(env_id), **(kwargs or {}))


class SupervisedVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """See the module's docstring.  `rows` has the observations of the current `envs`."""

    def __init__(
        self,
        makes: Sequence[Make],
        *,
        copy: bool = True,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        same_spaces: bool = True,
        episode_seeds: bool = True,
        check_finite: bool = True,
        step_timeout_s: float = 0.0,
        flight: Any = None,
        first_index: int = 0,
        waits: bool = False,
    ):
        """Make the environments.  Raises what `makes` raise, and TrainingError if they differ.

        copy             False: the step after the next overwrites the arrays that a step returns
        same_spaces      whether observation spaces must be equal, not only of one shape and dtype
        episode_seeds    give each episode its own seed (seeds.py); otherwise `reset` passes its
                         seeds on
        step_timeout_s   end this process if a step or reset of one environment takes longer;
                         0: no limit
        flight           memory for the flight record
        first_index      the number of the first environment in errors
        waits            do not step an environment whose episode is over: its row stays the same
                         until `reset` begins another episode
        """
        self._makes = list(makes)
        self.num_envs = count = len(self._makes)
        self.copy = copy
        self.autoreset_mode = AutoresetMode.DISABLED if waits else autoreset_mode
        self._waits = waits
        self.crashes: list[CrashReport] = []  # since `pop_crashes`
        self.first_index = first_index
        self._episode_seeds = episode_seeds
        self._check_finite = check_finite
        self._seeds = [Seeds() for _ in range(count)]
        self._ended = [False] * count
        self._broken = [False] * count
        self._episode = [-1] * count  # since it was seeded; -1: it never was
        self._attributes: list[dict[str, Any]] = [{} for _ in range(count)]  # set by set_attr

        self._record = FlightRecord(count, None, flight)  # for a crash or hang of a `make`
        self._watchdog = Watchdog(self._record, step_timeout_s) if step_timeout_s else None
        self._record.begin(threading.get_ident())
        self.envs: list[gymnasium.Env[Any, Any]] = []
        for i, make in enumerate(self._makes):
            self._record.began[i] = time.monotonic()
            self.envs.append(make())
        self._record.end()

        first = self.envs[0]
        names = [f"environment {first_index + i}" for i in range(count)]
        own = [_spaces_of(env, name) for env, name in zip(self.envs, names, strict=True)]
        check_spaces(own, same_spaces, first_index)
        self._spaces = own  # of each environment, and of those that replace it
        for i, env in enumerate(self.envs):
            self._check(env, i, names[i])
        self.single_observation_space, self.single_action_space = own[0]
        self.observation_spaces = [space for space, _ in own]
        self._row_space = covering(self.observation_spaces)
        self.observation_space = (
            batch_space(self.single_observation_space, count)
            if same_spaces
            else batch_differing_spaces(self.observation_spaces)
        )
        self.action_space = batch_space(self.single_action_space, count)
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self._use(FlightRecord(count, self.single_action_space, flight))
        self._steps = [env.step for env in self.envs]
        self.write_into(None)

    def write_into(
        self,
        observations: Sequence[Sequence[NDArray[Any]]] | None,
        rewards: NDArray[np.float64] | None = None,
        terminated: NDArray[np.bool_] | None = None,
        truncated: NDArray[np.bool_] | None = None,
    ) -> None:
        """Write the rows into these arrays: observations into the two lists in turn."""
        count = self.num_envs
        first, second = observations or (None, None)
        self.rows = EnvRows(self._row_space, count, first)
        self._other_rows = EnvRows(self._row_space, count, second)
        self._rewards = np.zeros(count) if rewards is None else rewards
        self._terminated = np.zeros(count, np.bool_) if terminated is None else terminated
        self._truncated = np.zeros(count, np.bool_) if truncated is None else truncated

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Take a step in each environment; a crash ends its episode as truncated."""
        if isinstance(self.single_action_space, ARRAYS):
            if len(actions) != self.num_envs:
                raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
            each = actions
        else:
            each = iterate(self.action_space, actions)
        if self.autoreset_mode is AutoresetMode.DISABLED and not self._waits:
            check_none_ended(self._ended)
        self.swap_rows()
        rows = self.rows
        rewards, terminated, truncated = self._rewards, self._terminated, self._truncated
        terminated.fill(False)
        truncated.fill(False)
        record, steps, ended, write = self._record, self._steps, self._ended, rows.write
        began, clock = record.began, time.monotonic
        infos: Info = {}
        record.begin(threading.get_ident(), actions)
        for i, action in enumerate(each):
            began[i] = clock()
            if ended[i]:
                record.skip(i)
                rewards[i] = 0.0
                if self._waits:
                    rows.copy_row(i, self._other_rows)
                    continue
                info = self._begin_episode(i)
            else:
                row: Any = ()
                try:
                    row = steps[i](action)
                    obs, reward, is_terminated, is_truncated, info = row
                    if type(reward) not in NUMBERS or type(info) is not dict:
                        reward = reward_of(reward, info)
                    rewards[i] = reward
                    write(i, obs)
                    if is_over := is_terminated or is_truncated:
                        terminated[i], truncated[i] = is_terminated, is_truncated
                except Exception as error:
                    info = self._crash(i, fault_of(row, error), error.__traceback__)
                    is_over = True
                if is_over:
                    info = self._end_episode(i, info, infos)
            if info:
                infos = self._add_info(infos, info, i)
        record.end()
        if self._check_finite and not (
            rows.are_finite() and math.isfinite(np.vdot(rewards, rewards))
        ):
            self._find_not_finite(infos)
        if self.copy:
            return (rows.value(True), rewards.copy(), terminated.copy(), truncated.copy(), infos)
        return rows.value(False), rewards, terminated, truncated, infos

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Info | None = None,
    ) -> tuple[Any, Info]:
        """Begin an episode in each environment, or in those of options["reset_mask"]."""
        count = self.num_envs
        options = dict(options) if options else None
        mask = options.pop("reset_mask", None) if options else None
        which = range(count) if mask is None else np.flatnonzero(checked_mask(mask, count)).tolist()
        seeds = of_each(seed, count)
        infos: Info = {}
        self._record.begin(threading.get_ident(), is_step=False)
        for i in which:
            self._record.began[i] = time.monotonic()
            info = self._begin_episode(i, seeds[i], options)
            if info:
                infos = self._add_info(infos, info, i)
            self._terminated[i] = self._truncated[i] = False
        self._record.end()
        return self.rows.value(self.copy), infos

    def pop_crashes(self) -> list[CrashReport]:
        """Return the crashes since the last call."""
        crashes, self.crashes = self.crashes, []
        return crashes

    @property
    def outcomes(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """The rewards of the last step, and which episodes it terminated and truncated."""
        return self._rewards, self._terminated, self._truncated

    def swap_rows(self) -> None:
        """Write into the other list of observations from now on."""
        self.rows, self._other_rows = self._other_rows, self.rows

    def end_episodes(self, which: Sequence[int]) -> None:
        """Make the next step reset these environments."""
        for i in which:
            self._ended[i] = True

    def render(self) -> tuple[Any, ...] | None:
        """Return a frame of each environment."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute."""
        return tuple(self.call_at(range(self.num_envs), name, *args, **kwargs))

    def call_at(self, which: Sequence[int], name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of some environments, or read an attribute."""

        def one(env: gymnasium.Env[Any, Any]) -> Any:
            found = env.get_wrapper_attr(name)
            return found(*args, **kwargs) if callable(found) else found

        return [one(self.envs[i]) for i in which]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, and of their replacements."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} environments")
        self.set_attr_at(range(self.num_envs), name, values)

    def set_attr_at(self, which: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of some environments, and of their replacements."""
        for i, value in zip(which, values, strict=True):
            self.envs[i].set_wrapper_attr(name, value)
            self._attributes[i][name] = value
            self._steps[i] = self.envs[i].step

    def watch(self, flight: Any, step_timeout_s: float) -> None:
        """Move the flight record to other memory, and watch the steps."""
        self._use(self._record.move_to(flight))
        if step_timeout_s and self._watchdog is None:
            self._watchdog = Watchdog(self._record, step_timeout_s)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        if self._watchdog is not None:
            self._watchdog.close()
        for env in self.envs:
            env.close()

    # --- episodes ---------------------------------------------------------------------------------

    def _begin_episode(self, i: int, seed: int | None = None, options: Info | None = None) -> Info:
        """Reset an environment, recreating it first if it is broken; write its observation.

        Raises TrainingError if that fails RESETS times in a row.
        """
        if seed is not None:
            self._seeds[i] = Seeds(seed)
        for attempt in range(RESETS):
            given = seed if attempt == 0 else None
            # A new environment always needs a new seed: with the old one it would crash again, and
            # without one its episode could not be replayed.
            is_new = self._broken[i] or self._episode[i] < 0
            if given is not None or self._episode_seeds or is_new:
                given, self._episode[i] = self._seeds[i].next(), 0
            else:
                self._episode[i] += 1
            self._record.reset_now(i, given, self._episode[i], options)
            try:
                if self._broken[i]:
                    self._remake(i)
                obs, info = checked_reset(self.envs[i].reset(seed=given, options=options))
                self.rows.write(i, obs)
                if self._check_finite:
                    self.rows.check_row(i)
            except WrongRow as error:  # another attempt would not help
                raise TrainingError(f"environment {self.first_index + i}: {error}") from None
            except Exception as error:
                last = self._crashed(i, error, error.__traceback__)
                continue
            self._ended[i] = False
            return info
        raise TrainingError(
            f"environment {self.first_index + i} could not be reset {RESETS} times in a row;"
            f" the last: {last.what}\n{last.details}"
        )

    def _end_episode(self, i: int, info: Info, infos: Info) -> Info:
        """End an episode; in SAME_STEP mode begin the next one.  Return the row's info."""
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._ended[i] = True
            return info
        if self._check_finite:
            try:
                self.rows.check_row(i)
                _check_reward(self._rewards[i])
            except NotFinite as error:
                info = self._crash(i, error)
        self._add_info(infos, {"final_obs": self.rows.row(i), "final_info": info}, i)
        first = self._begin_episode(i)
        return {**first, CRASH: info[CRASH]} if CRASH in info else first

    def _add_info(self, vector_infos: Info, env_info: Info, env_num: int) -> Info:
        """Add the info of an environment as Gymnasium does, but without casting values."""
        for key, value in env_info.items():
            held = vector_infos.get(key)
            if isinstance(held, np.ndarray):
                mask = vector_infos[f"_{key}"]
                vector_infos[key] = infos_module.with_room_for(held, mask, value)
        return super()._add_info(vector_infos, env_info, env_num)

    # --- crashes ----------------------------------------------------------------------------------

    def _crash(self, i: int, error: Exception, frames: TracebackType | None = None) -> Info:
        """Write the crash row of an environment; return its info."""
        report = self._crashed(i, error, frames)
        self.rows.copy_row(i, self._other_rows)
        self._rewards[i] = 0.0
        self._terminated[i], self._truncated[i] = False, True
        return {CRASH: report}

    def _crashed(
        self, i: int, error: Exception, frames: TracebackType | None = None
    ) -> CrashReport:
        self._broken[i] = True
        match error:
            case NotFinite():
                report = self._record.report(i, Cause.NOT_FINITE, str(error))
            case WrongShape():
                report = self._record.report(i, Cause.WRONG_SHAPE, str(error))
            case WrongRow():
                report = self._record.report(i, Cause.WRONG_ROW, str(error))
            case _:
                # Omit the frame of this file.
                below = frames.tb_next if frames is not None else None
                report = self._record.report(i, Cause.RAISED, *describe(error, below))
        self.crashes.append(report)
        return report

    def _find_not_finite(self, infos: Info) -> None:
        """Find the environments with NaN or infinity in observation or reward: they crash."""
        for i in range(self.num_envs):
            try:
                self.rows.check_row(i)
                _check_reward(self._rewards[i])
            except NotFinite as error:
                info = self._end_episode(i, self._crash(i, error), infos)
                self._add_info(infos, info, i)

    def _remake(self, i: int) -> None:
        with contextlib.suppress(Exception):  # it is broken already
            self.envs[i].close()
        self._record.made_now(i)
        env = self._makes[i]()
        try:
            self._check(env, i, "a new environment")
        except TrainingError as error:
            env.close()
            raise WrongShape(str(error)) from None
        for name, value in self._attributes[i].items():
            env.set_wrapper_attr(name, value)
        self.envs[i], self._steps[i] = env, env.step
        self._broken[i] = False

    def _check(self, env: gymnasium.Env[Any, Any], i: int, name: str) -> None:
        """Raise TrainingError if `env` cannot be environment `i`."""
        if (made := _spaces_of(env, name)) != self._spaces[i]:
            raise TrainingError(
                f"{name} has different spaces from before: {made} instead of {self._spaces[i]}"
            )
        for j, known in enumerate(self.envs):
            if j != i and known.unwrapped is env.unwrapped:
                one, other = (self.first_index + index for index in sorted((i, j)))
                raise TrainingError(
                    f"environments {one} and {other} are the same object: the callable must make a"
                    " new environment in each call"
                )

    # --- flight record ----------------------------------------------------------------------------

    def _use(self, record: FlightRecord) -> None:
        self._record = record
        if self._watchdog is not None:
            self._watchdog.record = record

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_record": bytes(self._record.memory), "_watchdog": None}
        del state["_steps"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        record = FlightRecord.read(bytearray(state["_record"]))
        assert record is not None
        self._record = record
        self._steps = [env.step for env in self.envs]


def check_spaces(
    each: Sequence[tuple[gymnasium.Space[Any], ...]], same_spaces: bool, first_index: int
) -> None:
    """Raise TrainingError if environments with these spaces cannot be batched."""
    first = each[0]
    for i, made in enumerate(each, first_index):
        if made[1] != first[1] or (same_spaces and made[0] != first[0]):
            hint = ""
            if made[1] == first[1]:
                hint = (
                    ": the sub-environments observation spaces are not equivalent. If this is"
                    " intentional, use `observation_mode='different'` instead."
                )
            raise TrainingError(
                f"environment {i} has different spaces from the first: {made} instead of"
                f" {first}{hint}"
            )
    try:
        covering([space for space, _ in each])
    except ValueError as error:
        raise TrainingError(f"the observation spaces of the environments are {error}") from None


def _spaces_of(env: gymnasium.Env[Any, Any], name: str) -> tuple[gymnasium.Space[Any], ...]:
    """Return the spaces of observations and actions.

    Raises TrainingError for an environment of the old Gym interface, or without spaces.
    """
    found: list[gymnasium.Space[Any]] = []
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, gymnasium.Space):
            raise TrainingError(
                f"{name} has {attribute} {space!r}: set it in `__init__` to one of gymnasium.spaces"
            )
        found.append(space)
    with contextlib.suppress(ValueError):  # `reset` is written in C, and has no signature
        try:
            signature_of(env.unwrapped.reset).bind(seed=None, options=None)
        except TypeError:
            raise TrainingError(
                f"{name} has a `reset` that takes no seed or no options: define it as"
                " `def reset(self, *, seed=None, options=None)`"
            ) from None
    return tuple(found)


def _check_reward(reward: float) -> None:
    if not math.isfinite(reward):
        raise NotFinite(f"the reward is {reward}")


def check_none_ended(ended: Sequence[bool] | NDArray[np.bool_]) -> None:
    """Raise ValueError if an episode has ended: only `reset` begins the next one."""
    if any(ended):
        raise ValueError(
            f"environments {np.flatnonzero(ended).tolist()} have ended: reset them first,"
            " with options={'reset_mask': ...}"
        )


def checked_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    """Check options["reset_mask"] and return it; raise what Gymnasium raises."""
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a NumPy array, got {type(mask)}")
    if mask.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {mask.dtype}")
    if mask.shape != (count,):
        raise ValueError(f"`options['reset_mask']` must have shape `({count},)`, got {mask.shape}")
    if not mask.any():
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, "
            f"got reset_mask={mask}"
        )
    return mask
