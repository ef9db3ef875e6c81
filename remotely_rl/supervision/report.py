"""CrashReport: the crash of an environment, and its replay."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Cause(StrEnum):
    """Why an environment had to be replaced.  The value is the verb of the report's sentence."""

    RAISED = "raised"  # an exception propagated out of `step` or `reset`
    DIED = "died"  # its process ended
    HUNG = "hung"  # it did not return in time
    LOST = "was lost"  # its machine is gone
    NOT_FINITE = "returned a number that is not finite"
    WRONG_SHAPE = "returned an observation that is not of its space"
    WRONG_ROW = "returned what Gymnasium's do not"


@dataclass(frozen=True)
class CrashReport:
    """One crash.

    env         the index of the environment; None if unknown
    actor       the index of its actor, if there are several
    cause       the kind of crash
    what        one line: the error, the signal or the time limit
    details     the traceback, or the last lines of the process's stderr
    step        the step of the episode that crashed, from 1; 0 in `reset`
    seed        of the last call of `reset` that had a seed
    episode     the number of episodes since that call; 0 if it began this episode
    options     of the reset that began the episode
    actions     the last actions of the episode, up to that of `step`
    lived       steps since the environment was made, over all its episodes
    """

    env: int | None
    cause: Cause
    what: str
    details: str = ""
    step: int = 0
    seed: int | None = None
    episode: int = 0
    options: dict[str, Any] | None = None
    actions: tuple[Any, ...] = ()
    lived: int = 0
    actor: int | None = None

    def __str__(self) -> str:
        if self.env is None:
            name = "an actor" if self.actor is None else f"actor {self.actor}"
            return f"{name} {self.cause}: {self.what}"
        where = f"in step {self.step:,}" if self.step else "in reset"
        seed = "" if self.seed is None else f", seed {self.seed}"
        if self.episode:
            seed += f", {self.episode:,} episode{'s' * (self.episode > 1)} later"
        return f"environment {self.env} {self.cause} {where}{seed}: {self.what}"

    @property
    def is_complete(self) -> bool:
        """Whether the seed and the actions suffice to replay the episode."""
        return self.seed is not None and self.episode == 0 and len(self.actions) == self.step

    def replay(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
        """Make an environment, and repeat the episode up to and including the crash.

        Raises what the environment raises; a native crash ends this process.  Returns the
        environment if it does not crash.  Raises ValueError if the report is not complete.
        """
        if not self.is_complete:
            raise ValueError(
                f"this report has {len(self.actions):,} of {self.step:,} actions, and its episode"
                f" began {self.episode:,} episodes after seed {self.seed}: it cannot be replayed"
            )
        env = make()
        env.reset(seed=self.seed, options=self.options)
        for action in self.actions:
            env.step(_conform(env.action_space, action))
        return env


def describe(error: BaseException, from_frame: TracebackType | None = None) -> tuple[str, str]:
    """Return an error as one line and as a traceback that starts at `from_frame`."""
    line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = from_frame or error.__traceback__
    return line, "".join(traceback.format_exception(type(error), error, frames)).rstrip()


def _conform(space: gymnasium.Space[Any], value: Any) -> Any:
    """Convert an action back from JSON types to those of its space."""
    match space:
        case spaces.Discrete():
            return int(value)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return np.asarray(value, space.dtype).reshape(space.shape)
        case spaces.Tuple():
            return tuple(_conform(part, item) for part, item in zip(space, value, strict=True))
        case spaces.Dict():
            return {key: _conform(part, value[key]) for key, part in space.items()}
    return value
