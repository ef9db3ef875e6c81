"""Evaluator: an actor that plays whole episodes during training."""

import copy

from torch import nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.evaluation import Evaluation, measure_in, quotas
from remotely_rl.acting.player import watch
from remotely_rl.acting.policy import Trained
from remotely_rl.config import Common
from remotely_rl.environments.spaces import Spaces
from remotely_rl.supervision import failures

MAX_ENVS = 16  # that it plays in parallel


@remotely.remote_class
class Evaluator:
    """Keeps its environments from one evaluation to the next."""

    def __init__(
        self,
        config: Common,
        model: nn.Module,
        trained_in: Spaces | None,
        is_replacement: bool = False,
    ):
        """Make the environments; raise TrainingError unless their spaces are those of training."""
        if is_replacement:
            failures.disable_stack_dumps()
        # Under REMOTELY_LOCAL the model is the caller's own.
        config = config.of_evaluations()
        self.trained = Trained(config, copy.deepcopy(model).eval(), spaces=trained_in)
        self.wanted = quotas(config.evaluate_episodes, min(MAX_ENVS, config.evaluate_episodes))
        count = len(self.wanted)
        self.envs = self.trained.environments(count, watch=watch(config, count))

    def evaluate(self, state: networks.State, seed: int) -> Evaluation:
        """Play with these parameters, in environments seeded from `seed`."""
        networks.load_state(self.trained.model, state)
        greedy = self.trained.config.evaluate_greedy
        trained, envs, wanted = self.trained, self.envs, self.wanted
        return measure_in(trained, envs, wanted, greedy, seed, shows_progress=False)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
