"""Trained models and their policies, in any process and without a cluster."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from remotely_rl import networks, trees
from remotely_rl.config import Common
from remotely_rl.environments import Environments, Step, Watch, name_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.environments.spaces import Spaces
from remotely_rl.errors import TrainingError
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.trees import Tree


class Trained(NamedTuple):
    """A trained model, and the config of its run.

    `by` says how it was trained, for people; `spaces` are those of its environments, and
    `env_steps` the steps of its training, if known.
    """

    config: Common
    model: nn.Module
    by: str = ""
    spaces: Spaces | None = None
    env_steps: int | None = None

    def environments(
        self, count: int, watch: Watch | None = None, **env_kwargs: Any
    ) -> Environments:
        """Make `count` environments as in training, with `env_kwargs` added to the run's.

        Unlike in training, a lost life never ends a game.  Raises TrainingError unless their spaces
        are those of training.
        """
        given = {**self.config.env_kwargs, **env_kwargs}
        config = dataclasses.replace(
            self.config, env_kwargs=given, life_loss_is_terminal=False
        ).ranked(self.config.first_rank)
        envs = config.make_environments(count, watch)
        if self.spaces is not None and not envs.spaces.fit(self.spaces):
            envs.close()
            raise TrainingError(
                f"{name_of(config.env)} has other spaces than the environment of training: it has"
                f" {envs.spaces.text}, and that had {self.spaces.text}"
            )
        return envs

    def play(
        self,
        envs: Environments,
        obs: Tree,
        greedy: bool,
        seed: int,
        crashed: Callable[[CrashReport], object] = lambda report: None,
    ) -> Iterator[tuple[NDArray[Any], Step]]:
        """Play forever from `obs`, which a reset returned; yield each action and its step.

        With `greedy` it takes the most likely action; otherwise it samples one, seeded by `seed`.
        Logs crashes of environments, and calls `crashed` with each; raises TrainingError if there
        are too many.
        """
        crashes = Crashes(print, self.config.max_crash_rate, keep=crashed, in_training=False)
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
        """Return actions [B, ...] for observations [B, ...]; reset the state where `begins`."""
        seen = trees.map_tree(lambda x: torch.from_numpy(x)[None], obs)
        begins_now = torch.from_numpy(begins)[None]
        policy, _, self._memory = networks.unroll(self._model, seen, self._memory, begins_now)
        if self.greedy:
            return self._config.best(self._actions, policy[0]).numpy()
        return self._config.draw(self._actions, policy[0], self._random).numpy()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread.

    A few observations are not enough work for more, and results do not depend on the number of
    threads that was set before.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
