"""What an environment does in a few random steps: whether it can be trained in, and what is odd.

    remotely_rl.check(MyEnv)    raises TrainingError, or returns what is odd

A run does the same before anything is made for it, with `probe_steps` steps.
"""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np

from remotely_rl import trees
from remotely_rl.environments.contract import Environments
from remotely_rl.environments.sources import Source, make
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Cause, Crashes, CrashReport, SupervisedVectorEnv
from remotely_rl.supervision.crashes import MAX_RATE
from remotely_rl.trees import Tree

STEPS = 512  # with which the statistics of the input begin


def check(env: Source | gymnasium.Env[Any, Any], steps: int = STEPS, seed: int = 1) -> list[str]:
    """Play random steps in an environment, and return what is odd in it, a sentence each.

    `env` is what a run takes, or an environment, which is left open.  Raises TrainingError, with
    what to do, for what no run could train in: a space that no policy fits, rows of `reset` or
    `step` that are not Gymnasium's, observations that are not of their space, masks that do not
    fit the actions.
    """
    if isinstance(env, gymnasium.Env):
        return look(make(lambda: env, 1), steps, seed)[1]
    with closing(make(env, 1)) as envs:
        return look(envs, steps, seed)[1]


def look(
    envs: Environments, steps: int, seed: int, max_crash_rate: float = MAX_RATE
) -> tuple[Tree, list[str]]:
    """Play so many random steps from a reset; return the observations [steps * B, ...], and what
    is odd.

    Raises TrainingError if a first step is wrong, or if there are too many crashes.
    """
    seen: list[Tree] = []
    reports: list[CrashReport] = []
    odd = ""
    for obs in envs.play_randomly(steps, seed):
        seen.append(obs)
        reports += envs.pop_crashes()
        for report in reports:
            if report.step == 1 and report.cause in (Cause.WRONG_ROW, Cause.WRONG_SHAPE):
                raise TrainingError(str(report))
        if not odd and isinstance(envs.vector, SupervisedVectorEnv):
            odd = envs.vector.rows.outside()
    crashes = Crashes(lambda text: None, max_crash_rate)
    crashes.stepped(steps)
    for report in reports:
        crashes.add(report)
    hint = ": give its Box the bounds that observations have"
    return trees.join(np.concatenate, seen), [f"{odd}{hint}"] if odd else []
