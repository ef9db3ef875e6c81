"""How a run's network and its learner are made, by a look at the environment.

The look is taken in an actor, as all play is: an environment may crash or hang as it is made, or
in the first steps, and then it takes an actor with it and not the run.
"""

import contextlib
import time
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

import remotely
from remotely_rl import environments, networks
from remotely_rl.acting import cluster, failures
from remotely_rl.config import Common, device_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import model_summary
from remotely_rl.runs.process import MAKING, one_thread

C = TypeVar("C", bound=Common)

PROBE_STEPS = 512
PROBES = 12  # attempts at that


class Sight(NamedTuple):
    """What an environment is, and a little of what is seen there."""

    space: gymnasium.Space[Any]
    observation_shape: tuple[int, ...]
    actions: Actions
    obs: NDArray[Any]  # [PROBE_STEPS or less, ...], of random play


@remotely.remote_class
class Scout:
    """Looks at the environment before anything is made for it."""

    def __init__(self, config: Common, is_replacement: bool):
        if is_replacement:
            failures.disable_stack_dumps()
        self.config = config

    def look(self, steps: int, seed: int) -> Sight:
        """Makes an environment and plays it at random.

        Raises TrainingError for one that no policy fits, or that cannot do what the config asks.
        """
        config = self.config
        envs = environments.make(config.env, 1, config.atari)
        try:
            if config.random_start:  # which takes more of an environment than random play does
                envs.reset(seed)
                envs.decorrelate(0, np.random.default_rng(seed))
            obs = envs.play_randomly(steps, seed)
            return Sight(envs.space, envs.observation_shape, envs.actions, obs)
        finally:
            envs.close()


def make_learner(config: C, model: networks.ModelSource | None = None) -> Learner[C]:
    """Makes the model that fits a config's environment, or a user's own, and its learner.

    The statistics of its input begin with those of a little random play: an update without
    any kills units that never come back.
    """
    seen = look_at(config)
    with MAKING, one_thread():
        torch.manual_seed(config.seed)
        network = networks.build(
            model, seen.observation_shape, seen.obs.dtype, seen.actions.outputs, config.lstm
        )
        if networks.has_normalizer(network):
            networks.update_normalizers(network, torch.from_numpy(seen.obs))
        learner = Learner(config, network, seen.actions)
        learner.description = model_summary.lines(network, seen)
        return learner


def look_at(config: Common) -> Sight:
    """Has a scout look, and if that fails another for half as long: an environment may raise or
    crash now and then.

    Raises TrainingError if all of them fail, or the config's minutes are over before.
    """
    environments.check_is_known(config.env)  # what is told at once needs no cluster
    device_of(config.device)
    cluster.connect(config.processes)
    until = time.monotonic() + config.minutes * 60 if config.minutes else None
    for attempt in range(PROBES):
        try:
            return _scouted(config, attempt, until)
        except Exception as error:
            if not failures.is_failure(error):
                raise
            last = error
    how = "died" if isinstance(last, failures.LOST) else "raised"
    raise TrainingError(
        f"the environment {how} in each of {PROBES} attempts to play it at random: "
        f"{failures.readable(last)}"
    ) from last


def _scouted(config: Common, attempt: int, until: float | None) -> Sight:
    scout = Scout(config, attempt > 0)
    steps = max(2, PROBE_STEPS >> attempt)  # a reset and a step are the least that tells
    call: Any = remotely.submit(scout.look, steps, config.seed + attempt)
    try:
        seen: Sight = call.result(None if until is None else max(0.0, until - time.monotonic()))
        return seen
    except FutureTimeout:
        raise TrainingError(
            f"the environment has not played {steps} random steps in {config.minutes:g}"
            " minutes: does it hang?"
        ) from None
    finally:
        cluster.discard(call)
        with contextlib.suppress(remotely.RemotelyError):
            remotely.kill(scout)
