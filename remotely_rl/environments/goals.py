"""Goals: what an environment says of a goal that was achieved, in place of the one it had set.

The interface is that of Gymnasium-Robotics' goal environments: observations are a Dict with
`observation`, `achieved_goal` and `desired_goal`, and the environment has
`compute_reward(achieved, desired, info)`, and perhaps `compute_terminated`, which take a goal or a
batch of goals.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
from numpy.typing import NDArray

from remotely_rl.environments.contract import Environments
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import CrashReport, failures, judgement
from remotely_rl.supervision.judgement import Judgement

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"

# From goals achieved and desired, [N, ...] each.
Judge = Callable[[NDArray[Any], NDArray[Any]], Judgement]


def judge_of(envs: Environments, crashed: Callable[[CrashReport], object]) -> Judge:
    """Return the judge of these environments, which stay open.

    A process of theirs that dies is replaced; `crashed` is given each death, and may raise.  Raises
    TrainingError if they have no goals.
    """
    space = envs.space
    parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {}
    if not {ACHIEVED, DESIRED} <= parts.keys() or parts[ACHIEVED].shape != parts[DESIRED].shape:
        raise TrainingError(
            f"hindsight needs observations with {ACHIEVED!r} and {DESIRED!r} of the same shape, as"
            f" those of Gymnasium-Robotics; the observation space is {space}"
        )
    envs.ask_first(judgement.check_judges)
    dtype = parts[DESIRED].dtype

    def judge(achieved: NDArray[Any], desired: NDArray[Any]) -> Judgement:
        goals = achieved.astype(dtype), desired.astype(dtype)
        while True:
            try:
                return envs.ask_first(judgement.judgement_of, *goals)
            except failures.LOST:
                if not (reports := envs.pop_crashes()):
                    raise
                for report in reports:  # without its numbers: it is none of those that play
                    crashed(dataclasses.replace(report, env=None, actor=None))
                envs.reset()  # the one that replaces it

    return judge
