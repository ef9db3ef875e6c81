"""Evaluator: an actor that plays whole episodes beside training, by parameters that it is sent."""

import copy

from torch import nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.evaluation import Evaluation, measure_in, quotas
from remotely_rl.acting.player import watch
from remotely_rl.acting.policy import Trained
from remotely_rl.config import Common
from remotely_rl.supervision import failures

MOST_ENVS = 16  # that it plays in side by side


@remotely.remote_class
class Evaluator:
    """Has environments of its own, which it keeps from one evaluation to the next."""

    def __init__(self, config: Common, model: nn.Module, is_replacement: bool = False):
        if is_replacement:
            failures.disable_stack_dumps()
        # Under REMOTELY_LOCAL the model is that of whoever makes this.
        self.trained = Trained(config, copy.deepcopy(model).eval())
        self.wanted = quotas(config.evaluate_episodes, min(MOST_ENVS, config.evaluate_episodes))
        count = len(self.wanted)
        self.envs = self.trained.environments(count, watch=watch(config, count))

    def evaluate(self, state: networks.State, seed: int) -> Evaluation:
        """Play by these parameters, in environments that begin from `seed` on."""
        networks.load_state(self.trained.model, state)
        greedy = self.trained.config.evaluate_greedy
        return measure_in(self.trained, self.envs, self.wanted, greedy, seed, tells=False)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
