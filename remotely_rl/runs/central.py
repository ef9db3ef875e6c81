"""Central sampling: actors only run environments, and one batched inference serves all of them.

As in Stooke & Abbeel 2018 (https://arxiv.org/abs/1803.02811, section 3): observations and actions
are in memory that the learner's process shares with the actors, and at each step the process
computes the actions of all environments.  In alternating sampling the actors form two halves: while
one half steps, the process computes the actions of the other.  An actor is a host of a VectorEnv,
and is supervised as one.

    sampling     actions are computed            meanwhile the actors' cores
    local        in each actor, on its core      compute them
    central      here, for all at once           wait
    alternating  here, for one half at a time    step the other half

The sampling thread does steps 2, 4 and 6, the run's thread the others:

    1  __init__    starts the thread and requests the environments; waits in slices, so that the
                   run can check its limits
    2  _make       makes the hosts, a half at a time, and the actor with their players
    3  request     takes the newest parameters, queues a call of `sample`, and never waits
    4  sample      sets the parameters, steps T times, and completes the future, also on errors
    5  close       sets the flag that each `act` checks, ends the queue, and waits; kills hosts that
                   do not return in time, which wakes the thread with an error
    6  _run        closes the vectors, however the loop ended

Sampling has a thread so that the run can meanwhile check its limits and, with `overlap`, learn.  On
a GPU the thread has a stream with higher priority than learning's: a step has to wait for its
actions, but nothing waits for an update.  The memory that hosts write into is pinned, so that the
GPU reads it directly.  Random numbers are drawn as in local sampling: the same seed gives the same
trajectories, up to rounding in batches of another size.
"""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import remotely
from remotely.machine import this_machine
from remotely_rl import trees
from remotely_rl.acting.actor import Actor, Parameters, Rollout, device_of
from remotely_rl.acting.crew import POLL_S
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.config import Common, learners_of
from remotely_rl.environments import Environments, Watch, episodes
from remotely_rl.environments.contract import FRAME
from remotely_rl.environments.games import ABSENT
from remotely_rl.environments.observations import ACTION_MASK
from remotely_rl.errors import TrainingError
from remotely_rl.learning.learner import gpu_lost
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision.vector import CRASH
from remotely_rl.trees import Tree
from remotely_rl.vector.vector_env import Simulators

CLOSE_S = 2.0  # how long to wait for the current step before its hosts are killed
KEYS = frozenset({ABSENT, ACTION_MASK, f"_{ACTION_MASK}", CRASH, f"_{CRASH}"})  # of infos


class Closed(TrainingError):
    """Sampling was stopped during a round."""


class CentralCrew:
    """The crew of a run that samples centrally: one actor, which lives in this process."""

    def __init__(
        self,
        kind: type[Actor],
        config: Common,
        model: nn.Module,
        seeds: Sequence[int],
        halves: int,
        threads: int,
        crashes: Crashes,
        over: Callable[[], bool] = lambda: False,
    ):
        """Make the environments, one host for each seed, in `halves` (1 or 2) parts.

        Waits for them, unless training is `over` first.  Raises what making one raises.
        """
        self.crashes = crashes
        self.actors: list[Actor] = []
        self._threads = threads
        self._params: Parameters | None = None
        self._device = device_of(model)
        self._is_closing = False
        self._players: list[Player] = []
        self._vectors: list[Simulators] = []
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._unpin = contextlib.ExitStack()  # used by the thread only
        self._thread = threading.Thread(target=self._run, name="central sampling", daemon=True)
        self._thread.start()
        self._making: Future[Actor] = self._do(
            lambda: self._make(kind, config, model, seeds, halves)
        )
        try:
            while not self.admit(POLL_S) and not over():
                pass
        except BaseException:
            self.close()
            raise

    def _make(
        self, kind: type[Actor], config: Common, model: nn.Module, seeds: Sequence[int], halves: int
    ) -> Actor:
        hosts = len(seeds) // halves
        for first in range(0, len(seeds), hosts):
            vector = _simulators(config, hosts, self.crashes, first)
            self._vectors.append(vector)
            if self._device.type == "cuda" and vector.memory is not None:
                self._unpin.callback(_unpin, _pinned(vector.memory))
            if self._is_closing:
                raise Closed
            envs = _environments(config, vector)
            self._players.append(Player(envs, seeds[first : first + hosts], config.random_start))
        actor = remotely.local(kind, config, model, seeds[0], players=self._players)
        act = actor.act

        def act_until_closed(player: Player, obs: Tree, last: bool) -> AgentOutput:
            if self._is_closing:
                raise Closed
            try:
                return act(player, obs, last)
            except torch.AcceleratorError as error:
                raise gpu_lost(error) from error

        actor.act = act_until_closed  # type: ignore[method-assign]
        return actor

    def publish(self, params: Parameters) -> None:
        """Use these parameters from the next `request` on."""
        self._params = params

    def request(self, actor: Actor) -> "Future[Rollout]":
        """Sample with the newest parameters, after earlier requests."""
        params, self._params = self._params, None
        learns: Any = (
            torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        )

        def sample() -> Rollout:
            if params is not None:
                actor.set_param(params)
            rollout = actor.sample()
            for leaf in trees.leaves(rollout.trajectory.obs):
                if isinstance(leaf, torch.Tensor):  # not freed before learning has used it
                    leaf.record_stream(learns)
            return rollout

        return self._do(sample)

    def admit(self, timeout_s: float = 0.0) -> bool:
        """Wait for the environments to be made; return whether they became ready in this call.

        Raises what making one raised.
        """
        # Not with a timeout of `result`: the environment may have raised a TimeoutError itself.
        if self.actors or not wait([self._making], timeout_s).done:
            return False
        self.actors = [self._making.result()]
        return True

    def index_of(self, actor: Actor) -> int:
        """Return the actor's index: 0, because its rollouts begin with the first environment."""
        return 0

    def succeeded(self, actor: Actor, steps: int, crashes: Sequence[CrashReport] = ()) -> None:
        """Do nothing: the environments count their steps and crashes."""

    def replace(self, actor: Actor, error: BaseException) -> None:
        """Raise the error that ended sampling: dead hosts are replaced one by one, elsewhere."""
        raise error

    def close(self) -> None:
        """Close the environments and stop the current round."""
        self._is_closing = True
        self._work.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():  # in a slow or hanging step or reset
            for vector in self._vectors:
                vector.abandon()
            self._thread.join(CLOSE_S)

    def _do(self, function: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        self._work.put((future, function))
        return future

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # of this thread alone
        try:
            with _ahead_of_learning(self._device):
                while (work := self._work.get()) is not None:
                    future, function = work
                    try:
                        future.set_result(function())
                    except BaseException as error:
                        future.set_exception(error)
                    del work, future, function
        except BaseException as error:  # a lost GPU, say: fail what is queued
            while (work := self._work.get()) is not None:
                work[0].set_exception(error)
        finally:
            self._unpin.close()
            for vector in self._vectors:
                vector.close()


@contextlib.contextmanager
def _ahead_of_learning(device: torch.device) -> Iterator[None]:
    """Let this thread compute on its own stream, with a higher priority than learning's."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # the model to copy may not be complete yet
        with torch.cuda.stream(torch.cuda.Stream(priority=-1)):  # type: ignore[no-untyped-call]
            yield


def _pinned(memory: NDArray[np.uint8]) -> int:
    """Pin this memory, so that a GPU reads it directly; return its address.  If CUDA refuses, all
    works with one more copy."""
    address: int = memory.ctypes.data
    torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0)  # type: ignore[no-untyped-call]
    return address


def _unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _simulators(config: Common, hosts: int, crashes: Crashes, first_host: int) -> Simulators:
    # Actors that step at the same time share the cores.  A step ends with its slowest game, sooner
    # if each thread takes the next game than if one actor per core has a fixed share of the games.
    threads = max(1, this_machine.cores() // (hosts * learners_of(config)))
    plan = config.plan_of(threads)

    def make(count: int, watch: Watch | None, first: int) -> Any:
        return plan.make(count, watch, config.first_rank + first)

    return Simulators(
        make,
        hosts,
        config.rows_per_actor,
        crashes,
        keys=KEYS | {FRAME, f"_{FRAME}"} if plan.lives else KEYS,
        keys_at_end=episodes.KEYS,
        step_timeout_s=config.step_timeout_s,
        first_host=first_host,
        waits=plan.waits,
    )


def _environments(config: Common, vector: Simulators) -> Environments:
    plan = config.plan
    return Environments(
        vector,
        lives=plan.lives,
        channels_first=plan.channels_first,
        steps_apart=True,
        waits=plan.waits,
        agents=plan.agents,
    )
