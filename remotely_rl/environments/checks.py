"""Checks of an environment, by playing a few random steps in it.

    remotely_rl.check(MyEnv)    raises TrainingError, or returns warnings

A run makes the same checks, with `probe_steps` steps, before it is set up.
"""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np

from remotely_rl import trees
from remotely_rl.environments.contract import Environments
from remotely_rl.environments.sources import Source, make
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Cause, Crashes, CrashReport, SupervisedVectorEnv, env_ranks
from remotely_rl.supervision.crashes import MAX_RATE
from remotely_rl.trees import Tree

STEPS = 512  # from which input statistics start


def check(env: Source | gymnasium.Env[Any, Any], steps: int = STEPS, seed: int = 1) -> list[str]:
    """Play random steps in an environment; return warnings, one sentence each.

    `env` is what a run accepts, or an environment, which stays open.  Raises TrainingError, with
    a hint, if no run could train in it: for an unsupported space, results of `reset` or `step`
    that are not Gymnasium's, observations outside their space, or masks that do not fit the
    actions.
    """
    if isinstance(env, gymnasium.Env):
        return play(make(lambda: env, 1), steps, seed)[1]
    with closing(make(env, 1, first_rank=env_ranks.ALONE)) as envs:
        return play(envs, steps, seed)[1]


def play(
    envs: Environments, steps: int, seed: int, max_crash_rate: float = MAX_RATE
) -> tuple[Tree, list[str]]:
    """Play `steps` random steps after a reset; return the observations of rows of experience, [N,
    ...], and warnings.

    Raises TrainingError if a first step is invalid, or if there are too many crashes.
    """
    observations: list[Tree] = []
    reports: list[CrashReport] = []
    warning = ""
    for obs in envs.play_randomly(steps, seed):
        observations.append(obs)
        reports += envs.pop_crashes()
        for report in reports:
            if report.step == 1 and report.cause in (Cause.WRONG_ROW, Cause.WRONG_SHAPE):
                raise TrainingError(str(report))
        if not warning and isinstance(envs.vector, SupervisedVectorEnv):
            warning = envs.vector.rows.outside()
    crashes = Crashes(None, max_crash_rate)
    crashes.stepped(steps)
    for report in reports:
        crashes.add(report)
    hint = ": give its Box the bounds that observations have"
    return trees.join(np.concatenate, observations), [f"{warning}{hint}"] if warning else []
