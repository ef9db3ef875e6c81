"""Common, the settings that all algorithms share, and functions of a Config."""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, TypeVar

import gymnasium
import torch
from torch import Tensor, nn

from remotely_rl import environments, networks, settings
from remotely_rl.config import fields, presets
from remotely_rl.config.hardware import Hardware, alternates, spread
from remotely_rl.environments import (
    Atari,
    Environments,
    Images,
    Source,
    Watch,
    Wrapper,
    additions,
    checks,
    elsewhere,
    is_atari,
)
from remotely_rl.environments.action_spaces import Actions, are_log_stds, described, policy_start
from remotely_rl.environments.elsewhere import Interpreter
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.networks import precision
from remotely_rl.settings import AUTO, COUNT, FRACTION, LENGTH, NOT_NEGATIVE, Auto, Length, Range
from remotely_rl.supervision import crashes, env_ranks, watchdog
from remotely_rl.trees import Tree

GRADIENTS, STORE = "gradients", "store"  # what learners share
STEERED_TO = 0.01  # nats; see target_kl_of
RESETS = ("at_once", "in_pause")
ENDS = ("total_steps", "minutes")  # the limits of a run, at which schedules end too
SAMPLING = ("auto", "local", "central", "alternating")
METRICS = ("none", "norms")
# How a learning rate scales with the batch size.  Stooke and Abbeel 2018 use the square root for
# A2C, and do not scale the rates of the DQN family up to batches of 2,048.
RATE_RULES: dict[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "sqrt": math.sqrt,
    "linear": lambda ratio: ratio,
}
ATARI_SIZE, ATARI_STACK = 42, 4  # default image_size and frame_stack of Atari games


T = TypeVar("T")


class Completed(type):
    """The class of Configs: a preset completes the fields that are given before one is made.

    A Config itself cannot tell a field that was given from one that has its default.
    """

    def __call__(cls: type[T], *args: Any, **given: Any) -> T:
        kind: Any = cls
        settings.check_names(kind, given)
        names = [field.name for field in dataclasses.fields(kind)]
        by_place = dict(zip(names, args, strict=False))
        made: T
        if len(args) > len(names) or by_place.keys() & given.keys():
            made = type.__call__(cls, *args, **given)  # raises TypeError
        else:
            made = type.__call__(cls, **presets.completed(kind, {**by_place, **given}))
        return made


@dataclasses.dataclass(frozen=True)
class Common(metaclass=Completed):
    """The fields that all algorithms have.  They are checked when a Config is made."""

    env: fields.Env = "ALE/Pong-v5"
    actors: fields.Actors = fields.AUTO_OF_2
    envs_per_actor: Annotated[int, "environments that each actor steps together", COUNT] = 16
    rollout_steps: fields.RolloutSteps = 64
    random_start: Annotated[
        int,
        "up to this many random steps in each environment when a run begins, so that they differ",
        NOT_NEGATIVE,
    ] = 0
    probe_steps: Annotated[
        int,
        "random steps in one environment before the run, to check it and initialize the"
        " observation statistics",
        Range(2),
    ] = checks.STEPS
    total_steps: Annotated[
        int,
        "stop after this many environment steps in all, at the end of their round; 0: no limit",
        NOT_NEGATIVE,
    ] = 0
    minutes: Annotated[float, "stop after this many minutes in all; 0: no limit", NOT_NEGATIVE] = (
        0.0
    )
    target: Annotated[float | None, "stop when the mean of the last 30 returns reaches this"] = None
    seed: Annotated[int, "seed of all random numbers", NOT_NEGATIVE] = 1
    preset: Annotated[
        str, "base settings: auto, those tuned for env; none; paper; or another environment's"
    ] = presets.NONE

    env_kwargs: Annotated[
        Mapping[str, Any], "argument of the environment, a Python literal or text; repeatable"
    ] = dataclasses.field(default_factory=dict)
    wrappers: Annotated[
        Sequence[Wrapper | str],
        "wrapper around each environment, module:NAME or FILE.py:NAME; repeatable, innermost first",
    ] = ()

    env_python: Annotated[
        str | None,
        "Python of the environments alone, an interpreter or a version such as 3.12; none: the"
        " actors'",
    ] = None
    env_packages: Annotated[
        Sequence[str], "package to install for the environments alone, as for pip; repeatable"
    ] = ()

    step_timeout_s: Annotated[
        float,
        "timeout of an environment's step or reset, at which it is replaced; 0: no limit",
        NOT_NEGATIVE,
    ] = watchdog.DEFAULT_S
    max_crash_rate: Annotated[
        float,
        "end the run if environments crash more often than this, per step; 1: never",
        NOT_NEGATIVE,
    ] = crashes.MAX_RATE

    reward_clip: Annotated[
        float | None,
        "clip rewards in the learner to +-this; 0: off; none: 1 in Atari games, else off",
        NOT_NEGATIVE,
    ] = None

    anneal_steps: Annotated[
        float | None,
        "steps, or fraction of total_steps, over which coefficients change; none: the run's length,"
        " else {cls.horizon:,}",
        LENGTH,
    ] = None
    image_size: Annotated[
        int | None,
        "scale images to this height and width; none: 42 in Atari games, else off",
        Range(20),
    ] = None
    gray: Annotated[bool | None, "convert images to grayscale; none: in Atari games only"] = None
    frame_stack: Annotated[
        int | None, "number of stacked frames; none: 4 in Atari games, else 1", COUNT
    ] = None
    sticky_actions: Annotated[
        float, "Atari: probability of repeating the previous action", FRACTION
    ] = 0.0
    life_loss_is_terminal: Annotated[bool, "Atari: a lost life ends the episode"] = False

    hidden: fields.Hidden = None
    activation: fields.Activation = None
    network: fields.Network = "auto"
    normalize_observations: fields.NormalizeObservations = True

    precision: Annotated[
        str, "precision of the networks: float32, bfloat16, or auto, the faster of them here"
    ] = "auto"
    compile: Annotated[
        bool, "compile the learner's network with torch.compile; on a GPU with CUDA graphs"
    ] = False
    evaluate_every: Annotated[
        int,
        "environment steps between evaluations, which run beside training; 0: none",
        NOT_NEGATIVE,
    ] = 0
    evaluate_episodes: Annotated[int, "complete episodes of an evaluation", COUNT] = 10
    evaluate_greedy: Annotated[bool, "evaluations take the most likely action; no: they sample"] = (
        True
    )
    evaluate_env: fields.EvaluateEnv = None
    evaluate_env_kwargs: Annotated[
        Mapping[str, Any],
        "argument of the environment of evaluations, besides env_kwargs if it is env; repeatable",
    ] = dataclasses.field(default_factory=dict)
    best_by: Annotated[
        str | None,
        "metric that is highest in best.pt, or lowest with a minus before it; none: the"
        " mean return",
    ] = None
    log_interval_s: Annotated[float, "seconds between rows of metrics", NOT_NEGATIVE] = 5.0
    metrics: Annotated[
        str, "metrics beside the usual: none, or norms of gradients and updates, by layer"
    ] = METRICS[0]
    checkpoint_interval_s: Annotated[float, "seconds between checkpoints", NOT_NEGATIVE] = 120.0

    horizon: ClassVar[int] = 1_000_000  # see anneal_steps
    rate_end: ClassVar[float] = 1e-4  # see learning_rate_end
    values_in_rewards: ClassVar[bool] = False  # see learner.RewardScale

    # The algorithm as published: fields whose values differ from the defaults.
    paper: ClassVar[Mapping[str, Any]] = {}

    # Fields that other algorithms have and this one does not, with the reason.
    lacks: ClassVar[Mapping[str, str]] = {}

    # Fields that have no effect on a model of your own.
    of_networks: ClassVar[tuple[str, ...]] = (
        "hidden",
        "activation",
        "network",
        "normalize_observations",
        "log_std_start",
        "free_log_std",
    )

    # Fields that have an effect on a model of your own if it is recurrent, without `lstm`.
    of_memory: ClassVar[tuple[str, ...]] = ()

    # The rank of the first environment that `make_environments` makes; set by `ranked`.
    first_rank: ClassVar[int] = 0

    # The hardware of the run, and the fields that were chosen for it as they were asked for; set by
    # `fitted`.
    hardware: ClassVar[Hardware | None] = None
    asked: ClassVar[Mapping[str, Any]] = {}

    # Fields given when a run is resumed; set by `training.config_of`.
    overridden: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "env_kwargs", additions.checked_arguments(self.env_kwargs))
        arguments = additions.checked_arguments(self.evaluate_env_kwargs, "evaluate_env_kwargs")
        object.__setattr__(self, "evaluate_env_kwargs", arguments)
        settings.check(self)
        precision.check(self.precision)
        object.__setattr__(self, "wrappers", additions.checked_wrappers(self.wrappers))
        packages = elsewhere.checked_packages(self.env_packages)
        object.__setattr__(self, "env_packages", packages)
        units = networks.hidden_of(self.hidden)
        if units is not None:
            object.__setattr__(self, "hidden", ",".join(map(str, units)))
        _ = self.architecture  # raises for an unknown network or activation
        check_sampling(self)
        check_share(self)
        if self.metrics not in METRICS:
            hint = nearest(self.metrics, METRICS)
            raise TrainingError(
                f"metrics must be {' or '.join(METRICS)}, not {self.metrics!r}{hint}"
            )
        rate_factor(self)
        self._check_lengths()

    def _check_lengths(self) -> None:
        for name, _, _, bounds, _ in settings.settings(type(self)):
            length = getattr(self, name)
            if isinstance(bounds, Length) and length and length < 1 and not self.total_steps:
                raise TrainingError(
                    f"{name}={length:g} is a fraction of total_steps, which is 0: give total_steps,"
                    f" or {name} as a number of steps"
                )

    def make_model(
        self, source: networks.ModelSource | None, spec: Tree, actions: Actions
    ) -> nn.Module:
        """Make the network to train: from `source`, or the default one for the observations.

        Raises TrainingError if it does not fit, as `networks.build` does.
        """

        def adapt(head: nn.Linear) -> nn.Module:
            log_std = getattr(self, "log_std_start", INITIAL_LOG_STD)
            networks.start_policy(head, policy_start(actions, log_std))
            is_free = getattr(self, "free_log_std", False)
            return networks.FreeOutputs(head, are_log_stds(actions)) if is_free else head

        return networks.build(
            source, spec, actions.outputs, self.architecture, described(actions), adapt
        )

    @property
    def outputs_are(self) -> str:
        """The meaning of the model's outputs, in words.

        A run continues, or begins with, only a model whose outputs mean the same.
        """
        return "a policy"

    def best(self, actions: Actions, policy: Tensor) -> Tensor:
        """Return the greedy action of a trained agent: the most likely one."""
        return actions.mode(policy)

    def draw(self, actions: Actions, policy: Tensor, generator: torch.Generator) -> Tensor:
        """Sample an action of a trained agent that is not greedy."""
        return actions.sample(policy, generator)

    def check_run(self) -> None:
        """Raise TrainingError for settings that are too slow to check in every copy of a Config.

        It is called once per run, before the run folder is created.
        """
        _ = self.plan  # raises for environments whose resets cannot wait
        if self.evaluate_every:
            ours = self.of_evaluations()
            environments.check_is_known(ours.env, ours.env_kwargs, ours.interpreter)
        if (self.best_by or "").lstrip("-").startswith("evaluation/") and not self.evaluate_every:
            raise TrainingError(f"best_by={self.best_by} needs evaluations: set evaluate_every")

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        """Raise TrainingError for a network or actions that the algorithm cannot train.

        It is called once per run, before the run folder is created.
        """

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with these settings, with the reason."""
        why: dict[str, str] = {}
        if not self.evaluate_every:
            of_evaluations = (
                "evaluate_episodes",
                "evaluate_greedy",
                "evaluate_env",
                "evaluate_env_kwargs",
            )
            why |= dict.fromkeys(of_evaluations, "evaluate_every is 0")
        if not is_atari(self.env):
            of_atari = ("sticky_actions", "life_loss_is_terminal")
            why |= dict.fromkeys(of_atari, "env is not an Atari game")
        return why

    @classmethod
    def form_of_paper(cls, env: Source) -> dict[str, Any]:
        """Return the settings of `paper`, with `image_size` for Atari games only."""
        return {
            name: value
            for name, value in cls.paper.items()
            if name != "image_size" or is_atari(env)
        }

    def resolved(self, name: str) -> Any:
        """Return the value of a field, computed if it depends on other fields."""
        return target_kl_of(self) if name == "target_kl" else getattr(self, name)

    def remarks(self, is_own_model: bool = False, actions: Actions | None = None) -> list[str]:
        """Return remarks on the settings that a run with these actions prints when it starts.

        They are about the preset, settings without effect, and differences from the paper.
        """
        unused = self.unused()
        if is_own_model:
            unused |= dict.fromkeys(self.of_networks, "the model is your own")
            unused = {name: why for name, why in unused.items() if name not in self.of_memory}
        if actions is not None and not are_log_stds(actions).any():
            unused |= dict.fromkeys(("log_std_start", "free_log_std"), "the actions are discrete")
        defaults = {setting.name: setting.default for setting in settings.settings(type(self))}
        remarks = presets.remarks(self)
        if "actors" in self.asked or (self.asked and sampling_of(self) != "local"):
            chosen = " ".join(settings.option(name, getattr(self, name)) for name in self.asked)
            remarks.append(f"for {self.hardware}: {chosen}")
        if self.overridden & set(ENDS):
            ends = [settings.option(name, at) for name in ENDS if (at := getattr(self, name))]
            remarks.append(f"schedules end at {' or '.join(ends)}, counted from the run's start")
        remarks += [
            f"{name}={getattr(self, name)} has no effect: {why}"
            for name, why in unused.items()
            if name in defaults and getattr(self, name) != defaults[name]
        ]
        differences = [
            settings.option(name, value)
            for name, value in self.form_of_paper(self.env).items()
            if self.resolved(name) != value
        ]
        if differences:
            remarks.append(f"differs from the paper, which has {' '.join(differences)}")
        return remarks

    # Values derived from the fields.

    @property
    def processes(self) -> int:
        """The maximum number of actors of all kinds; 0: as many as the cluster has room for."""
        return (self.actors + 1) * learners_of(self) - 1

    @property
    def rows_per_actor(self) -> int:
        """The number of rows of an actor: one per environment, or per agent of each."""
        return self.envs_per_actor * self.agents_per_env

    @property
    def agents_per_env(self) -> int:
        """The number of agents in each environment; more than one with MultiAgent."""
        return environments.agents_of(self.env)

    def __getstate__(self) -> dict[str, Any]:
        """Add the environment's spec, which may be registered in this process only."""
        spec = gymnasium.registry.get(self.env) if isinstance(self.env, str) else None
        return {**self.__dict__, "spec": spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Register the environment's id in this process."""
        state = dict(state)
        if (spec := state.pop("spec")) is not None:
            gymnasium.registry.setdefault(spec.id, spec)
        self.__dict__.update(state)

    def ranked(self, first: int) -> Self:
        """Return a copy whose environments have ranks from `first` on (env_ranks.py)."""
        ranked = copy.copy(self)
        object.__setattr__(ranked, "first_rank", first)
        return ranked

    def of_actor(self, index: int, is_replacement: bool = False) -> Self:
        """Return a copy for the actor with this index, whose environments have its ranks.

        A replacement has no random start: other actors are elsewhere in their episodes, and
        environments that often end their process would end it before it has sampled.
        """
        own = self.ranked(self.first_rank + index * self.envs_per_actor)
        if is_replacement:
            object.__setattr__(own, "random_start", 0)
        return own

    def fitted(self, hardware: Hardware) -> Self:
        """Return a copy with the numbers that fit this hardware, for what is "auto".

        It has as many environments in all, and `asked` says what was asked for.
        """
        fitted, chosen = copy.copy(self), dict[str, Any]()
        sampling = getattr(self, "sampling", "local")
        # Of actors that dial in, it is the number that the run waits for.
        if isinstance(self.actors, Auto) and not getattr(self, "arrivals", False):
            environments = self.actors * self.envs_per_actor
            chosen["actors"] = spread(environments, hardware, sampling == "alternating")
            chosen["envs_per_actor"] = environments // chosen["actors"]
        if sampling == AUTO:
            mode, actors = sampling_of(self), chosen.get("actors", self.actors)
            is_faster = mode == "central" and alternates(actors, hardware)
            chosen["sampling"] = "alternating" if is_faster else mode
        asked = {name: getattr(self, name) for name in chosen}
        asked = {n: AUTO if isinstance(value, Auto) else value for n, value in asked.items()}
        for name, value in {
            **chosen,
            "hardware": hardware,
            "asked": {**asked, **self.asked},
        }.items():
            object.__setattr__(fitted, name, value)
        return fitted

    def of_evaluations(self) -> Self:
        """Return a copy that makes the environments of evaluations, with their ranks.

        Another environment gets none of the arguments of `env`.
        """
        kept = self.env_kwargs if self.evaluate_env is None else {}
        ours = dataclasses.replace(
            self,
            env=self.env if self.evaluate_env is None else self.evaluate_env,
            env_kwargs={**kept, **self.evaluate_env_kwargs},
        )
        return ours.ranked(env_ranks.EVALUATION)

    def make_environments(
        self, count: int, watch: Watch | None = None, waits: bool = False
    ) -> Environments:
        """Make `count` environments; for `waits`, see `environments.plan`."""
        return environments.make(
            self.env,
            count,
            self.atari,
            self.images,
            watch,
            waits,
            self.env_kwargs,
            self._wrappers,
            self.first_rank,
            self.interpreter,
        )

    @property
    def plan(self) -> environments.Plan:
        """The plan for the environments of an actor."""
        return self.plan_of(threads=1)

    def plan_of(self, threads: int) -> environments.Plan:
        """Return the plan, with this many threads to step ale-py's native games."""
        atari = dataclasses.replace(self.atari, threads=threads)
        return environments.plan(
            self.env,
            atari,
            self.images,
            resets_in_pause(self),
            self.env_kwargs,
            self._wrappers,
            self.interpreter,
        )

    @property
    def interpreter(self) -> Interpreter:
        """The Python of the environments."""
        return Interpreter(self.env_python, tuple(self.env_packages))

    @property
    def _wrappers(self) -> tuple[Wrapper, ...]:
        return self.wrappers  # type: ignore[return-value]  # __post_init__ has resolved strings

    @property
    def atari(self) -> Atari:
        """The preprocessing of Atari games."""
        return Atari(
            image_size=self.image_size or ATARI_SIZE,
            gray=True if self.gray is None else self.gray,
            frame_stack=self.frame_stack or ATARI_STACK,
            sticky_actions=self.sticky_actions,
            life_loss_is_terminal=self.life_loss_is_terminal,
        )

    @property
    def images(self) -> Images:
        """The preprocessing of images of all other environments."""
        return Images(self.image_size, bool(self.gray), self.frame_stack or 1)

    @property
    def architecture(self) -> networks.Architecture:
        """The architecture of the network.  Raises TrainingError for an unknown choice."""
        return networks.Architecture(
            hidden=networks.hidden_of(self.hidden),
            activation=self.activation,
            network=self.network,
            lstm=getattr(self, "lstm", 0),
            normalizes=self.normalize_observations,
        )

    @property
    def clips_rewards_at(self) -> float:
        """The bound at which the learner clips rewards; 0: none."""
        if self.reward_clip is None:
            return float(is_atari(self.env))
        return self.reward_clip

    def steps_of(self, length: float) -> float:
        """Return the length of a schedule in environment steps."""
        return length if length >= 1 else length * self.total_steps

    def progress(self, env_steps: int, seconds: float = 0.0) -> float:
        """Return the progress of the schedule, from 0 to 1, at this point of the run."""
        if self.anneal_steps is not None:
            return min(1.0, env_steps / self.steps_of(self.anneal_steps))
        done = [env_steps / self.total_steps] if self.total_steps else []
        done += [seconds / (60 * self.minutes)] if self.minutes else []
        return min(1.0, max(done, default=env_steps / self.horizon))


def learners_of(config: Any) -> int:
    """Return the number of learners; 1 if the Config has no such field."""
    count: int = getattr(config, "learners", 1)
    return count


def joint_learners_of(config: Any) -> int:
    """Return how many learners' batches make one update: all, or 1 if they share a store."""
    return 1 if shares_store(config) else learners_of(config)


def shares_store(config: Any) -> bool:
    """Return whether each learner steps the parameters in a shared store independently."""
    share: str = getattr(config, "learners_share", GRADIENTS)
    return share == STORE


def measures_norms(config: Any) -> bool:
    """Return whether a run has the norms of gradients and updates as metrics."""
    asked: str = config.metrics
    return asked == METRICS[1]


def check_share(config: Any) -> None:
    """Raise TrainingError for an unknown `learners_share`."""
    share = getattr(config, "learners_share", GRADIENTS)
    if share not in (GRADIENTS, STORE):
        raise TrainingError(
            f"learners_share must be {GRADIENTS} or {STORE}, not {share!r}"
            f"{nearest(share, (GRADIENTS, STORE))}"
        )


def target_kl_of(config: Any) -> float:
    """Return the KL divergence to which the learning rate is steered; 0: it is not."""
    given: float | None = getattr(config, "target_kl", 0.0)
    if given is None:  # a given learning rate is not steered
        return STEERED_TO if config.learning_rate is None else 0.0
    return given


def resets_in_pause(config: Any) -> bool:
    """Return whether environments reset only in the pause of the next update."""
    return getattr(config, "resets", RESETS[0]) == RESETS[1]


def check_sampling(config: Any) -> None:
    """Raise TrainingError for unknown `sampling` or `resets`, or sampling that does not fit."""
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
            f"actors that dial in compute their own actions: {given} sampling excludes arrivals"
        )
    if not config.actors:
        raise TrainingError(f"{given} sampling needs a number of actors, not 0")
    batch = getattr(config, "batch_trajectories", config.actors)
    if getattr(config, "max_staleness", None) is not None and batch % config.actors:
        raise TrainingError(
            f"{given} sampling returns the trajectories of all {config.actors} actors at once:"
            f" with max_staleness, batch_trajectories must be a multiple of that, not {batch}"
        )
    if given == "alternating" and config.actors % 2:
        raise TrainingError(
            f"alternating sampling needs an even number of actors, not {config.actors}"
        )


def sampling_of(config: Any) -> str:
    """Return where actions are computed: local, central or alternating."""
    given: str = getattr(config, "sampling", "local")
    if given != "auto":
        return given
    can = config.actors and not getattr(config, "arrivals", False)
    can = can and not environments.makes_vector(config.env)  # it may have another autoreset mode
    can = can and getattr(config, "max_staleness", None) is None
    return "central" if can and device_of(config).type == "cuda" else "local"


def rate_factor(config: Any) -> float:
    """Return the factor of the learning rates: `rate_rule` applied to `rate_ratio`.

    The batches of learners that average their gradients count as one.  Without a rule the factor is
    1.  Raises TrainingError for an unknown rule.
    """
    rule: str = getattr(config, "rate_rule", "none")
    if rule not in RATE_RULES:
        raise TrainingError(
            f"rate_rule must be {', '.join(RATE_RULES)}, not {rule!r}{nearest(rule, RATE_RULES)}"
        )
    return RATE_RULES[rule](getattr(config, "rate_ratio", 1.0) * joint_learners_of(config))


def device_of(config: Common) -> torch.device:
    """Return the learner's device; the CPU if the Config has no such field.

    Raises TrainingError if this machine does not have it.
    """
    return device_named(getattr(config, "device", "cpu"))


def device_named(name: str) -> torch.device:
    """Return the device of that name.  Raises TrainingError if this machine does not have it."""
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
