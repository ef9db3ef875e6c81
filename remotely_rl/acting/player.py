"""Player: environments that are stepped together, and `play`, which collects T steps of them."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import remotely
from remotely_rl import trees
from remotely_rl.config import Common, resets_in_pause
from remotely_rl.environments import Environments, Watch
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.supervision import flight
from remotely_rl.supervision.failures import model_errors_are_fatal
from remotely_rl.trees import Tree


class AgentOutput(NamedTuple):
    """An agent's outputs for [B] observations; actions are as in `action_spaces.py`."""

    action: NDArray[Any]
    log_prob: NDArray[np.float32]
    value: NDArray[np.float32]


def watch(config: Common, count: int) -> Watch | None:
    """Return the watch over `count` environments of this process.

    None outside an actor's process: under REMOTELY_LOCAL it is the user's own.
    """
    if remotely.current_actor() is None:
        return None
    memory = remotely.flight_recorder(flight.nbytes_of(count))
    return Watch(memory, config.step_timeout_s)


class Player:
    """Environments that are stepped together, and their current observations.

    They are those of one actor; in a process that computes for several, those of one actor per
    seed, side by side.  Each seed has its own random generator, so the same actors get the same
    numbers in either case.
    """

    memory: Tensor  # of a recurrent model, [B, S]; S may be 0

    def __init__(
        self,
        envs: Environments,
        seeds: Sequence[int],
        random_start: int = 0,
        watched: Watch | None = None,
    ):
        self.watch = watched
        self.envs = envs
        self.width = envs.num_envs // len(seeds)
        self.obs = envs.reset([seed + i for seed in seeds for i in range(self.width)])
        if random_start:
            self.obs = envs.decorrelate(random_start, [np.random.default_rng(s) for s in seeds])
        self.begins = np.ones(envs.num_envs, np.bool_)
        self.memory = torch.zeros(envs.num_envs, 0)
        self.randoms = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.idle_since = time.perf_counter()

    @classmethod
    def here(cls, config: Common, seed: int) -> "Player":
        """Make the environments of an actor in this process."""
        watched = watch(config, config.envs_per_actor)
        envs = config.make_environments(config.envs_per_actor, watched, resets_in_pause(config))
        return cls(envs, [seed], config.random_start, watched)

    def end_pause(self) -> None:
        """Begin a trajectory: reset the environments that have waited for it."""
        if (renewed := self.envs.end_pause()) is not None:
            self.obs, reset = renewed
            self.begins = self.begins | reset

    @property
    def random(self) -> torch.Generator:
        """The generator for draws of all environments at once."""
        return self.randoms[0]

    def parts(self) -> Iterator[tuple[slice, torch.Generator]]:
        """Yield the rows of each seed, and its generator."""
        for i, random in enumerate(self.randoms):
            yield slice(i * self.width, (i + 1) * self.width), random

    def draw(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """Return `function(*rows, generator)`, [B, ...], with each seed's rows and generator."""
        drawn = [function(*(x[at] for x in rows), random) for at, random in self.parts()]
        return torch.cat(drawn) if len(drawn) > 1 else drawn[0]

    def restart(self) -> None:
        """Begin an episode in each environment."""
        self.obs = self.envs.reset()
        self.begins = np.ones(self.envs.num_envs, np.bool_)
        self.memory = torch.zeros_like(self.memory)

    def take_over(self, old: "Player") -> bool:
        """Continue from where this player was pickled, in place of a newly made one.

        Returns false if its environments cannot be restored.
        """
        if not self.envs.take_over(old.envs):
            return False
        self.watch = old.watch
        if self.watch is not None:
            self.envs.watch(*self.watch)
        self.memory = self.memory.to(old.memory.device)
        self.idle_since = time.perf_counter()  # the pause is not idle time
        return True

    def __getstate__(self) -> dict[str, Any]:
        memory, randoms = self.memory.cpu().numpy(), [one.get_state() for one in self.randoms]
        # The watch belongs to this process.
        return {**self.__dict__, "watch": None, "memory": memory, "randoms": randoms}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.memory = torch.from_numpy(state["memory"])
        self.randoms = [torch.Generator().set_state(one) for one in state["randoms"]]


Act = Callable[[Player, Tree, bool], AgentOutput]


def play(
    players: Sequence[Player], steps: int, act: Act, version: int, phase: str, obs: Tree = None
) -> tuple[Trajectory, dict[str, float]]:
    """Take T steps in the environments of all players, from where the last call stopped.

    `act(player, obs, last)` is also called for the last observation, with `last` true; then only
    its value is used.  While it runs for one player, the environments of the others step.  Returns
    the trajectory, and the seconds by phase; `phase` names the time in `act`.  Raises TrainingError
    if `act` raises.

    Observations are written into `obs`, [T + 1, B, ...]: tensors on a GPU, to copy them there only
    once, or new arrays by default.
    """
    began, acting = time.perf_counter(), 0.0
    for player in players:
        player.end_pause()
    widths = [player.envs.num_envs for player in players]
    rows = (steps, sum(widths))
    actions = players[0].envs.actions
    if obs is None:
        obs = trees.map_tree(
            lambda x: np.empty((steps + 1, sum(widths), *x.shape[1:]), x.dtype), players[0].obs
        )
    seen = Trajectory(
        obs=obs,
        action=np.empty((*rows, *actions.shape), actions.dtype),
        log_prob=np.empty(rows, np.float32),
        reward=np.empty(rows, np.float32),
        terminated=np.empty(rows, np.bool_),
        truncated=np.empty(rows, np.bool_),
        valid=np.empty(rows, np.bool_),
        begins=np.empty((steps + 1, sum(widths)), np.bool_),
        value=np.empty((steps + 1, sum(widths)), np.float32),
        state=np.concatenate([player.memory.cpu().numpy() for player in players]),
        version=np.full(sum(widths), version, np.int64),
    )
    for now in range(steps + 1):
        end = 0
        for player, width in zip(players, widths, strict=True):
            at, end = slice(end, end + width), end + width
            if now:
                step = player.envs.finish()
                player.obs, player.begins = step.obs, step.begins
                seen.reward[now - 1, at], seen.valid[now - 1, at] = step.reward, step.valid
                seen.terminated[now - 1, at] = step.terminated
                seen.truncated[now - 1, at] = step.truncated
            observed = trees.map_tree(lambda x: x[now, at], seen.obs)  # noqa: B023 - called at once
            trees.map_tree(_write, observed, player.obs)
            seen.begins[now, at] = player.begins
            start = time.perf_counter()
            with model_errors_are_fatal():
                action, log_prob, seen.value[now, at] = act(player, observed, now == steps)
            acting += time.perf_counter() - start
            if now < steps:
                seen.action[now, at], seen.log_prob[now, at] = action, log_prob
                player.envs.begin(action)
    idle_since, ended = players[0].idle_since, time.perf_counter()
    players[0].idle_since = ended
    seconds = {
        phase: acting,
        "environment": ended - began - acting,
        "idle": began - idle_since,
    }
    return seen, seconds


def _write(into: Any, array: NDArray[Any]) -> None:
    if isinstance(into, np.ndarray):
        into[:] = array
    else:  # on a GPU; `act` waits for the copy
        into.copy_(torch.from_numpy(array), non_blocking=True)
