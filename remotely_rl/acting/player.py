"""Player: environments played for T steps at a time, by whatever chooses the actions."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import remotely
from remotely_rl import trees
from remotely_rl.config import Common
from remotely_rl.environments import Watch
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.supervision import flight
from remotely_rl.supervision.failures import the_model_computes


class AgentOutput(NamedTuple):
    """What an agent returns for [B] observations; actions as in `action_spaces.py`."""

    action: NDArray[Any]
    log_prob: NDArray[np.float32]
    value: NDArray[np.float32]


def watch(config: Common, count: int) -> Watch | None:
    """Return how `count` environments of this process are watched over.

    None in a process that is not an actor: under REMOTELY_LOCAL it is the user's own.
    """
    if remotely.current_actor() is None:
        return None
    memory = remotely.flight_recorder(flight.nbytes_of(count))
    return Watch(memory, config.step_timeout_s)


class Player:
    """Environments, and the observations at which they stand."""

    def __init__(self, config: Common, seed: int):
        self.watch = watch(config, config.envs_per_actor)
        self.steps: int = config.comes_to("rollout_steps")
        self.envs = config.make_environments(config.envs_per_actor, self.watch)
        self.obs = self.envs.reset(seed)
        if config.random_start:
            self.obs = self.envs.decorrelate(config.random_start, np.random.default_rng(seed))
        self.begins = np.ones(self.envs.num_envs, np.bool_)
        self.idle_since = time.perf_counter()

    def play(
        self,
        act: Callable[[bool], AgentOutput],
        state: NDArray[np.float32],
        version: int,
        phase: str,
    ) -> tuple[Trajectory, dict[str, float]]:
        """Take T steps in each environment, from where the last call stopped.

        `act(last)` reads `obs` and `begins`.  It is called for the last observation too, with
        `last` true, and then only its value is used.  Returns the trajectory, and the seconds
        spent by phase: `phase` is what to call those in `act`.  Raises TrainingError if that
        raises.
        """
        began = time.perf_counter()
        acting = 0.0
        envs, steps, width = self.envs, self.steps, self.envs.num_envs
        rows = (steps, width)
        seen = Trajectory(
            obs=trees.map_tree(lambda x: np.empty((steps + 1, *x.shape), x.dtype), self.obs),
            action=np.empty((*rows, *envs.actions.shape), envs.actions.dtype),
            log_prob=np.empty(rows, np.float32),
            reward=np.empty(rows, np.float32),
            terminated=np.empty(rows, np.bool_),
            truncated=np.empty(rows, np.bool_),
            valid=np.empty(rows, np.bool_),
            begins=np.empty((steps + 1, width), np.bool_),
            value=np.empty((steps + 1, width), np.float32),
            state=state,
            version=np.full(width, version, np.int64),
        )
        for now in range(steps + 1):
            trees.write_row(seen.obs, now, self.obs)
            seen.begins[now] = self.begins
            start = time.perf_counter()
            with the_model_computes():
                action, log_prob, seen.value[now] = act(now == steps)
            acting += time.perf_counter() - start
            if now == steps:
                break
            seen.action[now], seen.log_prob[now] = action, log_prob
            step = envs.step(action)
            self.obs, self.begins = step.obs, step.begins
            seen.reward[now], seen.valid[now] = step.reward, step.valid
            seen.terminated[now], seen.truncated[now] = step.terminated, step.truncated
        ended = time.perf_counter()
        seconds = {
            phase: acting,
            "environment": ended - began - acting,
            "idle": began - self.idle_since,
        }
        self.idle_since = ended
        return seen, seconds

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watch": None}  # it is of this process
