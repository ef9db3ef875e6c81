"""What every training run can be told; each algorithm's Config adds its own to it.

`settings.py` says what a field is made of.  Its prose is the help of `remotely-rl train`, its
bounds are checked when a Config is made.
"""

import dataclasses
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from remotely_rl import settings, sync
from remotely_rl.environments import Atari, Source, is_atari
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.networks import precision
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE, Range
from remotely_rl.sync.client import MakeOptimizer


@dataclasses.dataclass(frozen=True)
class Common:
    """The fields that all algorithms have.  Made, it is whole: nothing in it is out of range."""

    env: Annotated[Source, "Gymnasium id, or a callable that makes environments: FILE.py:NAME"] = (
        "ALE/Pong-v5"
    )
    actors: Annotated[int, "processes that sample", COUNT] = 2
    envs_per_actor: Annotated[int, "environments that each actor steps together", COUNT] = 16
    rollout_steps: Annotated[int, "T, steps of each environment in a trajectory", COUNT] = 64
    random_start: Annotated[
        int, "first play up to so many random steps, to set the environments apart", NOT_NEGATIVE
    ] = 0
    total_steps: Annotated[
        int, "stop after so many environment steps in all; 0: no limit", NOT_NEGATIVE
    ] = 0
    minutes: Annotated[float, "stop after so many minutes in all; 0: no limit", NOT_NEGATIVE] = 0.0
    target: Annotated[float | None, "stop when the mean of the last 30 returns reaches this"] = None
    seed: Annotated[int, "where all random streams begin", NOT_NEGATIVE] = 1

    gamma: Annotated[float, "discount of a reward one step later", FRACTION] = 0.99
    gae_lambda: Annotated[float, "lambda; 1 trusts whole returns, 0 the value alone", FRACTION] = (
        0.95
    )
    reward_clip: Annotated[
        float | None, "clip of rewards in the learner; 0: no clip; none: 1 in Atari games alone",
        NOT_NEGATIVE,
    ] = None  # fmt: skip
    normalize_advantage: Annotated[bool, "scale advantages to mean 0 and deviation 1"] = True
    normalize_values: Annotated[
        bool | None,
        "learn values in units of their own running mean and deviation; none: where rewards have"
        " no clip",
    ] = None

    learning_rate: Annotated[float, "Adam's, at the start", NOT_NEGATIVE] = 3e-4
    learning_rate_end: Annotated[
        float | None, "Adam's, after anneal_steps; none: 0.0001, or learning_rate if that is lower",
        NOT_NEGATIVE,
    ] = None  # fmt: skip
    target_kl: Annotated[
        float, "nats that an update is to move: steers the rate, from learning_rate_end / 10 to"
               " learning_rate x 4; 0: decay", NOT_NEGATIVE
    ] = 0.0  # fmt: skip
    entropy_coef: Annotated[float, "weight of the policy's entropy, at the start", NOT_NEGATIVE] = (
        0.01
    )
    entropy_coef_end: Annotated[
        float, "weight of the policy's entropy, after anneal_steps", NOT_NEGATIVE
    ] = 0.001
    anneal_steps: Annotated[int, "environment steps over which both change, linearly", COUNT] = (
        1_000_000
    )
    value_coef: Annotated[float, "weight of the value's loss", NOT_NEGATIVE] = 0.5
    max_grad_norm: Annotated[
        float, "bound of the gradient's norm over all parameters; 0: none", NOT_NEGATIVE
    ] = 0.5

    lstm: Annotated[int, "units of an LSTM before the heads; 0: none", NOT_NEGATIVE] = 0
    image_size: Annotated[int, "Atari: height and width of the image", Range(20)] = 42
    sticky_actions: Annotated[
        float, "Atari: chance that the action before is repeated", FRACTION
    ] = 0.0
    life_loss_is_terminal: Annotated[bool, "Atari: a lost life ends the episode"] = False

    device: Annotated[str, "where the learner computes: auto, cpu, cuda or cuda:N"] = "auto"
    precision: Annotated[
        str, "what networks compute in: float32, bfloat16, or auto, the faster of them here"
    ] = "auto"
    compile: Annotated[bool, "torch.compile the learner's network; a GPU gets CUDA graphs"] = False
    learner_threads: Annotated[
        int, "torch threads of a learner on the CPU; 0: as fits the template", NOT_NEGATIVE
    ] = 0
    log_interval_s: Annotated[float, "seconds between rows of metrics", NOT_NEGATIVE] = 5.0
    checkpoint_interval_s: Annotated[float, "seconds between checkpoints", NOT_NEGATIVE] = 120.0

    def __new__(cls, *args: Any, **given: Any) -> "Common":
        settings.check_names(cls, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        settings.check(self)
        precision.check(self.precision)
        if self.target_kl and self.steps_an_update == 1:
            raise TrainingError(
                "target_kl steers one learner's rate by how far the later steps of an update are"
                " from its first; here there are none: target_kl must be 0"
            )

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """How a trained agent draws an action when it is not to take the likeliest."""
        return actions.sample(policy, generator)

    def check_run(self) -> None:
        """Raises TrainingError for what is not worth a look whenever a Config is made, workers'
        copies included: it is called where a run begins, before its folder is made."""

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        """Raises TrainingError for a network or actions that the template cannot train.

        Like `check_run` it is called before the folder of a run is made.
        """

    @property
    def processes(self) -> int:
        """How many actors a run has at most, of all kinds; 0: as many as there is room for."""
        return self.actors

    @property
    def steps_an_update(self) -> int:
        """How many steps the optimizer takes on a batch."""
        return 1

    @property
    def atari(self) -> Atari:
        """The preprocessing, should the environment be a game of Atari."""
        return Atari(self.image_size, self.sticky_actions, self.life_loss_is_terminal)

    @property
    def clips_rewards_at(self) -> float:
        """What rewards are clipped at in the learner, or 0."""
        if self.reward_clip is None:
            return float(is_atari(self.env))
        return self.reward_clip

    @property
    def normalizes_values(self) -> bool:
        """Whether values are learnt in units of their own.

        Those of clipped rewards are small as they are.  Others may be in the hundreds, and then
        their errors fill the bound of the gradient's norm: the policy hardly moves.
        """
        return not self.clips_rewards_at if self.normalize_values is None else self.normalize_values

    @property
    def learning_rate_ends_at(self) -> float:
        """What the schedule goes down to: never up, unless that is asked for."""
        if self.learning_rate_end is None:
            return min(1e-4, self.learning_rate)
        return self.learning_rate_end

    def progress(self, env_steps: int) -> float:
        """How much of `anneal_steps` is over, from 0 to 1."""
        return min(1.0, env_steps / self.anneal_steps)

    def learning_rate_at(self, env_steps: int) -> float:
        """The learning rate by the schedule."""
        done = self.progress(env_steps)
        return self.learning_rate * (1 - done) + self.learning_rate_ends_at * done


@dataclasses.dataclass(frozen=True)
class OneEpoch(Common):
    """The defaults of templates that use everything once: short pieces, whole returns."""

    rollout_steps: Annotated[int, "T, steps of each environment in a trajectory", COUNT] = 8
    random_start: Annotated[
        int, "first play up to so many random steps, to set the environments apart", NOT_NEGATIVE
    ] = 250
    gae_lambda: Annotated[float, "lambda; 1 trusts whole returns, 0 the value alone", FRACTION] = (
        1.0
    )
    normalize_advantage: Annotated[bool, "scale advantages to mean 0 and deviation 1"] = False
    # Advantages of Pong have a deviation of 0.15: 0.01 would keep the policy near chance.
    entropy_coef: Annotated[float, "weight of the policy's entropy, at the start", NOT_NEGATIVE] = (
        0.004
    )
    anneal_steps: Annotated[int, "environment steps over which both change, linearly", COUNT] = (
        3_000_000
    )


@dataclasses.dataclass(frozen=True)
class SeveralEpochs(Common):
    """What templates can be told besides whose updates take several steps on one batch.

    Only they can steer the learning rate: how far an update has moved the policy shows in its
    later steps.
    """

    learning_rate: Annotated[float, "Adam's, at the start", NOT_NEGATIVE] = 1e-3
    target_kl: float = 0.01

    epochs: Annotated[int, "times that an update goes over its batch", COUNT] = 3
    minibatches: Annotated[int, "parts of the batch, with a step each", COUNT] = 4

    @property
    def steps_an_update(self) -> int:
        return self.epochs * self.minibatches


@dataclasses.dataclass(frozen=True)
class Streaming(SeveralEpochs):
    """What templates whose actors run free can be told besides."""

    actors: Annotated[int, "processes that sample; 0: as many as the cluster has room for,"
                           " machines that join later included", NOT_NEGATIVE] = 2  # fmt: skip
    # An older policy's clipped c cuts traces by itself.
    gae_lambda: Annotated[float, "lambda; 1 trusts whole returns, 0 the value alone", FRACTION] = (
        1.0
    )

    batch_trajectories: Annotated[int, "trajectories that an update learns from", COUNT] = 2
    ahead: Annotated[int, "trajectories that an actor may sample before one is learnt", COUNT] = 1
    max_staleness: Annotated[
        int | None, "updates that experience may be behind; 0: rounds, none: no limit", NOT_NEGATIVE
    ] = None


@dataclasses.dataclass(frozen=True)
class Shared(OneEpoch):
    """What templates can be told besides whose workers share parameters by a sync rule."""

    actors: Annotated[int, "workers, each a client of the rule", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each worker steps together", COUNT] = 8

    sync: Annotated[
        str, "by which rule workers share parameters (`remotely-rl rules`); rate= voids a schedule"
    ] = "asynchronous"
    accumulate: Annotated[int, "segments whose gradients a worker sums up for a push", COUNT] = 1
    optimizer: Annotated[
        str, "of the shared parameters, or of workers that step by themselves: rmsprop, adam or sgd"
    ] = "rmsprop"
    rmsprop_decay: Annotated[float, "of the mean of squared gradients", FRACTION] = 0.99
    rmsprop_epsilon: Annotated[float, "added to its root", NOT_NEGATIVE] = 1e-4

    def check_run(self) -> None:
        """Makes a rule of one parameter: what is wrong with the word or the optimizer shows."""
        sync.make(self.sync, torch.zeros(1), self.actors, self.make_optimizer)

    @property
    def make_optimizer(self) -> MakeOptimizer:
        """What makes the shared parameters' optimizer."""
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


def device_of(name: str) -> torch.device:
    """The device of a `device` field.  Raises TrainingError if this machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise TrainingError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise TrainingError(f"device must be auto, cpu, cuda or cuda:N, not {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise TrainingError(
                f"there is no {name} here: torch {torch.__version__} sees"
                f" {count or 'no'} GPU{'s' if count > 1 else ''}; use --device cpu"
            )
    return device
