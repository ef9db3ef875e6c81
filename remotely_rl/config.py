"""The settings of training runs; each algorithm's Config adds its own.

`settings.py` says what a field is made of.  Its prose is the help of `remotely-rl train`; its
bounds are checked when a Config is made.
"""

import dataclasses
from typing import Annotated, Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn

from remotely_rl import environments, settings, sync
from remotely_rl.environments import Atari, Environments, Images, Source, Watch, is_atari
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.networks import precision
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE, Range
from remotely_rl.supervision import rate, watchdog
from remotely_rl.sync.client import MakeOptimizer

ATARI_SIZE, ATARI_STACK = 42, 4  # of images in Atari games, unless others are asked for


@dataclasses.dataclass(frozen=True)
class Common:
    """The fields that all algorithms have.  Every field of a Config that exists is in bounds."""

    env: Annotated[Source, "Gymnasium id, or a callable that makes environments: FILE.py:NAME"] = (
        "ALE/Pong-v5"
    )
    actors: Annotated[int, "processes that sample", COUNT] = 2
    envs_per_actor: Annotated[int, "environments that each actor steps together", COUNT] = 16
    rollout_steps: Annotated[int, "T, steps of each environment in a trajectory", COUNT] = 64
    random_start: Annotated[
        int, "first play up to this many random steps, so that environments differ", NOT_NEGATIVE
    ] = 0
    total_steps: Annotated[
        int, "stop after this many environment steps in all; 0: no limit", NOT_NEGATIVE
    ] = 0
    minutes: Annotated[float, "stop after this many minutes in all; 0: no limit", NOT_NEGATIVE] = (
        0.0
    )
    target: Annotated[float | None, "stop when the mean of the last 30 returns reaches this"] = None
    seed: Annotated[int, "seed of all random numbers", NOT_NEGATIVE] = 1

    step_timeout_s: Annotated[
        float, "an environment that takes longer for a step or a reset hangs, and is replaced; 0:"
               " no limit", NOT_NEGATIVE
    ] = watchdog.DEFAULT_S  # fmt: skip
    max_crash_rate: Annotated[
        float, "end the run if environments crash more often than this, per step; 1: never",
        NOT_NEGATIVE,
    ] = rate.MAX_RATE  # fmt: skip

    gamma: Annotated[float, "discount of a reward one step later", FRACTION] = 0.99
    gae_lambda: Annotated[
        float, "lambda of GAE; 1 uses whole returns, 0 the value function alone", FRACTION
    ] = 0.95
    reward_clip: Annotated[
        float | None, "clip rewards in the learner to this; 0: never; none: to 1 in Atari games",
        NOT_NEGATIVE,
    ] = None  # fmt: skip
    normalize_values: Annotated[
        bool | None,
        "learn values in units of their running mean and deviation; none: where rewards are not"
        " clipped",
    ] = None

    learning_rate: Annotated[float, "Adam's learning rate at the start", NOT_NEGATIVE] = 3e-4
    learning_rate_end: Annotated[
        float | None,
        "learning rate after anneal_steps; none: 0.0001, or learning_rate if that is lower",
        NOT_NEGATIVE,
    ] = None
    anneal_steps: Annotated[
        int, "environment steps over which coefficients change, linearly", COUNT
    ] = 1_000_000
    max_grad_norm: Annotated[
        float, "clip the gradient's norm over all parameters to this; 0: never", NOT_NEGATIVE
    ] = 0.5

    lstm: Annotated[int, "units of an LSTM before the heads; 0: none", NOT_NEGATIVE] = 0
    image_size: Annotated[
        int | None, "scale images to this height and width; none: 42 in Atari games, else never",
        Range(20),
    ] = None  # fmt: skip
    gray: Annotated[
        bool | None, "images without colour; none: in Atari games, else as they are"
    ] = None  # fmt: skip
    frame_stack: Annotated[
        int | None, "last frames that an image consists of; none: 4 in Atari games, else 1", COUNT
    ] = None  # fmt: skip
    sticky_actions: Annotated[
        float, "Atari: probability that the last action is repeated", FRACTION
    ] = 0.0
    life_loss_is_terminal: Annotated[bool, "Atari: a lost life ends the episode"] = False

    precision: Annotated[
        str, "what networks compute in: float32, bfloat16, or auto, the faster of them here"
    ] = "auto"
    compile: Annotated[
        bool, "compile the learner's network with torch.compile; on a GPU with CUDA graphs"
    ] = False
    log_interval_s: Annotated[float, "seconds between rows of metrics", NOT_NEGATIVE] = 5.0
    checkpoint_interval_s: Annotated[float, "seconds between checkpoints", NOT_NEGATIVE] = 120.0

    # Names of the fields that were changed to resume a run; set by `training.config_of`.
    overridden: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, *args: Any, **given: Any) -> "Common":
        settings.check_names(cls, given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        settings.check(self)
        precision.check(self.precision)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """How a trained agent draws an action when it does not take the most likely one."""
        return actions.sample(policy, generator)

    def check_run(self) -> None:
        """Raises TrainingError for what takes too long to check in every copy of a Config.

        It is called once, where a run begins, before its folder is made.
        """

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        """Raises TrainingError for a network or actions that the algorithm cannot train.

        Like `check_run` it is called before the folder of a run is made.
        """

    # What an algorithm without the field of this name does.

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def normalize_advantage(self) -> bool:
        return False

    @property
    def target_kl(self) -> float:
        return 0.0

    def entropy_coef_at(self, env_steps: int) -> float:
        """The entropy coefficient after this many steps of the run."""
        return 0.0

    # What follows from the fields.

    @property
    def processes(self) -> int:
        """How many actors a run has at most, of all kinds; 0: as many as there is room for."""
        return self.actors

    def __getstate__(self) -> dict[str, Any]:
        """Take along the spec of the environment's id: perhaps only this process knows it."""
        spec = gymnasium.registry.get(self.env) if isinstance(self.env, str) else None
        return {**self.__dict__, "spec": spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the environment's id known in this process."""
        state = dict(state)
        if (spec := state.pop("spec")) is not None:
            gymnasium.registry.setdefault(spec.id, spec)
        self.__dict__.update(state)

    def make_environments(self, count: int, watch: Watch | None = None) -> Environments:
        """Make `count` environments as these settings say."""
        return environments.make(self.env, count, self.atari, self.images, watch)

    @property
    def atari(self) -> Atari:
        """The preprocessing, if the environment is an Atari game."""
        return Atari(
            image_size=self.image_size or ATARI_SIZE,
            gray=True if self.gray is None else self.gray,
            frame_stack=self.frame_stack or ATARI_STACK,
            sticky_actions=self.sticky_actions,
            life_loss_is_terminal=self.life_loss_is_terminal,
        )

    @property
    def images(self) -> Images:
        """The preprocessing of images in all other environments."""
        return Images(self.image_size, bool(self.gray), self.frame_stack or 1)

    @property
    def clips_rewards_at(self) -> float:
        """What rewards are clipped at in the learner, or 0."""
        if self.reward_clip is None:
            return float(is_atari(self.env))
        return self.reward_clip

    @property
    def normalizes_values(self) -> bool:
        """Whether values are learnt in units of their own.

        Values of clipped rewards are small as they are.  Others may be in the hundreds: their
        errors use up the gradient's norm, and the policy hardly moves.
        """
        return not self.clips_rewards_at if self.normalize_values is None else self.normalize_values

    @property
    def learning_rate_ends_at(self) -> float:
        """Where the schedule ends: never above its start, unless that is asked for."""
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


# Of algorithms whose actors act by a model of their own.
Arrivals = Annotated[
    bool, "actors are processes that dial in (remotely_rl.dial_in); further ones may join"
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class PolicyGradient(Common):
    """What algorithms add whose one learner trains a policy and a value function."""

    normalize_advantage: Annotated[
        bool, "scale advantages to mean 0 and standard deviation 1"
    ] = True  # fmt: skip
    entropy_coef: Annotated[float, "entropy coefficient at the start", NOT_NEGATIVE] = 0.01
    entropy_coef_end: Annotated[float, "entropy coefficient after anneal_steps", NOT_NEGATIVE] = (
        0.001
    )
    value_coef: Annotated[float, "value loss coefficient", NOT_NEGATIVE] = 0.5

    device: Annotated[str, "where the learner computes: auto, cpu, cuda or cuda:N"] = "auto"
    learner_threads: Annotated[
        int, "torch threads of a learner on the CPU; 0: as fits the algorithm", NOT_NEGATIVE
    ] = 0

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


@dataclasses.dataclass(frozen=True)
class Shared(Common):
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


# How `remotely-rl train ALGORITHM --help` groups the fields; the others are under Learning.
GROUPS: dict[str, tuple[str, ...]] = {
    "Start here": ("env", "actors", "minutes", "total_steps", "learning_rate", "seed"),
    "Environment": (
        "random_start", "image_size", "gray", "frame_stack", "sticky_actions",
        "life_loss_is_terminal", "reward_clip", "step_timeout_s", "max_crash_rate",
    ),
    "Sampling": (
        "arrivals", "envs_per_actor", "rollout_steps", "overlap", "batch_trajectories", "ahead",
        "max_staleness", "predictors", "adjust_s", "most_agents", "predict_requests",
        "predict_wait_ms", "explore_steps",
    ),
    "Learning": (),
    "Run": ("target", "log_interval_s", "checkpoint_interval_s", "play_epsilon"),
    "Machine": ("device", "precision", "compile", "learner_threads"),
}  # fmt: skip


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
