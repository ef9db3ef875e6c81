"""The settings of algorithms that learn from a replay of past experience."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from torch import nn

from remotely_rl import networks
from remotely_rl.config.common import ATARI_STACK, Common, Device, LearnerThreads
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE

# How the learning rate of a learner with a replay follows the size of its batch, relative to
# RATE_IS_FOR.  Which rule serves is a matter of measurement: Stooke and Abbeel 2018 leave Adam's
# rate alone up to batches of 2,048.
RATE_IS_FOR = 128
RATE_RULES: dict[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "sqrt": math.sqrt,
    "linear": lambda ratio: ratio,
}


@dataclasses.dataclass(frozen=True)
class OffPolicy(Common):
    """What algorithms add that learn from a replay of past experience."""

    rollout_steps: Annotated[int, "steps of each environment in a round", COUNT] = 8
    overlap: Annotated[bool, "sample the next round while learning"] = False

    replay_rows: Annotated[int, "steps that the replay holds, of all environments", COUNT] = 200_000
    learn_from: Annotated[int, "steps of random play before the first update", COUNT] = 10_000
    replay_ratio: Annotated[
        float, "times that a step is learnt from, on average", NOT_NEGATIVE
    ] = 8.0  # fmt: skip
    batch_size: Annotated[int, "steps that an update draws from the replay", COUNT] = 128
    scale_rate: Annotated[
        str, "how learning rates follow batch_size beyond 128: none, sqrt or linear"
    ] = "none"
    n_step: Annotated[int, "rewards in a target before it bootstraps", COUNT] = 3
    prioritized_alpha: Annotated[
        float, "draw steps by their last error to this power; 0: all alike", FRACTION
    ] = 0.0
    prioritized_beta: Annotated[
        float, "exponent of the weights that correct for that; rises to 1 over anneal_steps",
        FRACTION,
    ] = 0.4  # fmt: skip
    save_replay: Annotated[bool, "save the replay beside each checkpoint, to resume with it"] = True

    device: Device = "auto"
    learner_threads: LearnerThreads = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay_ratio == 0:
            raise TrainingError("replay_ratio must be more than 0: at 0 nothing would be learnt")
        if self.scale_rate not in RATE_RULES:
            raise TrainingError(
                f"scale_rate must be {', '.join(RATE_RULES)}, not {self.scale_rate!r}"
                f"{nearest(self.scale_rate, RATE_RULES)}"
            )

    def check_run(self) -> None:
        """Raises TrainingError for sizes that do not fit each other, and for a memory."""
        if self.lstm:
            raise TrainingError(
                "a replay keeps no recurrent state, so lstm must be 0; to train an LSTM use a2c,"
                " ppo or impala"
            )
        if self.learn_from > self.replay_rows:
            raise TrainingError(
                f"learn_from ({self.learn_from:,}) is more than replay_rows ({self.replay_rows:,}):"
                " the replay would never hold enough to begin"
            )
        if self.batch_size > self.learn_from:
            raise TrainingError(
                f"batch_size ({self.batch_size:,}) is more than learn_from ({self.learn_from:,}):"
                " the first batch would hold steps more than once; raise learn_from"
            )
        environments = self.actors * self.envs_per_actor
        each = self.replay_rows // environments
        needed = max(self.n_step, self.n_step_at(0)) + max(
            self.rollout_steps, self.frame_stack or ATARI_STACK
        )
        if each < needed:
            raise TrainingError(
                f"replay_rows ({self.replay_rows:,}) leaves {each:,} steps to each of"
                f" {environments:,} environments, which need {needed:,} at least: n_step, and a"
                " round or a stack of frames; raise replay_rows or lower envs_per_actor"
            )

    def warning_of(self, reward: NDArray[np.float32]) -> str:
        """What to tell the user of new rewards [N], raw; an empty string if there is nothing."""
        return ""

    def n_step_at(self, updates: int) -> int:
        """The rewards in a target after so many updates."""
        return self.n_step

    def gamma_at(self, updates: int) -> float:
        """The discount of the replay's targets after so many updates."""
        return self.gamma

    def prioritized_beta_at(self, env_steps: int) -> float:
        """The exponent of the weights after this many steps of the run."""
        return self.prioritized_beta + self.progress(env_steps) * (1 - self.prioritized_beta)

    def learning_rate_at(self, env_steps: int) -> float:
        return super().learning_rate_at(env_steps) * RATE_RULES[self.scale_rate](
            self.batch_size / RATE_IS_FOR
        )


def check_has_no_memory(model: nn.Module) -> None:
    """Raises TrainingError for a network with a memory."""
    if networks.is_recurrent(model):
        raise TrainingError(
            "a replay keeps no recurrent state; to train a model with a memory use a2c, ppo or"
            " impala"
        )
