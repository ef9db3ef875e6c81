"""The settings of algorithms that learn from what their current policy, or nearly, has sampled."""

import dataclasses
from typing import Annotated

from remotely_rl.config.common import Arrivals, Common, Device, LearnerThreads
from remotely_rl.errors import TrainingError
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE


@dataclasses.dataclass(frozen=True)
class OnPolicy(Common):
    """What algorithms add whose targets follow from a trajectory and the values in it."""

    gae_lambda: Annotated[
        float, "lambda of GAE; 1 uses whole returns, 0 the value function alone", FRACTION
    ] = 0.95
    normalize_values: Annotated[
        bool | None,
        "learn values in units of their running mean and deviation; none: where rewards are not"
        " clipped",
    ] = None

    @property
    def normalizes_values(self) -> bool:
        """Whether values are learnt in units of their own.

        Values of clipped rewards are small as they are.  Others may be in the hundreds: their
        errors use up the gradient's norm, and the policy hardly moves.
        """
        return not self.clips_rewards_at if self.normalize_values is None else self.normalize_values


@dataclasses.dataclass(frozen=True)
class PolicyGradient(OnPolicy):
    """What algorithms add whose one learner trains a policy and a value function."""

    normalize_advantage: Annotated[
        bool, "scale advantages to mean 0 and standard deviation 1"
    ] = True  # fmt: skip
    entropy_coef: Annotated[float, "entropy coefficient at the start", NOT_NEGATIVE] = 0.01
    entropy_coef_end: Annotated[float, "entropy coefficient after anneal_steps", NOT_NEGATIVE] = (
        0.001
    )
    value_coef: Annotated[float, "value loss coefficient", NOT_NEGATIVE] = 0.5

    device: Device = "auto"
    learner_threads: LearnerThreads = 0

    def entropy_coef_at(self, env_steps: int) -> float:
        done = self.progress(env_steps)
        return self.entropy_coef + done * (self.entropy_coef_end - self.entropy_coef)


@dataclasses.dataclass(frozen=True)
class SeveralEpochs(PolicyGradient):
    """What algorithms add whose updates take several steps on one batch.

    Only they can steer the learning rate: how far an update has moved the policy shows in its
    later steps.
    """

    learning_rate: float = 1e-3
    target_kl: Annotated[
        float, "steer the rate to this KL of an update, from learning_rate_end / 10 to"
               " learning_rate * 4; 0: anneal", NOT_NEGATIVE
    ] = 0.01  # fmt: skip

    epochs: Annotated[int, "times that an update goes over its batch", COUNT] = 3
    minibatches: Annotated[int, "parts of the batch, with an optimizer step each", COUNT] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_kl and self.epochs * self.minibatches == 1:
            raise TrainingError(
                "target_kl steers the learning rate by how far the later steps of an update are"
                " from its first; with one step per update target_kl must be 0"
            )


@dataclasses.dataclass(frozen=True)
class Streaming(SeveralEpochs):
    """What algorithms add whose actors run free."""

    actors: Annotated[int, "processes that sample; 0: as many as the cluster has room for,"
                           " machines that join later included", NOT_NEGATIVE] = 2  # fmt: skip
    arrivals: Arrivals = False
    # An older policy's clipped c cuts traces by itself.
    gae_lambda: float = 1.0

    batch_trajectories: Annotated[int, "trajectories in an update", COUNT] = 2
    ahead: Annotated[
        int, "trajectories that an actor may sample before one is learnt from", COUNT
    ] = 1
    max_staleness: Annotated[
        int | None, "most updates that experience may be behind; 0: rounds, none: no limit",
        NOT_NEGATIVE,
    ] = None  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CentralInference(SeveralEpochs):
    """What algorithms add whose actors hold no model and ask an inference server."""

    actors: Annotated[int, "agents, at the start", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each agent steps together", COUNT] = 8
    predictors: Annotated[int, "threads that answer agents, at the start", COUNT] = 1
    trainers: Annotated[int, "threads that learn, at the start", COUNT] = 1
    adjust_s: Annotated[
        float, "seconds for which a change of these numbers is tried; 0: never change them",
        NOT_NEGATIVE,
    ] = 0.0  # fmt: skip
    most_agents: Annotated[int, "most agents, if numbers are adjusted", COUNT] = 16
    predict_requests: Annotated[int, "requests that a predictor waits for", COUNT] = 2
    predict_wait_ms: Annotated[
        float, "milliseconds after which it answers the requests that have come", NOT_NEGATIVE
    ] = 2.0
    train_rows: Annotated[int, "steps of experience that a trainer waits for", COUNT] = 1024

    @property
    def most(self) -> int:
        """Most agents at a time."""
        return max(self.actors, self.most_agents) if self.adjust_s else self.actors

    @property
    def processes(self) -> int:
        return self.most + 1  # the inference server
