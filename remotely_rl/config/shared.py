"""The settings of algorithms whose workers share parameters by a sync rule."""

import dataclasses
from typing import Annotated

import torch

from remotely_rl import sync
from remotely_rl.config.on_policy import OnPolicy
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE
from remotely_rl.sync.client import MakeOptimizer


@dataclasses.dataclass(frozen=True)
class Shared(OnPolicy):
    """What algorithms add whose workers share parameters by a sync rule."""

    actors: Annotated[int, "workers, each a client of the rule", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each worker steps together", COUNT] = 8
    rollout_steps: int = 8
    random_start: int = 250
    gae_lambda: float = 1.0
    learning_rate: Annotated[
        float, "the shared optimizer's learning rate at the start", NOT_NEGATIVE
    ] = 7e-4
    anneal_steps: int = 3_000_000

    sync: Annotated[
        str, "rule by which workers share parameters (`remotely-rl rules`); rate= replaces"
             " learning_rate"
    ] = "asynchronous"  # fmt: skip
    accumulate: Annotated[int, "segments whose gradients a worker sums up for a push", COUNT] = 1
    optimizer: Annotated[
        str, "of the shared parameters, or of workers that step by themselves: rmsprop, adam or sgd"
    ] = "rmsprop"
    rmsprop_decay: Annotated[float, "decay of the mean of squared gradients", FRACTION] = 0.99
    rmsprop_epsilon: Annotated[float, "added to the root of that mean", NOT_NEGATIVE] = 1e-4

    def check_run(self) -> None:
        """Makes a rule of one parameter, which raises for a wrong rule or optimizer."""
        sync.make(self.sync, torch.zeros(1), self.actors, self.make_optimizer)

    @property
    def make_optimizer(self) -> MakeOptimizer:
        """Makes the shared parameters' optimizer."""
        rate = self.learning_rate
        kinds: dict[str, MakeOptimizer] = {
            "rmsprop": lambda p: torch.optim.RMSprop(
                p, rate, alpha=self.rmsprop_decay, eps=self.rmsprop_epsilon
            ),
            "adam": lambda p: torch.optim.Adam(p, rate, eps=1e-5),
            "sgd": lambda p: torch.optim.SGD(p, rate),
        }
        if self.optimizer not in kinds:
            raise TrainingError(
                f"optimizer must be {', '.join(kinds)}, not {self.optimizer!r}"
                f"{nearest(self.optimizer, kinds)}"
            )
        return kinds[self.optimizer]
