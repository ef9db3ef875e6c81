"""Actor: steps its environments by a copy of the model.

A2C, PPO, IMPALA and APPO share it.  They differ in when they call `sample` and `set_param`, and in
what they learn from a trajectory.
"""

import copy
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import remotely
from remotely_rl import networks, trees
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.networks import precision
from remotely_rl.supervision import CrashReport, failures
from remotely_rl.supervision.watchdog import SWITCH

CPU = torch.device("cpu")


class Parameters(NamedTuple):
    """A model's state as numpy arrays, and the update count at which it was read."""

    version: int
    state: dict[str, NDArray[Any]]
    env_steps: int = 0  # of all actors by then, for those that follow a schedule


class Rollout(NamedTuple):
    """What a call of `sample` returns: experience, finished episodes, seconds spent by phase, and
    the crashes of environments that it survived."""

    trajectory: Trajectory
    episodes: list[Episode]
    seconds: dict[str, float]
    crashes: Sequence[CrashReport] = ()
    actor: int = 0  # its index among the actors at work

    @property
    def steps(self) -> int:
        """How many of its rows are experience."""
        return int(self.trajectory.valid.sum())


@remotely.remote_class
class Actor:
    """Plays by a model of its own."""

    env_steps = 0  # of all actors, for subclasses that follow a schedule

    def __init__(self, config: Common, model: nn.Module, seed: int, is_replacement: bool = False):
        torch.set_num_threads(1)
        if is_replacement:
            failures.disable_stack_dumps()
        self.version = 0
        self.model = copy.deepcopy(model).eval()  # under REMOTELY_LOCAL it is the learner's own
        self.computes_in = precision.of(config.precision, self.model, CPU)
        self.random = torch.Generator().manual_seed(seed)
        self.player = Player(config, seed)
        self.memory = networks.initial_state(self.model, config.envs_per_actor)

    def set_param(self, params: Parameters) -> None:
        """Act by these parameters from now on."""
        networks.load_state(self.model, params.state)
        self.version = params.version
        self.env_steps = params.env_steps

    def sample(self) -> Rollout:
        """Take T steps in each environment."""
        state = self.memory.numpy().copy()
        # Around all steps, because it converts the parameters once.
        with precision.computing(self.computes_in, CPU):
            trajectory, seconds = self.player.play(self.act, state, self.version, "inference")
        return Rollout(trajectory, self.episodes(), seconds, self.player.envs.pop_crashes())

    def episodes(self) -> list[Episode]:
        """Return the episodes finished since the last call."""
        return self.player.envs.pop_episodes()

    @torch.inference_mode()
    def act(self, last: bool) -> AgentOutput:
        """Draw an action for each observation."""
        obs = trees.map_tree(torch.from_numpy, self.player.obs)
        actions = self.player.envs.actions
        if networks.is_recurrent(self.model):
            begins = torch.from_numpy(self.player.begins)
            obs = trees.map_tree(lambda x: x[None], obs)
            policy, value, memory = self.model(obs, self.memory, begins[None])
            policy, value = policy[0], value[0]
            if not last:  # the next rollout starts with this observation
                self.memory = memory.float()
        else:
            policy, value = self.model(obs)
        policy, value = policy.float(), value.float()
        if last:
            return AgentOutput(np.empty(0), np.empty(0, np.float32), value.numpy())
        action = actions.sample(policy, self.random)
        log_prob = actions.log_prob(policy, action)
        return AgentOutput(action.numpy(), log_prob.numpy(), value.numpy())

    def pause(self) -> bytes:
        """Return a state from which `resume` goes on bit by bit.

        It is empty if the environments cannot be saved: ale-py's native Atari cannot.
        """
        random = self.random.get_state().numpy()
        try:
            with SWITCH.paused():
                return bytes(cloudpickle.dumps((self.player, self.memory.numpy(), random)))
        except Exception:  # pickling a user's environment may raise anything
            return b""

    def resume(self, paused: bytes) -> bool:
        """Continue from a state that `pause` returned.

        Returns false, and changes nothing, if it cannot be read or is of another number of
        environments.
        """
        try:
            # From the checkpoint of a run of the user's own: evaluating others reads no pickle.
            with SWITCH.paused():
                player, memory, random = cloudpickle.loads(paused)
        except Exception:  # as in `pause`
            return False
        if player.envs.num_envs != self.player.envs.num_envs:
            return False
        self.player.envs.close()
        player.steps, player.watch = self.player.steps, self.player.watch
        self.player = player
        if player.watch is not None:
            player.envs.watch(*player.watch)
        self.player.idle_since = time.perf_counter()  # the pause is not idle time
        self.memory = torch.from_numpy(memory)
        self.random.set_state(torch.from_numpy(random))
        return True

    def close(self) -> None:
        """Close the environments."""
        self.player.envs.close()
