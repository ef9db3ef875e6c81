"""The learning rate of one learner: annealed over the run, or steered by how far updates move.

Without `target_kl` the rate falls linearly over `anneal_steps`.  With it, each update's KL
divergence decides: the rate rises if the update moved the policy little, and falls if it moved
it far, so that no horizon has to be guessed.
"""

from remotely_rl.config import Common

# A steered rate changes by this factor, within these multiples of its bounds.
FACTOR, ABOVE, BELOW = 1.5, 4.0, 0.1


class LearningRate:
    """The rate at which the next optimizer step is taken: `value`."""

    def __init__(self, config: Common):
        self._config = config
        self.value = config.learning_rate

    def anneal(self, env_steps: int) -> None:
        """Sets the rate that the schedule has after this many steps; a steered rate stays."""
        if not self._config.target_kl:
            self.value = self._config.learning_rate_at(env_steps)

    def steer(self, kl: float) -> None:
        """Adapts a steered rate after an update that moved the policy by `kl` nats."""
        if self._config.target_kl:
            self.value = steered(self.value, kl, self._config)

    def resume(self, value: float, given: float) -> None:
        """Continues at `value`, unless another `learning_rate` than `given` is asked for."""
        asked = "learning_rate" in self._config.overridden
        if given == self._config.learning_rate and not asked:
            self.value = value


def steered(rate: float, kl: float, config: Common) -> float:
    """The learning rate for the next update, after one that moved the policy by `kl` nats.

    Up if that was less than half of `target_kl`, down if more than twice; never above
    `learning_rate` times 4, nor below where the schedule would end, over 10.
    """
    if kl > 2 * config.target_kl:
        return max(rate / FACTOR, config.learning_rate_ends_at * BELOW)
    if kl < config.target_kl / 2:
        return min(rate * FACTOR, config.learning_rate * ABOVE)
    return rate
