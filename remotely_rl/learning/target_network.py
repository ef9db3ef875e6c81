"""TargetLearner: a learner with a target network, an older copy of what it trains."""

import copy
from typing import Any, TypeVar

from remotely_rl.config import OffPolicy
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.learning.learner import Learner

C = TypeVar("C", bound=OffPolicy)


class TargetLearner(Learner[C]):
    """A learner that bootstraps from `target`.

    The copy includes the statistics of the input: values that the target network has learnt are
    those of observations as it saw them normalized.
    """

    def __init__(self, config: C, model: Any, actions: Actions):
        super().__init__(config, model, actions)
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.renewals = 0  # how many intervals of `target_update_interval` are over

    def renew_target(self, env_steps: int) -> None:
        """Copies the model, if the steps of the run have passed a multiple of the interval."""
        due = env_steps // self.config.target_update_interval
        if due != self.renewals:
            self.renewals = due
            self.target.load_state_dict(self.model.state_dict())

    def state(self) -> dict[str, Any]:
        return {**super().state(), "target": self.target.state_dict(), "renewals": self.renewals}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.target.load_state_dict(state["target"])
        self.renewals = state["renewals"]
