"""The settings that all algorithms have, and how they travel with an environment's spec."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn

from remotely_rl import environments, networks, settings
from remotely_rl.config import fields, presets
from remotely_rl.environments import (
    Atari,
    Environments,
    Images,
    Source,
    Watch,
    Wrapper,
    additions,
    checks,
    is_atari,
)
from remotely_rl.environments.action_spaces import Actions, described, policy_start
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.networks import precision
from remotely_rl.settings import COUNT, FRACTION, LENGTH, NOT_NEGATIVE, Length, Range
from remotely_rl.supervision import crashes, watchdog
from remotely_rl.trees import Tree

GRADIENTS, STORE = "gradients", "store"  # what learners share
STEERED_TO = 0.01  # nats; see target_kl_of
RESETS = ("at_once", "in_pause")
ENDS = ("total_steps", "minutes")  # of a run, and so of its schedules
SAMPLING = ("auto", "local", "central", "alternating")
# How a learning rate follows the size of a batch.  Stooke and Abbeel 2018 have the square root for
# A2C, and leave the rates of the DQN family alone up to batches of 2,048.
RATE_RULES: dict[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "sqrt": math.sqrt,
    "linear": lambda ratio: ratio,
}
ATARI_SIZE, ATARI_STACK = 42, 4  # of images in Atari games, unless others are asked for


@dataclasses.dataclass(frozen=True)
class Common:
    """The fields that all algorithms have.  Every field of a Config that exists is in bounds."""

    env: fields.Env = "ALE/Pong-v5"
    actors: Annotated[int, "processes that sample", COUNT] = 2
    envs_per_actor: Annotated[int, "environments that each actor steps together", COUNT] = 16
    rollout_steps: fields.RolloutSteps = 64
    random_start: Annotated[
        int, "first play up to this many random steps, so that environments differ", NOT_NEGATIVE
    ] = 0
    probe_steps: Annotated[
        int, "random steps in one environment before the run, which check it and begin the"
             " statistics of its observations", Range(2)
    ] = checks.STEPS  # fmt: skip
    total_steps: Annotated[
        int, "stop after this many environment steps in all; 0: no limit", NOT_NEGATIVE
    ] = 0
    minutes: Annotated[float, "stop after this many minutes in all; 0: no limit", NOT_NEGATIVE] = (
        0.0
    )
    target: Annotated[float | None, "stop when the mean of the last 30 returns reaches this"] = None
    seed: Annotated[int, "seed of all random numbers", NOT_NEGATIVE] = 1
    preset: Annotated[
        str, "settings to begin with: auto, those that learn the env; none; paper; or those of"
             " another env"
    ] = presets.NONE  # fmt: skip

    env_kwargs: Annotated[
        Mapping[str, Any], "argument of the environment, a Python literal or text; may be repeated"
    ] = dataclasses.field(default_factory=dict)
    wrappers: Annotated[
        Sequence[Wrapper | str], "wrapper around each environment, module:NAME or FILE.py:NAME; may"
                                 " be repeated, innermost first"
    ] = ()  # fmt: skip

    step_timeout_s: Annotated[
        float, "an environment that takes longer for a step or a reset hangs, and is replaced; 0:"
               " no limit", NOT_NEGATIVE
    ] = watchdog.DEFAULT_S  # fmt: skip
    max_crash_rate: Annotated[
        float, "end the run if environments crash more often than this, per step; 1: never",
        NOT_NEGATIVE,
    ] = crashes.MAX_RATE  # fmt: skip

    reward_clip: Annotated[
        float | None, "clip rewards in the learner to this; 0: never; none: to 1 in Atari games",
        NOT_NEGATIVE,
    ] = None  # fmt: skip

    anneal_steps: Annotated[
        float | None,
        "steps, or fraction of total_steps, over which coefficients change; none: the run's length,"
        " else {cls.horizon:,}",
        LENGTH,
    ] = None
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

    hidden: fields.Hidden = None
    activation: fields.Activation = None
    network: fields.Network = "auto"
    normalize_observations: fields.NormalizeObservations = True

    precision: Annotated[
        str, "what networks compute in: float32, bfloat16, or auto, the faster of them here"
    ] = "auto"
    compile: Annotated[
        bool, "compile the learner's network with torch.compile; on a GPU with CUDA graphs"
    ] = False
    evaluate_every: Annotated[
        int, "environment steps between evaluations, which play beside training; 0: none",
        NOT_NEGATIVE,
    ] = 0  # fmt: skip
    evaluate_episodes: Annotated[int, "whole episodes of an evaluation", COUNT] = 10
    evaluate_greedy: Annotated[
        bool, "an evaluation takes the most likely actions, and does not draw them"
    ] = True
    log_interval_s: Annotated[float, "seconds between rows of metrics", NOT_NEGATIVE] = 5.0
    checkpoint_interval_s: Annotated[float, "seconds between checkpoints", NOT_NEGATIVE] = 120.0

    horizon: ClassVar[int] = 1_000_000  # see anneal_steps
    rate_end: ClassVar[float] = 1e-4  # see learning_rate_end
    values_in_rewards: ClassVar[bool] = False  # see learner.RewardScale

    # In which fields the form that the algorithm has in its paper differs from the defaults.
    paper: ClassVar[Mapping[str, Any]] = {}

    # Why the algorithm does not have fields that others have, by their names.
    lacks: ClassVar[Mapping[str, str]] = {}

    # Which fields do nothing if the model is the user's own.
    of_networks: ClassVar[tuple[str, ...]] = (
        "hidden", "activation", "network", "normalize_observations", "log_std_start",
    )  # fmt: skip

    # Names of the fields that were changed to resume a run; set by `training.config_of`.
    overridden: ClassVar[frozenset[str]] = frozenset()

    def __new__(cls, *args: Any, **given: Any) -> "Common":
        settings.check_names(cls, given)
        made = super().__new__(cls)
        if args or given:
            names = [field.name for field in dataclasses.fields(cls)]
            made.__dict__["given"] = {*names[: len(args)], *given}  # until __post_init__
        return made

    def __post_init__(self) -> None:
        presets.begin(self, self.__dict__.pop("given", ()))
        settings.check(self)
        precision.check(self.precision)
        object.__setattr__(self, "env_kwargs", additions.checked_arguments(self.env_kwargs))
        object.__setattr__(self, "wrappers", additions.checked_wrappers(self.wrappers))
        units = networks.hidden_of(self.hidden)
        if units is not None:
            object.__setattr__(self, "hidden", ",".join(map(str, units)))
        _ = self.architecture  # raises for a network or an activation that does not exist
        check_sampling(self)
        check_share(self)
        rate_factor(self)
        self._check_lengths()

    def _check_lengths(self) -> None:
        for name, _, _, bounds, _ in settings.settings(type(self)):
            length = getattr(self, name)
            if isinstance(bounds, Length) and length and length < 1 and not self.total_steps:
                raise TrainingError(
                    f"{name}={length:g} is a fraction of total_steps, which is 0: give it, or a"
                    f" number of steps as {name}"
                )

    def make_model(
        self, source: networks.ModelSource | None, spec: Tree, actions: Actions
    ) -> nn.Module:
        """Make the network to train: the one that fits the observations, or a `source` of yours.

        Raises TrainingError if there is none that fits, as `networks.build` does.
        """
        start = None
        if source is None:
            start = policy_start(actions, getattr(self, "log_std_start", INITIAL_LOG_STD))
        return networks.build(
            source, spec, actions.outputs, self.architecture, described(actions), start
        )

    def best(self, actions: Actions, policy: Tensor) -> Tensor:
        """The action that a trained agent takes when it is greedy: the most likely one."""
        return actions.mode(policy)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """How a trained agent draws an action when it is not greedy."""
        return actions.sample(policy, generator)

    def check_run(self) -> None:
        """Raises TrainingError for what takes too long to check in every copy of a Config.

        It is called once, where a run begins, before its folder is made.
        """
        _ = self.plan  # raises for environments that cannot wait

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        """Raises TrainingError for a network or actions that the algorithm cannot train.

        Like `check_run` it is called before the folder of a run is made.
        """

    def unused(self) -> dict[str, str]:
        """Why fields do nothing, as the others are, by their names."""
        why: dict[str, str] = {}
        if not self.evaluate_every:
            of_evaluations = ("evaluate_episodes", "evaluate_greedy")
            why |= dict.fromkeys(of_evaluations, "evaluate_every is 0")
        if not is_atari(self.env):
            of_atari = ("sticky_actions", "life_loss_is_terminal")
            why |= dict.fromkeys(of_atari, "it is of Atari games")
        return why

    @classmethod
    def form_of_paper(cls, env: Source) -> dict[str, Any]:
        """The settings of `paper`; the size of images is of Atari games alone."""
        return {
            name: value
            for name, value in cls.paper.items()
            if name != "image_size" or is_atari(env)
        }

    def comes_to(self, name: str) -> Any:
        """What a field is, also where others decide."""
        return target_kl_of(self) if name == "target_kl" else getattr(self, name)

    def remarks(self, is_own_model: bool = False) -> list[str]:
        """What a run says of its settings: its preset, those that do nothing, what the paper's form
        has."""
        unused = self.unused()
        if is_own_model:
            unused |= dict.fromkeys(self.of_networks, "the model is your own")
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        said = presets.remarks(self)
        if self.overridden & set(ENDS):
            ends = [settings.option(name, at) for name in ENDS if (at := getattr(self, name))]
            said.append(f"schedules end at {' or '.join(ends)}, counted from the run's start")
        said += [
            f"{name}={getattr(self, name)} does nothing: {why}"
            for name, why in unused.items()
            if name in usual and getattr(self, name) != usual[name]
        ]
        differs = [
            settings.option(name, value)
            for name, value in self.form_of_paper(self.env).items()
            if self.comes_to(name) != value
        ]
        if differs:
            said.append(f"not the form of its paper, which has {' '.join(differs)}")
        return said

    # What follows from the fields.

    @property
    def processes(self) -> int:
        """How many actors a run has at most, of all kinds; 0: as many as there is room for."""
        return (self.actors + 1) * learners_of(self) - 1

    @property
    def rows_per_actor(self) -> int:
        """How many rows the environments of an actor have: one each, or one for each agent."""
        return self.envs_per_actor * self.agents_per_env

    @property
    def agents_per_env(self) -> int:
        """How many agents play in each environment; more than one in those of MultiAgent."""
        return environments.agents_of(self.env)

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

    def make_environments(
        self, count: int, watch: Watch | None = None, waits: bool = False
    ) -> Environments:
        """Make `count` environments as these settings say; see `environments.plan` on `waits`."""
        return environments.make(
            self.env, count, self.atari, self.images, watch, waits, self.env_kwargs, self._wrappers
        )

    @property
    def plan(self) -> environments.Plan:
        """How to make the environments of an actor."""
        return self.plan_of(threads=1)

    def plan_of(self, threads: int) -> environments.Plan:
        """The same, with so many threads to step games that are native."""
        atari = dataclasses.replace(self.atari, threads=threads)
        return environments.plan(
            self.env, atari, self.images, waits_of(self), self.env_kwargs, self._wrappers
        )

    @property
    def _wrappers(self) -> tuple[Wrapper, ...]:
        return self.wrappers  # type: ignore[return-value]  # none is a word once it is checked

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
    def architecture(self) -> networks.Architecture:
        """What the network is made of.  Raises TrainingError for what does not exist."""
        return networks.Architecture(
            hidden=networks.hidden_of(self.hidden),
            activation=self.activation,
            network=self.network,
            lstm=getattr(self, "lstm", 0),  # where a memory can be trained
            normalizes=self.normalize_observations,
        )

    @property
    def clips_rewards_at(self) -> float:
        """What rewards are clipped at in the learner, or 0."""
        if self.reward_clip is None:
            return float(is_atari(self.env))
        return self.reward_clip

    def steps_of(self, length: float) -> float:
        """How many environment steps the length of a schedule is."""
        return length if length >= 1 else length * self.total_steps

    def progress(self, env_steps: int, seconds: float = 0.0) -> float:
        """How much of the schedule is over, from 0 to 1, so far into the run."""
        if self.anneal_steps is not None:
            return min(1.0, env_steps / self.steps_of(self.anneal_steps))
        over = [env_steps / self.total_steps] if self.total_steps else []
        over += [seconds / (60 * self.minutes)] if self.minutes else []
        return min(1.0, max(over, default=env_steps / self.horizon))


def learners_of(config: Any) -> int:
    """How many learners a config's run has: one, where its Config has no field for it."""
    count: int = getattr(config, "learners", 1)
    return count


def joint_learners_of(config: Any) -> int:
    """How many learners' batches make an update: all, or one if they share a store."""
    return 1 if shares_store(config) else learners_of(config)


def shares_store(config: Any) -> bool:
    """Whether a config's learners step the parameters in a store, each by itself."""
    share: str = getattr(config, "learners_share", GRADIENTS)
    return share == STORE


def check_share(config: Any) -> None:
    """Raises TrainingError for a kind of sharing that there is not."""
    share = getattr(config, "learners_share", GRADIENTS)
    if share not in (GRADIENTS, STORE):
        raise TrainingError(
            f"learners_share must be {GRADIENTS} or {STORE}, not {share!r}"
            f"{nearest(share, (GRADIENTS, STORE))}"
        )


def target_kl_of(config: Any) -> float:
    """The KL divergence that a config's learning rate is steered to; 0: none."""
    given: float | None = getattr(config, "target_kl", 0.0)
    if given is None:  # a rate that is given holds
        return STEERED_TO if config.learning_rate is None else 0.0
    return given


def waits_of(config: Any) -> bool:
    """Whether environments whose episode is over wait for the pause of the next update."""
    return getattr(config, "resets", RESETS[0]) == RESETS[1]


def check_sampling(config: Any) -> None:
    """Raise TrainingError for a way of sampling that there is not, or not with these actors."""
    given = getattr(config, "sampling", "local")
    if given not in SAMPLING:
        raise TrainingError(
            f"sampling must be {', '.join(SAMPLING)}, not {given!r}{nearest(given, SAMPLING)}"
        )
    resets = getattr(config, "resets", RESETS[0])
    if resets not in RESETS:
        raise TrainingError(
            f"resets must be {' or '.join(RESETS)}, not {resets!r}{nearest(resets, RESETS)}"
        )
    if given not in ("central", "alternating"):
        return
    if getattr(config, "arrivals", False):
        raise TrainingError(
            f"actors that dial in compute their own actions: {given} sampling is without arrivals"
        )
    if not config.actors:
        raise TrainingError(f"{given} sampling needs a number of actors, not 0 for as many as fit")
    batch = getattr(config, "batch_trajectories", config.actors)
    if getattr(config, "max_staleness", None) is not None and batch % config.actors:
        raise TrainingError(
            f"{given} sampling returns the trajectories of all {config.actors} actors at once:"
            f" with max_staleness, batch_trajectories must be a multiple of that, not {batch}"
        )
    if given == "alternating" and config.actors % 2:
        raise TrainingError(
            f"alternating sampling has two halves of the actors: {config.actors} is odd"
        )


def sampling_of(config: Any) -> str:
    """Where the actions of a config's actors are computed: local, central or alternating."""
    given: str = getattr(config, "sampling", "local")
    if given != "auto":
        return given
    can = config.actors and not getattr(config, "arrivals", False)
    can = can and not environments.makes_vector(config.env)  # which may reset in another way
    can = can and getattr(config, "max_staleness", None) is None
    return "central" if can and device_of(config).type == "cuda" else "local"


def rate_factor(config: Any) -> float:
    """What a config's learning rates are multiplied by: its `rate_rule` of its `rate_ratio`.

    The batches of learners that average their gradients count as one.  It is 1 where a config has
    no rule.  Raises TrainingError for a rule that does not exist.
    """
    rule: str = getattr(config, "rate_rule", "none")
    if rule not in RATE_RULES:
        raise TrainingError(
            f"rate_rule must be {', '.join(RATE_RULES)}, not {rule!r}{nearest(rule, RATE_RULES)}"
        )
    return RATE_RULES[rule](getattr(config, "rate_ratio", 1.0) * joint_learners_of(config))


def device_of(config: Common) -> torch.device:
    """The device of a learner: the CPU, where its Config has no field for it.

    Raises TrainingError if this machine does not have it.
    """
    return device_named(getattr(config, "device", "cpu"))


def device_named(name: str) -> torch.device:
    """The device of that name.  Raises TrainingError if this machine does not have it."""
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
