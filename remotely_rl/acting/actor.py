"""Actor: steps its environments with its own copy of the model.

A2C, PPO, IMPALA and APPO share it.  They differ in when they call `sample` and `set_param`, and in
what they learn from a trajectory.
"""

import copy
import itertools
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import remotely
from remotely_rl import networks, trees
from remotely_rl.acting.messages import Messages
from remotely_rl.acting.player import AgentOutput, Player, play
from remotely_rl.config import Common
from remotely_rl.environments import Environments, Episode
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.networks import cuda_graphs, precision
from remotely_rl.supervision import CrashReport, failures
from remotely_rl.supervision.watchdog import SWITCH
from remotely_rl.trees import Tree


class EnvAttributes(NamedTuple):
    """Attributes of environments that the run has set, and the number of changes."""

    version: int = 0
    values: Mapping[str, Any] = {}


AS_MADE = EnvAttributes()


class Parameters(NamedTuple):
    """A model's state as numpy arrays; its version is the number of updates."""

    version: int
    state: dict[str, NDArray[Any]]
    env_steps: int = 0  # of all actors by then, for actors that follow a schedule
    env_attributes: EnvAttributes = AS_MADE


class Rollout(NamedTuple):
    """Result of `sample`: experience, finished episodes, seconds by phase, and crashes survived."""

    trajectory: Trajectory
    episodes: list[Episode]
    seconds: dict[str, float]
    crashes: Sequence[CrashReport] = ()
    actor: int = 0  # its index among the live actors

    @property
    def steps(self) -> int:
        """The number of rows that are experience."""
        return self.trajectory.rows.count


@remotely.remote_class
class Actor:
    """See the module's docstring."""

    env_steps = 0  # of all actors, for subclasses that follow a schedule
    env_attributes_version = 0  # that its environments have
    fills_replay = False  # true keeps observations on the CPU; otherwise a GPU's stay on the GPU

    def __init__(
        self,
        config: Common,
        model: nn.Module,
        seed: int,
        is_replacement: bool = False,
        players: Sequence[Player] = (),
    ):
        """Make the environments, or use those of `players`.

        With `players`, the actor shares its process, and its model may be on a GPU.
        """
        if is_replacement:
            failures.disable_stack_dumps()
        self.config = config
        self.steps: int = config.resolved("rollout_steps")
        self.version = 0
        self._messages = Messages()
        self.model = copy.deepcopy(model).eval()  # under REMOTELY_LOCAL it is the learner's
        self.device = device_of(model)
        self.computes_in = precision.of(config.precision, self.model, self.device)
        self.network: cuda_graphs.Network = self.model
        if cuda_graphs.can_record(self.model, self.device):
            self.network = cuda_graphs.Inference(self.model, self.computes_in)
        if not players:
            torch.set_num_threads(1)
        self.players = players or [Player.here(config, seed)]
        self.is_recurrent = networks.is_recurrent(self.model)
        for player in self.players:
            memory = networks.initial_state(self.model, player.envs.num_envs)
            player.memory = memory.to(self.device)

    @property
    def envs(self) -> Environments:
        """The environments of the first player."""
        return self.players[0].envs

    def set_param(self, params: Parameters) -> None:
        """Use these parameters from now on."""
        networks.load_state(self.model, params.state)
        self.version = params.version
        self.env_steps = params.env_steps
        self.set_env_attributes(params.env_attributes)

    def set_env_attributes(self, attributes: EnvAttributes) -> None:
        """Set attributes of the environments, unless they have this version."""
        if attributes.version == self.env_attributes_version:
            return
        for player in self.players:
            player.envs.set_attributes(attributes.values)
        self.env_attributes_version = attributes.version

    def read_from(self, source: "remotely.Published[Parameters]") -> None:
        """Use the newest message that is published there whenever `sample` begins."""
        self._messages = Messages(source)

    def sample(self, at_least: int = 0) -> Rollout:
        """Take T steps in each environment, with the message of this number or a later one."""
        if (params := self._messages.newest(at_least)) is not None:
            self.set_param(params)
        # Around all steps, to convert the parameters only once.
        with precision.computing(self.computes_in, self.device):
            trajectory, seconds = play(
                self.players,
                self.steps,
                self.act,
                self.version,
                "inference",
                None if self.device.type == "cpu" or self.fills_replay else self._empty_obs(),
            )
        crashes = [report for player in self.players for report in player.envs.pop_crashes()]
        return Rollout(trajectory, self.episodes(), seconds, crashes)

    def episodes(self) -> list[Episode]:
        """Return the episodes finished since the last call."""
        return [
            episode
            for player in self.players
            for index, episode in player.envs.pop_episodes_by_environment()
            if self.counts(index % (player.width // player.envs.agents))
        ]

    def counts(self, environment: int) -> bool:
        """Whether to report the episodes of an environment, numbered within its seed's."""
        return True

    @torch.inference_mode()
    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Draw an action for each observation."""
        actions = player.envs.actions
        # The next rollout starts at the last observation.
        policy, value = self.infer(player, self.tensors(obs), keeps=not last)
        policy, value = policy.float().cpu(), value.float().cpu()
        if last:
            return AgentOutput(np.empty(0), np.empty(0, np.float32), value.numpy())
        action = actions.sample(policy, player.randoms)
        log_prob = actions.log_prob(policy, action)
        return AgentOutput(action.numpy(), log_prob.numpy(), value.numpy())

    def infer(
        self, player: Player, obs: Tree, at: slice = slice(None), keeps: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Run the network on the observations [B, ...] of a player, or on those `at` some rows.

        A recurrent network continues from the player's memory, and changes it if it `keeps` it.
        """
        obs = trees.map_tree(lambda x: x[at], obs)
        if not self.is_recurrent:
            return self.network(obs)
        begins = torch.from_numpy(player.begins[at]).to(self.device)
        obs = trees.map_tree(lambda x: x[None], obs)
        policy, value, memory = self.model(obs, player.memory[at], begins[None])
        if keeps:
            changed = player.memory.clone()
            changed[at] = memory
            player.memory = changed
        return policy[0], value[0]

    def _empty_obs(self) -> Tree:
        """Return tensors for the observations of a trajectory, [T + 1, B, ...]."""
        rows = self.steps + 1, sum(one.envs.num_envs for one in self.players)
        return trees.map_tree(
            lambda x: torch.empty(
                (*rows, *x.shape[1:]), dtype=torch.from_numpy(x).dtype, device=self.device
            ),
            self.players[0].obs,
        )

    def tensors(self, obs: Tree) -> Tree:
        """Return observations as tensors on the model's device."""
        return trees.map_tree(lambda x: torch.as_tensor(x, device=self.device), obs)

    def pause(self) -> bytes:
        """Return a state from which `resume` continues exactly.

        It is b"" if the environments cannot be pickled, such as ale-py's native Atari.
        """
        try:
            with SWITCH.paused():
                return bytes(cloudpickle.dumps(self.players))
        except Exception:  # pickling a user's environment may raise anything
            return b""

    def resume(self, paused: bytes) -> bool:
        """Continue from a state that `pause` returned.

        Returns false if the state cannot be read, has other numbers of environments, or was written
        by another version.  The actor then keeps its games, or restarts them all.
        """
        try:
            # Trusted: it is from a checkpoint of the user's own run; evaluation reads no pickle.
            with SWITCH.paused():
                players: list[Player] = cloudpickle.loads(paused)
                layouts = [_layout_of(one) for one in players]
        except Exception:  # as in `pause`
            return False
        if layouts != [_layout_of(one) for one in self.players]:
            return False
        pairs = zip(players, self.players, strict=True)
        if not all(player.take_over(old) for player, old in pairs):
            for old in self.players:  # some environments may have been taken over
                old.restart()
            return False
        self.players = players
        return True

    def close(self) -> None:
        """Close the environments."""
        for player in self.players:
            player.envs.close()


def _layout_of(player: Player) -> tuple[int, int, Set[str], Set[str]]:
    """Return what two players must share for one to replace the other.

    A pickle of another version may lack an attribute, and would fail in the next step.
    """
    return player.width, player.envs.num_envs, set(vars(player)), set(vars(player.envs))


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
