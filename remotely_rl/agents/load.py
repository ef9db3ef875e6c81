"""A trained agent, out of its run folder: to be looked at, not to be trained on.

It is made of config.json and of the model in a checkpoint, in this process; no cluster
is needed.  Nothing that is loaded runs any code: what a checkpoint holds of the actors is
pickled, and is left alone.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from remotely_rl import algorithms, environments, networks
from remotely_rl.config import Common
from remotely_rl.environments import Atari, Environments, Source, Step
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.runs import checkpoint, earlier_names, run_folder, training
from remotely_rl.runs.run_folder import RunFolder

CHECKPOINTS = ("best", "last")


class Trained(NamedTuple):
    """What a run has learnt, and where it did."""

    config: Common
    model: nn.Module

    def environments(self, count: int, source: Source | None = None) -> Environments:
        """Makes `count` of the environments, of `source` if theirs is not wanted."""
        return environments.make(source or self.config.env, count, self.atari)

    @property
    def atari(self) -> Atari:
        """The preprocessing of the training, but for this: a game is never over at a lost life."""
        return Atari(self.config.image_size, self.config.sticky_actions)

    def play(
        self, envs: Environments, obs: NDArray[Any], greedy: bool, seed: int
    ) -> Iterator[tuple[NDArray[Any], Step]]:
        """Plays on and on from `obs`, which a reset returned; tells each action and its step.

        `greedy`: the likeliest action, not one drawn by its probability; `seed` is the draw's.
        """
        policy = Policy(self.config, self.model, envs.actions, envs.num_envs, greedy, seed)
        begins = np.ones(envs.num_envs, np.bool_)
        while True:
            action = policy.act(obs, begins)
            step = envs.step(action)
            yield action, step
            obs, begins = step.obs, step.begins


def load(
    run: str | Path,
    which: str = "last",
    model: networks.ModelSource | None = None,
    env: Source | None = None,
) -> Trained:
    """Loads the agent of a run folder, from its "last" or its "best" checkpoint.

    `model` and `env` are what the run was trained with, if that was not a network of
    `remotely_rl` and an id of Gymnasium: the folder knows their names alone.  Raises
    TrainingError if one of them is missing or does not fit, or the folder is not whole.
    """
    folder = RunFolder(Path(run))
    algorithm, _, _ = run_folder.read(run)
    kind = algorithms.named(algorithm).Config
    config = training.config_of(kind, algorithm, run, {} if env is None else {"env": env})
    path = _checkpoint(folder, which)
    try:
        state = checkpoint.load(path)["learner"]["model"]
    except (KeyError, TypeError):
        raise TrainingError(f"{path} holds no model") from None
    probe = environments.make(config.env, 1, config.atari)
    probe.close()
    network = networks.build(
        model, probe.observation_shape, probe.dtype, probe.actions.outputs, config.lstm
    )
    state = earlier_names.renamed_state(state, network.state_dict())
    try:
        checkpoint.check_fits(path, state, network)
    except TrainingError as error:
        hint = "; a model of your own has to be given: model=, or --model FILE.py:NAME"
        raise TrainingError(f"{error}{hint if model is None else ''}") from None
    network.load_state_dict(state)
    return Trained(config, network.eval())


class Policy:
    """A model that acts in B environments, and remembers what it saw there."""

    def __init__(
        self,
        config: Common,
        model: nn.Module,
        actions: Actions,
        count: int,
        greedy: bool,
        seed: int,
    ):
        self._draw = config.draw
        self._model = model
        self._actions = actions
        self._greedy = greedy
        self._memory = networks.initial_state(model, count)
        self._random = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def act(self, obs: NDArray[Any], begins: NDArray[np.bool_]) -> NDArray[Any]:
        """Actions [B, ...] for observations [B, ...]; where `begins`, memory starts anew."""
        seen = torch.from_numpy(obs)
        if networks.is_recurrent(self._model):
            fresh = torch.from_numpy(begins)[None]
            policy, _, self._memory = self._model(seen[None], self._memory, fresh)
            policy = policy[0]
        else:
            policy, _ = self._model(seen)
        if self._greedy:
            return self._actions.mode(policy).numpy()
        return self._draw(self._actions, policy, self._random).numpy()


def check_at_least(lowest: int, **given: int) -> None:
    """Raises TrainingError, by the name of the argument, for a number that is lower."""
    for name, number in given.items():
        if number < lowest:
            raise TrainingError(f"{name} must be at least {lowest}, not {number}")


def _checkpoint(folder: RunFolder, which: str) -> Path:
    if which not in CHECKPOINTS:
        raise TrainingError(f"the checkpoint is {' or '.join(CHECKPOINTS)}, not {which!r}")
    if which == "last":
        if folder.checkpoint.exists():
            return folder.checkpoint
        raise TrainingError(f"{folder.path} has no checkpoint.pt: none was saved yet")
    if folder.best.exists():
        return folder.best
    raise TrainingError(
        f"{folder.path} has no best.pt: too few games were finished to tell what is best; take"
        " the last checkpoint"
    )
