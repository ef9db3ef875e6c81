"""Making the model and the learner of a run, from a probe of its environment.

The probe runs in an actor, as all play does: an environment may crash or hang when it is made,
or in its first steps, and then only the actor is lost.
"""

import contextlib
import importlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple, TypeVar, overload

import gymnasium
import numpy as np
import torch

import remotely
from remotely_rl import environments, networks, trees
from remotely_rl.acting import cluster, player
from remotely_rl.config import Common, device_of
from remotely_rl.environments import checks
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.learning.learner import Learner
from remotely_rl.runs.process import MODEL_LOCK, one_thread
from remotely_rl.supervision import failures
from remotely_rl.trees import Tree

C = TypeVar("C", bound=Common)
L = TypeVar("L", bound=Learner[Any])

ATTEMPTS = 12
IMPORTED_LATE = "torch._dynamo"  # by torch, with its first optimizer: a second or two


class EnvironmentInfo(NamedTuple):
    """What an environment is, and a sample of its observations."""

    space: gymnasium.Space[Any]
    spec: Tree  # of the leaves of an observation
    actions: Actions
    obs: Tree  # of arrays [probe_steps or less, ...], of random play
    odd: list[str]  # what should be told of it


@remotely.remote_class
class Probe:
    """Plays an environment at random before anything is made for it."""

    def __init__(self, config: Common, is_replacement: bool):
        if is_replacement:
            failures.disable_stack_dumps()
        self.config = config

    def run(self, steps: int, seed: int) -> EnvironmentInfo:
        """Makes an environment and plays it at random.

        Raises TrainingError if no policy fits it, if it cannot do what the config asks, or if it
        crashes too often.
        """
        config = self.config
        envs = config.make_environments(1, player.watch(config, 1))
        try:
            if config.random_start:  # needs more of an environment than random play does
                envs.reset(seed)
                envs.decorrelate(0, [np.random.default_rng(seed)])
            obs, odd = checks.look(envs, steps, seed, config.max_crash_rate)
            return EnvironmentInfo(envs.space, envs.spec, envs.actions, obs, odd)
        finally:
            envs.close()


@overload
def make_learner(
    config: C, model: networks.ModelSource | None = None, seen: EnvironmentInfo | None = None
) -> Learner[C]: ...
@overload
def make_learner(
    config: C,
    model: networks.ModelSource | None = None,
    seen: EnvironmentInfo | None = None,
    *,
    kind: type[L],
) -> L: ...
def make_learner(
    config: C,
    model: networks.ModelSource | None = None,
    seen: EnvironmentInfo | None = None,
    *,
    kind: Any = Learner,
) -> Any:
    """Makes the model that fits a config's environment, or a model of yours, and its learner.

    The input statistics begin with those of a little random play: an update without any kills
    units for good.
    """
    seen = seen or probe(config)
    with MODEL_LOCK, one_thread():
        torch.manual_seed(config.seed)
        network = config.make_model(model, seen.spec, seen.actions)
        if networks.has_normalizer(network):
            networks.update_normalizers(network, trees.map_tree(torch.from_numpy, seen.obs))
        return kind(config, network, seen.actions)


def beside(work: Callable[[], object]) -> threading.Thread:
    """Do on a thread what only learning needs, while this one waits for actors.

    Otherwise the first update waits for it.  Whatever goes wrong, goes wrong again there.
    """

    def tried() -> None:
        with contextlib.suppress(Exception):
            work()

    # No daemon: an interpreter that ends would end it within torch's C++, which aborts the process.
    working = threading.Thread(target=tried)
    working.start()
    return working


def import_late() -> threading.Thread:
    """Import what torch imports with its first optimizer.

    Not before users' code has run in this process: its imports, at the same time as these, could
    meet modules that are half imported.
    """
    return beside(lambda: importlib.import_module(IMPORTED_LATE))


def probe(config: Common) -> EnvironmentInfo:
    """Probes the environment; if its process dies or hangs, tries again with half as many steps.

    Raises TrainingError if all attempts fail, or if the config's minutes are over first.
    """
    environments.check_is_known(config.env)  # needs no cluster
    if (device := device_of(config)).type == "cuda":
        beside(lambda: torch.zeros(1, device=device))  # makes CUDA's context
    cluster.connect(config.processes)
    until = time.monotonic() + config.minutes * 60 if config.minutes else None
    for attempt in range(ATTEMPTS):
        try:
            return _attempt(config, attempt, until)
        except Exception as error:
            if not failures.is_failure(error):
                raise
            last = error
    report = failures.report_of(last)
    raise TrainingError(
        f"no attempt of {ATTEMPTS} to play the environment at random has succeeded; in the last,"
        f" {report}\n{report.details}"
    ) from last


def _attempt(config: Common, attempt: int, until: float | None) -> EnvironmentInfo:
    actor = Probe(config, attempt > 0)
    steps = max(2, config.probe_steps >> attempt)  # a reset and a step at least
    call: Any = remotely.submit(actor.run, steps, config.seed + attempt)
    try:
        seen: EnvironmentInfo = call.result(
            None if until is None else max(0.0, until - time.monotonic())
        )
        return seen
    except FutureTimeout:
        raise TrainingError(
            f"the environment has not played {steps} random steps in {config.minutes:g}"
            " minutes: does it hang?"
        ) from None
    finally:
        cluster.discard(call)
        with contextlib.suppress(remotely.RemotelyError):
            remotely.kill(actor)
