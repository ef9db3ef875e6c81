"""Loading a trained agent from its run folder, to play but not to train.

The agent is made from config.json and the model in a checkpoint, in this process; no cluster is
needed.  Loading runs no code: the actors' state in a checkpoint is pickled, and is not read.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from remotely_rl import algorithms, networks, trees
from remotely_rl.config import Common
from remotely_rl.environments import Environments, Source, Step, name_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.runs import run_folder, training
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.runs.training import Train
from remotely_rl.supervision import Crashes
from remotely_rl.trees import Tree

CHECKPOINTS = ("best", "last")
TELL_EVERY_S = 10.0  # how far a game without an end is

T = TypeVar("T")


class Trained(NamedTuple):
    """A trained model, and the config of its run."""

    config: Common
    model: nn.Module

    def environments(self, count: int, source: Source | None = None) -> Environments:
        """Makes `count` environments of the run, or of `source`.

        They are those of the training, except that a lost life never ends a game.
        """
        env = source or self.config.env
        return dataclasses.replace(
            self.config, env=env, life_loss_is_terminal=False
        ).make_environments(count)

    def play(
        self, envs: Environments, obs: Tree, greedy: bool, seed: int
    ) -> Iterator[tuple[NDArray[Any], Step]]:
        """Plays without end from `obs`, which a reset returned; yields each action and its step.

        With `greedy` it takes the most likely action; else it draws one, from `seed` on.  Crashes
        of environments are told; raises TrainingError if there are too many.
        """
        crashes = Crashes(print, self.config.max_crash_rate)
        policy = Policy(self.config, self.model, envs.actions, envs.num_envs, greedy, seed)
        begins = np.ones(envs.num_envs, np.bool_)
        while True:
            action = policy.act(obs, begins)
            step = envs.step(action)
            crashes.stepped(envs.num_envs)
            for report in envs.pop_crashes():
                crashes.add(report)
            yield action, step
            obs, begins = step.obs, step.begins


def load(
    run: str | Path,
    which: str = "last",
    model: networks.ModelSource | None = None,
    env: Source | None = None,
    algorithm: Train[Any] | None = None,
) -> Trained:
    """Loads the agent of a run folder, from its "last" or its "best" checkpoint.

    Pass `model` and `env` if the run was trained with your own: the folder has only their names.
    `env` may be another environment, of the same spaces.  `algorithm` is the `train` of one of your
    own whose file is not where it was.  Raises TrainingError if one of them is missing or does not
    fit, or if the folder is incomplete.
    """
    folder = RunFolder(Path(run))
    trained_in = run_folder.read(run).env
    by = algorithms.of_run(run, algorithm)
    given = {} if env is None else {"env": env}
    config = training.config_of(by.Config, by.algorithm, run, given)
    path = _checkpoint(folder, which)
    try:
        state = run_folder.load_checkpoint(path)["learner"]["model"]
    except (KeyError, TypeError):
        raise TrainingError(f"{path} holds no model") from None
    with closing(config.make_environments(1)) as probe:
        probe.reset(config.seed)  # tells whether actions are masked
        network = config.make_model(model, probe.spec, probe.actions)
    try:
        run_folder.check_fits(path, state, network)
    except TrainingError as error:
        hint = ""
        if model is None:
            hint = "was it trained with a model of your own? Pass model=, or --model FILE.py:NAME: "
        if (name := name_of(config.env)) != trained_in:
            hint = f"are the observations and actions of {name} those of {trained_in}? "
        raise TrainingError(f"{hint}{error}") from None
    network.load_state_dict(state)
    return Trained(config, network.eval())


class Policy:
    """A model that acts in B environments, with a recurrent state for each."""

    def __init__(
        self,
        config: Common,
        model: nn.Module,
        actions: Actions,
        count: int,
        greedy: bool,
        seed: int,
    ):
        self._config = config
        self._model = model
        self._actions = actions
        self.greedy = greedy
        self._memory = networks.initial_state(model, count)
        self._random = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def act(self, obs: Tree, begins: NDArray[np.bool_]) -> NDArray[Any]:
        """Actions [B, ...] for observations [B, ...]; where `begins`, the state is reset."""
        seen = trees.map_tree(lambda x: torch.from_numpy(x)[None], obs)
        begins_now = torch.from_numpy(begins)[None]
        policy, _, self._memory = networks.unroll(self._model, seen, self._memory, begins_now)
        if self.greedy:
            return self._config.best(self._actions, policy[0]).numpy()
        return self._config.draw(self._actions, policy[0], self._random).numpy()


def telling(
    turns: Iterator[T], how_far: Callable[[int], str], clock: Callable[[], float] = time.monotonic
) -> Iterator[T]:
    """The turns as they come; every 10 seconds, stderr says `how_far(turns so far)` it is."""
    due = clock() + TELL_EVERY_S
    for number, turn in enumerate(turns, 1):
        yield turn
        if clock() >= due:
            print(how_far(number), file=sys.stderr, flush=True)
            due = clock() + TELL_EVERY_S


def check_at_least(lowest: int, **given: int) -> None:
    """Raises TrainingError for an argument that is lower, by its name."""
    for name, number in given.items():
        if number < lowest:
            raise TrainingError(f"{name} must be at least {lowest}, not {number}")


def _checkpoint(folder: RunFolder, which: str) -> Path:
    if which not in CHECKPOINTS:
        raise TrainingError(f"the checkpoint is {' or '.join(CHECKPOINTS)}, not {which!r}")
    if which == "last":
        if folder.checkpoint.exists():
            return folder.checkpoint
        raise TrainingError(f"{folder.path} has no checkpoint.pt: the run has not saved one yet")
    if folder.best.exists():
        return folder.best
    raise TrainingError(
        f"{folder.path} has no best.pt: too few episodes have ended to tell what is best; use the"
        " last checkpoint"
    )
