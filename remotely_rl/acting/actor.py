"""Who samples: an actor steps its environments by the newest parameters that it was sent.

The one actor of A2C, PPO, IMPALA and APPO.  They differ in when they call `sample` and
`set_param`, and in what they make of a trajectory.
"""

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import remotely
from remotely_rl import environments, networks
from remotely_rl.acting import failures
from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.networks import precision

CPU = torch.device("cpu")


class Parameters(NamedTuple):
    """A model's state as numpy arrays, and the update count it was read at."""

    version: int
    state: dict[str, NDArray[Any]]


class Rollout(NamedTuple):
    """What one call of `sample` gives: experience, games finished, seconds spent by phase."""

    trajectory: Trajectory
    episodes: list[Episode]
    seconds: dict[str, float]

    @property
    def steps(self) -> int:
        """How many rows of it are experience."""
        return int(self.trajectory.valid.sum())


class Look(NamedTuple):
    """What is made of [B] observations; actions as in `action_spaces.py`."""

    action: NDArray[Any]
    log_prob: NDArray[np.float32]
    value: NDArray[np.float32]


class Player:
    """Environments, and where they stand: whoever looks at them says what to do next."""

    def __init__(self, config: Common, seed: int):
        self.steps = config.rollout_steps
        self.envs = environments.make(config.env, config.envs_per_actor, config.atari)
        self.obs = self.envs.reset(seed)
        if config.random_start:
            self.obs = self.envs.decorrelate(config.random_start, np.random.default_rng(seed))
        self.begins = np.ones(self.envs.num_envs, np.bool_)
        self.left_off = time.perf_counter()

    def play(
        self, look: Callable[[bool], Look], state: NDArray[np.float32], version: int, phase: str
    ) -> tuple[Trajectory, dict[str, float]]:
        """Takes T steps in each environment, from where the call before left off.

        `look(last)` looks at `obs` and `begins`; at the last observation only for its value.
        Returns the trajectory, and seconds: those of looking as `phase`.
        """
        began = time.perf_counter()
        looking = 0.0
        envs, steps, width = self.envs, self.steps, self.envs.num_envs
        rows = (steps, width)
        seen = Trajectory(
            obs=np.empty((steps + 1, *self.obs.shape), self.obs.dtype),
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
            seen.obs[now], seen.begins[now] = self.obs, self.begins
            start = time.perf_counter()
            action, log_prob, seen.value[now] = look(now == steps)
            looking += time.perf_counter() - start
            if now == steps:
                break
            seen.action[now], seen.log_prob[now] = action, log_prob
            step = envs.step(action)
            self.obs, self.begins = step.obs, step.begins
            seen.reward[now], seen.valid[now] = step.reward, step.valid
            seen.terminated[now], seen.truncated[now] = step.terminated, step.truncated
        ended = time.perf_counter()
        seconds = {
            phase: looking,
            "environment": ended - began - looking,
            "idle": began - self.left_off,
        }
        self.left_off = ended
        return seen, seconds


@remotely.remote_class
class Actor:
    """Plays by a model of its own."""

    env_steps = 0  # of all actors; only of interest to some, who are told

    def __init__(self, config: Common, model: nn.Module, seed: int, is_replacement: bool = False):
        torch.set_num_threads(1)
        if is_replacement:
            failures.leave_no_stack()
        self.version = 0
        self.model = copy.deepcopy(model).eval()  # in REMOTELY_LOCAL it is the learner's own
        self.computes_in = precision.of(config.precision, self.model, CPU)
        self.random = torch.Generator().manual_seed(seed)
        self.player = Player(config, seed)
        self.memory = networks.initial_state(self.model, config.envs_per_actor)

    def set_param(self, params: Parameters) -> None:
        """Acts by these parameters from now on."""
        networks.load_state(self.model, params.state)
        self.version = params.version

    def sample(self) -> Rollout:
        """Takes T steps in each environment."""
        state = self.memory.numpy().copy()
        # Around all steps, for parameters are converted once.
        with precision.computing(self.computes_in, CPU):
            trajectory, seconds = self.player.play(self.look, state, self.version, "inference")
        return Rollout(trajectory, self.episodes(), seconds)

    def episodes(self) -> list[Episode]:
        """The games that were finished since this was asked before."""
        return self.player.envs.pop_episodes()

    @torch.inference_mode()
    def look(self, last: bool) -> Look:
        """Draws an action for each observation."""
        obs, actions = torch.from_numpy(self.player.obs), self.player.envs.actions
        if networks.is_recurrent(self.model):
            begins = torch.from_numpy(self.player.begins)
            policy, value, memory = self.model(obs[None], self.memory, begins[None])
            policy, value = policy[0], value[0]
            if not last:  # the next call looks at this one again
                self.memory = memory.float()
        else:
            policy, value = self.model(obs)
        policy, value = policy.float(), value.float()
        if last:
            return Look(np.empty(0), np.empty(0, np.float32), value.numpy())
        action = actions.sample(policy, self.random)
        return Look(action.numpy(), actions.log_prob(policy, action).numpy(), value.numpy())

    def pause(self) -> bytes:
        """All that `go_on` needs to act as if nothing had happened between.

        Empty if the environments cannot be saved: ale-py's native Atari cannot.
        """
        random = self.random.get_state().numpy()
        try:
            return bytes(cloudpickle.dumps((self.player, self.memory.numpy(), random)))
        except Exception:  # pickling a user's environment may raise anything
            return b""

    def go_on(self, paused: bytes) -> bool:
        """Continues from what `pause` gave.

        Returns false, and begins anew, if that cannot be read, or was of another number of
        environments.
        """
        try:
            # A checkpoint of one's own run, and only to resume it: evaluating one reads no pickle.
            player, memory, random = cloudpickle.loads(paused)
        except Exception:  # as in `pause`
            return False
        if player.envs.num_envs != self.player.envs.num_envs:
            return False
        self.player.envs.close()
        player.steps = self.player.steps
        self.player = player
        self.player.left_off = time.perf_counter()  # the pause is nobody's idleness
        self.memory = torch.from_numpy(memory)
        self.random.set_state(torch.from_numpy(random))
        return True

    def close(self) -> None:
        """Ends the environments."""
        self.player.envs.close()
