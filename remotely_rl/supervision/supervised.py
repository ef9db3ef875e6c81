"""Supervised: an environment whose errors end the episode instead of the run.

    step raises      the row is (last observation, reward 0, truncated), its info has `crashed`
                     and `crash`, the CrashReport; the environment is remade at the next reset
    reset raises     the environment is remade, and reset with the next seed, a few times
    NaN, infinity    in observation or reward, and observations that are not of the space: as if
                     `step` had raised

The transition of the crashed step is unknown, so whoever can should leave that row out.  Whoever
cannot learns that the episode was cut where it was last seen.

What ends the process (a native crash, a kill, `sys.exit`) or never returns is for the owner of the
process to notice; it writes a CrashReport of its own.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, SupportsFloat

import gymnasium

from remotely_rl.errors import TrainingError
from remotely_rl.supervision import finite
from remotely_rl.supervision.report import Cause, CrashReport, describe
from remotely_rl.supervision.seeds import Seeds

ACTIONS_KEPT = 1_000  # of an episode, for its replay
RESETS = 10  # attempts of one reset

Make = Callable[[], gymnasium.Env[Any, Any]]


def ignore(report: CrashReport) -> None:
    """Be told of a crash, and do nothing."""


class Supervised(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment, remade when it crashes.  `env` is the present one."""

    def __init__(
        self,
        make: Make,
        index: int = 0,
        on_crash: Callable[[CrashReport], None] = ignore,
        *,
        episode_seeds: bool = True,
        check_finite: bool = True,
    ):
        """`on_crash` receives each report, and may raise to end the run.

        With `episode_seeds` each episode has a seed of its own, see seeds.py; otherwise `reset`
        passes on what it is given.  Raises what `make` raises: an environment that cannot even be
        made once is not flaky.
        """
        super().__init__(make())
        self.index = index
        self._make = make
        self._on_crash = on_crash
        self._episode_seeds = episode_seeds
        self._check_finite = check_finite
        self._check = finite.checks_of(self.env.observation_space, check_finite)
        self._spaces = self.env.observation_space, self.env.action_space
        self._seeds = Seeds()
        self._seed: int | None = None
        self._seed_of_reset: int | None = None
        self._episode = 0
        self._options: dict[str, Any] | None = None
        self._actions: deque[Any] = deque(maxlen=ACTIONS_KEPT)
        self._step = 0
        self._lived = 0
        self._obs: Any = None
        self._is_broken = False

    @property
    def seed(self) -> int | None:
        """The seed of the last reset that had one."""
        return self._seed

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take a step; a crash ends the episode as truncated."""
        self._step += 1
        self._lived += 1
        self._actions.append(action)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            self._check(obs)
            if self._check_finite:
                finite.check_reward(reward)
        except Exception as error:
            report = self._crashed(error)
            return self._obs, 0.0, False, True, {"crashed": True, "crash": report}
        self._obs = obs
        return obs, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, in a new environment if the last one crashed.

        Raises TrainingError if the environment cannot be reset several times in a row.
        """
        if seed is not None:
            self._seeds = Seeds(seed)
        for attempt in range(RESETS):
            self._begin(seed if attempt == 0 else None, options)
            try:
                if self._is_broken:
                    self._remake()
                obs, info = self.env.reset(seed=self._seed_of_reset, options=options)
                self._check(obs)
            except Exception as error:
                last = self._crashed(error)
                continue
            self._obs = obs
            return obs, info
        raise TrainingError(
            f"environment {self.index} could not be reset {RESETS} times in a row; the last:"
            f" {last.what}\n{last.details}"
        )

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Record the beginning of an episode."""
        # A new environment needs a seed in any case: with the old one it would crash again.
        wants_seed = seed is not None or self._episode_seeds or self._is_broken
        self._seed_of_reset = self._seeds.next() if wants_seed else None
        if self._seed_of_reset is not None:
            self._seed, self._episode = self._seed_of_reset, 0
        else:
            self._episode += 1
        self._options = options
        self._step = 0
        self._actions.clear()

    def _remake(self) -> None:
        with contextlib.suppress(Exception):  # it is broken already
            self.env.close()
        env = self._make()
        made = env.observation_space, env.action_space
        if made != self._spaces:
            env.close()
            raise finite.WrongShape(
                f"a new environment has the spaces {made}; the one before had {self._spaces}"
            )
        self.env = env
        self._lived = 0
        self._is_broken = False

    def _crashed(self, error: Exception) -> CrashReport:
        match error:
            case finite.NotFinite():
                cause, frames = Cause.NOT_FINITE, None
            case finite.WrongShape():
                cause, frames = Cause.WRONG_SHAPE, None
            case _:
                cause, frames = Cause.RAISED, _below(error.__traceback__)
        what, details = describe(error, frames)
        report = CrashReport(
            env=self.index,
            cause=cause,
            what=what if cause is Cause.RAISED else str(error),
            details=details if cause is Cause.RAISED else "",
            step=self._step,
            seed=self._seed,
            episode=self._episode,
            options=self._options,
            actions=tuple(self._actions),
            lived=self._lived,
        )
        self._is_broken = True
        self._on_crash(report)
        return report


def _below(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frame of this file."""
    return frames.tb_next if frames is not None else None
