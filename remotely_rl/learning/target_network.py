"""TargetLearner: a learner with a target network, an older copy of what it trains."""

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from remotely_rl.config import OffPolicy
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.learning.learner import Learner

C = TypeVar("C", bound=OffPolicy)


class TargetLearner(Learner[C]):
    """A learner that bootstraps from `target`, a copy of `followed`.

    The copy includes the statistics of the input: values that the target network has learnt are
    those of observations as it saw them normalized.
    """

    def __init__(self, config: C, model: Any, actions: Actions):
        super().__init__(config, model, actions)
        self.target = copy.deepcopy(self.followed).requires_grad_(False)
        # Looked up once: that takes longer than an average of small networks.
        pairs = (self.target.parameters(), self.followed.parameters())
        self._parameters = list(zip(*pairs, strict=True))
        self._statistics = list(zip(self.target.buffers(), self.followed.buffers(), strict=True))
        self.renewals = 0  # how many intervals are over

    @property
    def followed(self) -> nn.Module:
        """The network that the target follows: the model, or a part of it."""
        return self.model

    def renew_target(self, env_steps: int, interval: int) -> None:
        """Copies the network, if the steps of the run have passed a multiple of the interval."""
        due = env_steps // interval
        if due != self.renewals:
            self.renewals = due
            self.target.load_state_dict(self.followed.state_dict())

    @torch.no_grad()
    def average_target(self, tau: float) -> None:
        """Moves the target's parameters by `tau` of their distance to the network's (Polyak)."""
        for old, new in self._parameters:
            old.lerp_(new, tau)
        for statistic, newest in self._statistics:
            statistic.copy_(newest)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "target": self.target.state_dict(), "renewals": self.renewals}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.target.load_state_dict(state["target"])
        self.renewals = state["renewals"]
