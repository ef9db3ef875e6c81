"""SupervisedVectorEnv: environments stepped in turn, each remade when it crashes.

    step raises      the row is (last observation, reward 0, truncated), and its info has
                     `crash_report`, the CrashReport; the environment is remade at its next reset
    reset raises     the environment is remade, and reset with another seed, a few times
    NaN, infinity    in observation or reward, observations that are not of the space, and rows
                     that are not as Gymnasium's: as if `step` had raised

The transition of the crashed step is unknown, so whoever can should leave that row out.  Whoever
cannot learns that the episode was cut where it was last seen.

What ends the process (a native crash, a kill, `sys.exit`) or never returns is for the owner of the
process to notice.  What it was doing is in the flight record (flight.py).

It is otherwise Gymnasium's SyncVectorEnv, and faster: observations go straight into one of two
arrays in turn, so what a crash wrote halfway does not matter, and the last observation is there.

The class is over 250 lines: it has the whole interface of a vector environment, over one state.
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
from gymnasium.vector.utils import batch_space, iterate
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
    NotFinite,
    Rows,
    WrongRow,
    WrongShape,
    checked_reset,
    fault_of,
    reward_of,
)
from remotely_rl.supervision.seeds import Seeds, of_each
from remotely_rl.supervision.watchdog import Watchdog

RESETS = 10  # attempts of one reset
CRASH = "crash_report"  # the key of an info; `crashed` has other meanings where cars are driven

Make = Callable[[], gymnasium.Env[Any, Any]]


def spec_of(env_id: str) -> EnvSpec:
    """Return the spec of an id, or of `module:id` once the module is imported.

    Raises ImportError if there is no such module, and Gymnasium's error for an unknown id.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    is_registered(name)
    return gymnasium.spec(name)


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium knows an id; one of ale-py's, too, which is imported only if need be."""
    if env_id not in gymnasium.registry:
        import ale_py  # noqa: PLC0415 - few need it, and it takes time and memory

        gymnasium.register_envs(ale_py)
    return env_id in gymnasium.registry


def maker_of(env_id: str, kwargs: dict[str, Any] | None = None) -> Make:
    """Return what makes an environment, with `kwargs` for `gymnasium.make`, in any process.

    An id is known only where it was registered, in the user's script; its spec can be sent.
    """
    return partial(gymnasium.make, spec_of(env_id), **(kwargs or {}))


class SupervisedVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """Environments in this process.  `envs` are the present ones, `rows` their observations."""

    def __init__(
        self,
        makes: Sequence[Make],
        *,
        copy: bool = True,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        episode_seeds: bool = True,
        check_finite: bool = True,
        step_timeout_s: float = 0.0,
        flight: Any = None,
        first_index: int = 0,
        waits: bool = False,
    ):
        """Make the environments.  Raises what `makes` raise, and TrainingError if they differ.

        Without `copy`, what a step returns is written into again by the step after the next.  With
        `episode_seeds` each episode has a seed of its own, see seeds.py; otherwise `reset` passes
        on what it is given.  `step_timeout_s` ends this process if a step or a reset of one
        environment takes longer; 0: no limit.  `flight` is memory for the flight record.
        Errors number the environments from `first_index`.  One that `waits` is not stepped once its
        episode is over, and its row stays as it was, until `reset` begins another.
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

        self._record = FlightRecord(count, None, flight)  # to be there while they are made
        self._watchdog = Watchdog(self._record, step_timeout_s) if step_timeout_s else None
        self._record.begin(threading.get_ident())
        self.envs: list[gymnasium.Env[Any, Any]] = []
        for i, make in enumerate(self._makes):
            self._record.began[i] = time.monotonic()
            self.envs.append(make())
        self._record.end()

        first = self.envs[0]
        self._spaces = _spaces_of(first, f"environment {first_index}")
        for i, env in enumerate(self.envs):
            self._check(env, i, f"environment {first_index + i}")
        self.single_observation_space, self.single_action_space = self._spaces
        self.observation_space = batch_space(self.single_observation_space, count)
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
        """Write the rows into these arrays: observations into each of two lists in turn."""
        count = self.num_envs
        first, second = observations or (None, None)
        self.rows = Rows(self.single_observation_space, count, first)
        self._other_rows = Rows(self.single_observation_space, count, second)
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
            return (
                rows.value(True), rewards.copy(), terminated.copy(), truncated.copy(), infos,
            )  # fmt: skip
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
        """Write into the other one of the two lists of observations from now on."""
        self.rows, self._other_rows = self._other_rows, self.rows

    def end_episodes(self, which: Sequence[int]) -> None:
        """Let the next step of these environments be one that resets them."""
        for i in which:
            self._ended[i] = True

    def render(self) -> tuple[Any, ...] | None:
        """Return a frame of each environment."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute."""
        return tuple(self.call_one(i, name, *args, **kwargs) for i in range(self.num_envs))

    def call_one(self, i: int, name: str, *args: Any, **kwargs: Any) -> Any:
        """The same for one environment."""
        found = self.envs[i].get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, and of those that will replace them."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{len(values)} values for {self.num_envs} environments")
        for i, value in enumerate(values):
            self.set_attr_of(i, name, value)

    def set_attr_of(self, i: int, name: str, value: Any) -> None:
        """The same for one environment."""
        self.envs[i].set_wrapper_attr(name, value)
        self._attributes[i][name] = value
        self._steps[i] = self.envs[i].step

    def watch(self, flight: Any, step_timeout_s: float) -> None:
        """Keep the flight record in other memory from now on, and watch over the steps."""
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
        """Reset an environment, and make it first if it is broken; write its observation.

        Raises TrainingError if that fails several times in a row.
        """
        if seed is not None:
            self._seeds[i] = Seeds(seed)
        for attempt in range(RESETS):
            given = seed if attempt == 0 else None
            # A new environment needs a seed in any case: with the old one it would crash again,
            # and without one nobody could replay it.
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
            except WrongRow as error:  # which another attempt would return too
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
        """An episode is over; return what info the row has."""
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
        """Add the info of an environment as Gymnasium does, but lose nothing of what differs."""
        for key, value in env_info.items():
            held = vector_infos.get(key)
            if isinstance(held, np.ndarray):
                mask = vector_infos[f"_{key}"]
                vector_infos[key] = infos_module.with_room_for(held, mask, value)
        return super()._add_info(vector_infos, env_info, env_num)

    # --- crashes ----------------------------------------------------------------------------------

    def _crash(self, i: int, error: Exception, frames: TracebackType | None = None) -> Info:
        """The step of an environment has crashed: write its row, and return its info."""
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
                # Without the frame of this file.
                below = frames.tb_next if frames is not None else None
                report = self._record.report(i, Cause.RAISED, *describe(error, below))
        self.crashes.append(report)
        return report

    def _find_not_finite(self, infos: Info) -> None:
        """Some observation or reward may be NaN or infinite: find out which, and of whom."""
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

    def _check(self, env: gymnasium.Env[Any, Any], i: int, who: str) -> None:
        """Raise TrainingError for what cannot be the i-th environment of these."""
        if (made := _spaces_of(env, who)) != self._spaces:
            raise TrainingError(
                f"{who} has other spaces than the first: {made} instead of {self._spaces}"
            )
        for j, known in enumerate(self.envs):
            if j != i and known.unwrapped is env.unwrapped:
                one, other = (self.first_index + index for index in sorted((i, j)))
                raise TrainingError(
                    f"environments {one} and {other} are one object: what makes environments must"
                    " make a new one in each call"
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


def _spaces_of(env: gymnasium.Env[Any, Any], who: str) -> tuple[gymnasium.Space[Any], ...]:
    """Return the spaces of observations and actions.  Raises TrainingError for one of old ways."""
    found: list[gymnasium.Space[Any]] = []
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gymnasium.Space):
            raise TrainingError(
                f"{who} has {name} {space!r}: set it in `__init__` to one of gymnasium.spaces"
            )
        found.append(space)
    with contextlib.suppress(ValueError):  # it is of C, and has no signature
        try:
            signature_of(env.unwrapped.reset).bind(seed=None, options=None)
        except TypeError:
            raise TrainingError(
                f"{who} has a `reset` that takes no seed or no options: let it be"
                " `def reset(self, *, seed=None, options=None)`"
            ) from None
    return tuple(found)


def _check_reward(reward: float) -> None:
    if not math.isfinite(reward):
        raise NotFinite(f"the reward is {reward}")


def check_none_ended(ended: Sequence[bool] | NDArray[np.bool_]) -> None:
    """Raise ValueError if an episode is over that only `reset` would begin again."""
    if any(ended):
        raise ValueError(
            f"environments {np.flatnonzero(ended).tolist()} have ended: reset them first,"
            " with options={'reset_mask': ...}"
        )


def checked_mask(mask: Any, count: int) -> NDArray[np.bool_]:
    """Return options["reset_mask"], or raise what Gymnasium raises for a wrong one."""
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        raise TypeError("options['reset_mask'] must be an array of bool")
    if mask.shape != (count,) or not mask.any():
        raise ValueError(
            f"options['reset_mask'] must have shape ({count},) and a true element; it is {mask}"
        )
    return mask
