"""The learner: a model, its optimizer, and the path from a trajectory to an optimizer step.

An algorithm's `update` makes a batch of a trajectory and takes a step for each minibatch:

    rollout = to_device(learner, trajectory)
    targets = returns.gae(rollout.reward, rollout.discount, rollout.value, ...)
    batch = make_batch(learner, rollout, targets)
    steps = []
    for _ in range(config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            policy, value, rows = learner.forward(minibatch)
            losses = compute_losses(policy, value, rows, ...)
            steps.append(learner.step(losses))
    return learner.end_update(steps, batch, config.epochs)

    LearningRate     annealed over the run, or steered by the KL divergence of updates
    ValueScale       running mean and deviation, by which value targets are normalized
    RewardClipper    reward clipping, and the fraction of rewards that it changes
    Learner          the model, its optimizer and its steps
    TargetLearner    a learner with a target network
    make_batch, ...  from a trajectory to a batch: clipped, normalized, on the device

A learner with `others` is one of several that learn together (`all_reduce.py`): it averages
gradients and statistics over the batches of all of them.

The same code runs on a CPU and on a GPU.  Observations are copied to a GPU once, as bytes from
pinned memory.  Networks may compute in bfloat16 (`networks/precision.py`); losses and targets are
float32.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.acting.actor import AS_MADE, EnvAttributes, Parameters
from remotely_rl.config import Common, device_of, measures_norms, rate_factor, target_kl_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.batch import Batch, DeviceTrajectory, RecurrentInput, Transitions, full
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.functions.returns import Targets
from remotely_rl.learning.all_reduce import AllReduce, Moments
from remotely_rl.learning.norms import Norms
from remotely_rl.learning.store import Statistics
from remotely_rl.networks import precision
from remotely_rl.trees import Tree

C = TypeVar("C", bound=Common)

# The metrics of the fields of `Losses`, in order.
METRICS = (
    "total",
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
    "train/approx_kl",
    "train/clip_fraction",
)

# A steered learning rate starts here by default and changes by FACTOR per update, from BELOW times
# the end rate to ABOVE times the start rate.
STEERED_FROM, FACTOR, ABOVE, BELOW = 1e-3, 1.5, 4.0, 0.1

COMPARE_EVERY = 100  # updates between comparisons of the parameters of several learners

HORIZON = 100_000  # samples after which older ones fade from a ValueScale


RATES = {"learning_rate", "learning_rate_end"}  # the fields that make the LearningRate

ABSENT: Any = None  # a part of Losses that the algorithm does not have


class Losses(NamedTuple):
    """The losses of a minibatch, and the policy's distance from the one before the update.

    Parts that an algorithm does not have are ABSENT.
    """

    total: Tensor  # the minimized sum
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor | None = None  # fraction of ratios beyond the clip


class LearnerStep(NamedTuple):
    """A completed optimizer step: its losses, detached, and the norm of its gradient."""

    losses: Losses
    grad_norm: Tensor


class LearningRate:
    """The learning rate of the next optimizer step, `value`.

    It is annealed linearly over the schedule, or, with a `target_kl`, steered by each update's KL
    divergence: up if the update moved the policy little, down if it moved it far.  A steered rate
    needs no schedule.
    """

    def __init__(
        self,
        start: float,
        end: float | None = None,
        target_kl: float = 0.0,
        usual_end: float = Common.rate_end,
    ):
        """`end` defaults to the lower of `usual_end` and `start`."""
        self.start = self.value = start
        self.end = min(usual_end, start) if end is None else end
        self.target_kl = target_kl
        self._range = self.end * BELOW, start * ABOVE

    @classmethod
    def of(cls, config: Any) -> "LearningRate":
        """Return the rate of a config; it is constant without a `learning_rate_end` field."""
        start = STEERED_FROM if config.learning_rate is None else config.learning_rate
        end = getattr(config, "learning_rate_end", start)
        unscaled = cls(start, end, usual_end=config.rate_end)
        factor = rate_factor(config)
        return cls(unscaled.start * factor, unscaled.end * factor, target_kl_of(config))

    def __str__(self) -> str:
        if not self.target_kl:
            annealing = "" if self.end == self.start else f", annealed to {self.end:g}"
            return f"{self.start:g}{annealing}"
        low, high = self._range
        return f"{self.start:g}, steered by target_kl={self.target_kl:g}, from {low:g} to {high:g}"

    def anneal(self, progress: float) -> None:
        """Set the rate for this `progress` of the schedule, 0 to 1, unless it is steered."""
        if not self.target_kl:
            self.value = annealed(self.start, self.end, progress)

    def steer(self, kl: float) -> None:
        """Adapt a steered rate after an update that moved the policy by `kl` nats.

        The rate rises if that is less than half of `target_kl`, and falls if it is more than twice.
        It stays between `end` / 10 and 4 * `start`.
        """
        low, high = self._range
        if not self.target_kl:
            return
        if kl > 2 * self.target_kl:
            self.value = max(self.value / FACTOR, low)
        elif kl < self.target_kl / 2:
            self.value = min(self.value * FACTOR, high)


def annealed(start: float, end: float, progress: float) -> float:
    """Interpolate linearly from `start` to `end` as `progress` goes from 0 to 1."""
    if not 0 <= progress <= 1:  # perhaps steps: the rate would soon be negative
        raise ValueError(f"progress is from 0 to 1, not {progress:g}; see Config.progress")
    return start + progress * (end - start)


class ValueScale:
    """Running mean and standard deviation of value targets; older targets fade."""

    kind: ClassVar[str] = "targets"

    def __init__(self, mean: float = 0.0, variance: float = 1.0, count: float = 0.0):
        self.mean = mean
        self.variance = variance
        self.count = count

    @property
    def moments(self) -> tuple[float, float, float]:
        """The state: mean, variance and count."""
        return self.mean, self.variance, self.count

    @property
    def has_units(self) -> bool:
        """Whether the model's values have units yet; without, they count for nothing."""
        return self.count > 0 or self.variance > 0

    @property
    def std(self) -> float:
        # A smaller deviation is float32's rounding error.  Exactly 1 if nothing is normalized.
        return max(math.sqrt(self.variance), 1e-5 * abs(self.mean), 1e-12)

    def samples(self, targets: Tensor, reward: Tensor) -> Tensor:
        """Return the part of a batch that `update` counts, [N]."""
        return targets

    def update(self, new: Tensor, horizon: int = HORIZON, others: AllReduce | None = None) -> None:
        """Add new samples, and those of `others` (Chan et al.'s parallel update)."""
        rows, mean, variance = moments(new, others)
        if not rows:
            return
        total = self.count + rows
        delta = mean - self.mean
        self.variance = (
            self.variance * self.count + variance * rows + delta**2 * self.count * rows / total
        ) / total
        self.mean += delta * rows / total
        self.count = min(total, horizon)

    def normalize(self, value: Tensor) -> Tensor:
        """Convert values from units of rewards to those that the model learns."""
        return (value - self.mean) / self.std

    def denormalize(self, value: Tensor) -> Tensor:
        """Convert the model's values to units of rewards."""
        return value * self.std + self.mean


class RewardScale(ValueScale):
    """Scale of action values: the running root mean square of nonzero rewards.

    There is no mean: epsilon-greedy play depends only on the order of values, which a mean would
    not change.  Rewards, not returns, set the scale, because a target network predicts in the scale
    that it was copied with: returns grow as the agent learns, the size of rewards hardly changes.
    """

    kind: ClassVar[str] = "rewards"

    def __init__(self, variance: float = 1.0, count: float = 0.0):
        super().__init__(0.0, variance, count)

    @property
    def has_units(self) -> bool:
        return self.count > 0

    def samples(self, targets: Tensor, reward: Tensor) -> Tensor:
        return reward[reward != 0]

    def denormalize(self, value: Tensor) -> Tensor:
        """Convert the model's values to units of rewards: to 0 before there was any."""
        return value * (self.std if self.has_units else 0.0)

    def update(self, new: Tensor, horizon: int = HORIZON, others: AllReduce | None = None) -> None:
        rows, mean_square, _ = moments(new.double().square(), others)
        total = self.count + rows
        if total:
            self.variance = (self.variance * self.count + mean_square * rows) / total
        self.count = min(total, horizon)


def moments(numbers: Tensor, others: AllReduce | None = None) -> Moments:
    """Return the moments of numbers, or of the numbers of all learners together."""
    if others is not None:
        return others.moments(numbers)
    if not numbers.numel():
        return Moments(0, 0.0, 0.0)
    numbers = numbers.double()  # the squares of small ones underflow in float32
    mean, variance = torch.stack([numbers.mean(), numbers.var(correction=0)]).tolist()
    return Moments(numbers.numel(), mean, variance)


class ScaledConfig(Protocol):
    """What decides how values are scaled."""

    @property
    def values_in_rewards(self) -> bool: ...

    @property
    def clips_rewards_at(self) -> float: ...


def normalizes_values(config: ScaledConfig) -> bool:
    """Return whether value targets are normalized.

    Values of clipped rewards are small already.  Others may be in the hundreds or in the
    millionths, and would dominate the clipped gradient or vanish in it.
    """
    asked = None if config.values_in_rewards else getattr(config, "normalize_values", False)
    return not config.clips_rewards_at if asked is None else asked


def scale_of(config: ScaledConfig) -> ValueScale:
    """Return the initial scale of values, before any experience."""
    if not normalizes_values(config):
        return ValueScale()
    # Variance 0 makes values count for nothing until there are targets: in units of 1, the outputs
    # of a new network would drown rewards of 1e-6.  RewardScale does the same in `denormalize`.
    return RewardScale() if config.values_in_rewards else ValueScale(variance=0.0)


# A scale in a checkpoint, or on its way to another process: its `kind`, and its `mean`, `variance`
# and `count`.  Earlier checkpoints have a list of the numbers, without the mean for "rewards".
SavedScale = Mapping[str, Any]


def saved_scale(scale: ValueScale) -> dict[str, Any]:
    """Return the state of a scale, for `loaded_scale`."""
    mean, variance, count = scale.moments
    return {"kind": scale.kind, "mean": mean, "variance": variance, "count": count}


def loaded_scale(saved: SavedScale | Sequence[float], config: ScaledConfig) -> ValueScale:
    """Return the scale of a config that goes on with a saved model, in that model's units.

    The config may scale values in another way than the one with which the model was trained.  The
    model's outputs mean what they meant nevertheless: `denormalize` is the saved scale's.  Where
    the config normalizes values, its samples change the scale from then on, and elsewhere it stays
    as it is.  Raises TrainingError if the config's kind of scale cannot have these units.
    """
    if not isinstance(saved, Mapping):
        mean, variance, count = saved if len(saved) == 3 else (0.0, *saved)
        kind = ValueScale.kind if len(saved) == 3 else RewardScale.kind
        saved = {"kind": kind, "mean": mean, "variance": variance, "count": count}
    mean, variance, count = saved["mean"], saved["variance"], saved["count"]
    was_in_rewards = saved["kind"] == RewardScale.kind
    earlier = RewardScale(variance, count) if was_in_rewards else ValueScale(mean, variance, count)
    begins = scale_of(config)
    if not earlier.has_units:
        return begins
    if not isinstance(begins, RewardScale):
        return ValueScale(*earlier.moments)
    if earlier.mean:
        raise TrainingError(
            f"the saved model's values are deviations from a mean of {earlier.mean:g}, and this"
            " algorithm's are multiples of the size of rewards: begin without that model, or give"
            " reward_clip, with which the units stay as they are"
        )
    return RewardScale(variance, max(count, 1.0))  # none counted: as if of one reward of 1


def clipped_share(reward: NDArray[np.float32], bound: float) -> float:
    """Return the fraction of rewards [N] beyond the bound; 0 if the bound is 0."""
    if not bound or not len(reward):
        return 0.0
    return float((np.abs(reward) > bound).mean())


class RewardClipper:
    """Clips rewards to [-bound, bound] and measures the fraction clipped; 0 clips nothing."""

    def __init__(self, bound: float):
        self.bound = bound
        self._shares: list[float] = []  # per trajectory

    def clip(self, reward: Tensor, trajectory: Trajectory) -> Tensor:
        """Clip `reward`, the rewards of a trajectory on the learner's device."""
        if not self.bound:
            return reward
        self.count(trajectory)
        return reward.clamp(-self.bound, self.bound)

    def count(self, trajectory: Trajectory) -> None:
        """Count a trajectory whose rewards are clipped elsewhere."""
        if self.bound:
            self._shares.append(
                clipped_share(trajectory.rows.select(trajectory.reward), self.bound)
            )

    def pop_metrics(self) -> dict[str, float]:
        """Return the fraction of rewards clipped since the last call; empty without clipping."""
        shares, self._shares = self._shares, []
        return {"train/rewards_clipped": sum(shares) / len(shares)} if shares else {}


class Learner(Generic[C]):
    """See the module's docstring.  `version` counts updates."""

    env_attributes: EnvAttributes = AS_MADE  # set by actors in their environments
    adam_epsilon = 1e-5

    def __init__(self, config: C, model: nn.Module, actions: Actions):
        self.config = config
        self.actions = actions
        self.device = device_of(config)
        keep_freed_memory()
        self.model = model.to(self.device).train()
        # Collected once: for small networks that takes longer than an operation on them.
        self._weights = list(self.model.parameters())
        self.dtype = precision.of(config.precision, model, self.device)
        self.version = 0
        self.others: AllReduce | None = None  # the group, if several learners learn together
        self.statistics: Statistics | None = None  # the shared ones, if learners share a store
        self.learning_rate = LearningRate.of(config)
        self._max_grad_norm: float = getattr(config, "max_grad_norm", 0.0) or math.inf
        self.value_scale = scale_of(config)
        self.explained_variance: Tensor | None = None  # on the current batch
        self.reward_clipper = RewardClipper(config.clips_rewards_at)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.norms = Norms(self.model.named_parameters()) if measures_norms(config) else None
        self.network: Callable[..., Any] = self.model  # compiled if the config asks for it
        if config.compile:
            graphs = self.device.type == "cuda" and not networks.is_recurrent(model)
            self.network = torch.compile(model, mode="reduce-overhead" if graphs else "default")

    @functools.cached_property
    def optimizer(self) -> Any:
        """The optimizer, created by the first step.

        A process's first optimizer takes a second of imports, which a process that only computes
        gradients avoids.
        """
        return self.make_optimizer(self._weights)

    def make_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            parameters, lr=self.learning_rate.start, eps=self.adam_epsilon, fused=True
        )

    def is_newer_than(self, trajectory: Trajectory) -> bool:
        """Return whether the parameters were updated after the trajectory was sampled."""
        return bool((trajectory.version != self.version).any())

    def change(self, **coefficients: Any) -> None:
        """Change coefficients of the config for the updates to come."""
        self.config = dataclasses.replace(self.config, **coefficients)
        if coefficients.keys() & RATES:
            self.learning_rate = LearningRate.of(self.config)

    # --- forward ----------------------------------------------------------------------------------

    def forward(
        self, batch: Batch, network: Callable[..., Any] | None = None
    ) -> tuple[Tensor, Tensor, Transitions]:
        """Run the network, or a copy of it, on a batch.

        Returns policy [rows, outputs], value [rows] and the corresponding transitions.
        """
        with self.autocast():
            return batch.forward(network or self.network)

    def unroll(self, rollout: DeviceTrajectory) -> tuple[Tensor, Tensor]:
        """Run the network on a whole trajectory.

        Returns policy [T + 1, B, outputs], and value [T + 1, B] in the model's scale.
        """
        with self.autocast():
            policy, value, _ = networks.unroll(
                self.network, rollout.obs, rollout.state, rollout.begins
            )
        return full(policy), full(value)

    @torch.no_grad()
    def log_prob(self, rollout: DeviceTrajectory) -> Tensor:
        """Return the log-probabilities [T, B] of a trajectory's actions by the current policy."""
        return self.actions.log_prob(self.unroll(rollout)[0][:-1], rollout.action)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which networks compute in the config's precision."""
        return precision.computing(self.dtype, self.device)

    # --- steps ------------------------------------------------------------------------------------

    def step(self, losses: Losses, rows: int = 1) -> LearnerStep:
        """Take one optimizer step on `losses.total`.

        The losses are means over `rows` rows, their weight in the average over several learners.
        """
        for weight in self._weights:
            weight.grad = None
        losses.total.backward()  # type: ignore[no-untyped-call]
        return self._step(losses, rows)

    def step_with(self, gradients: Sequence[Tensor | None], losses: Losses) -> LearnerStep:
        """Take one optimizer step with gradients computed on a copy of the model."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            weight.grad = gradient
        return self._step(losses)

    def _step(self, losses: Losses, rows: int = 1) -> LearnerStep:
        if self.others is not None:
            losses = self._average(losses, rows, self.others)
        norm = self.clip()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate.value
        with nullcontext() if self.norms is None else self.norms.update():
            self.optimizer.step()
        detached: list[Any] = [part if part is None else part.detach() for part in losses]
        return LearnerStep(Losses(*detached), norm)

    def clip(self) -> Tensor:
        """Clip the gradient of the model's parameters; return its norm before that.

        Every gradient that an algorithm learns from comes by here, also a worker's.
        """
        if self.norms is not None:
            self.norms.measure_gradient()
        if self._max_grad_norm == math.inf:
            return nn.utils.get_total_norm([w.grad for w in self._weights if w.grad is not None])
        return nn.utils.clip_grad_norm_(self._weights, self._max_grad_norm)

    def _average(self, losses: Losses, rows: int, others: AllReduce) -> Losses:
        """Average the gradients over the rows of all learners; return the average losses."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        parts = [part for part in losses if part is not None]
        scalars = torch.stack([part.detach() for part in parts]).to(gradients[0].dtype)
        _, (*averaged, means) = others.means(rows, [*gradients, scalars])
        for gradient, mean in zip(gradients, averaged, strict=True):
            gradient.copy_(mean)
        each = iter(means)
        averages: list[Any] = [part if part is None else next(each) for part in losses]
        return Losses(*averages)

    def count_observations(self, obs: Tree) -> None:
        """Add observations [N, ...] to the running statistics of the model's input."""
        means = None if self.others is None else self.others.means
        with self._counting():
            networks.update_normalizers(self.model, obs, means=means)

    def count_values(self, targets: Tensor, reward: Tensor) -> None:
        """Add value targets and rewards to the value scale, if values are normalized."""
        if normalizes_values(self.config):
            with self._counting():
                samples = self.value_scale.samples(targets, reward)
                self.value_scale.update(samples, others=self.others)

    def _counting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.statistics is None else self.statistics.shared_by(self)

    def end_update(
        self, steps: Sequence[LearnerStep], batch: Batch, epochs: int = 1
    ) -> dict[str, float]:
        """End an update of these steps; return its metrics, as `count_update` does.

        Also adds the batch's observations to the running statistics, and steers the learning rate.
        """
        metrics = self.count_update(steps, epochs)
        if "train/approx_kl" in metrics:
            self.learning_rate.steer(metrics["train/approx_kl"])
        self.count_observations(batch.obs_rows)
        return metrics

    def count_update(self, steps: Sequence[LearnerStep], epochs: int = 1) -> dict[str, float]:
        """Count an update of these steps; return its metrics.

        These are means over all steps, except `approx_kl`, which is over the last epoch.  Raises
        LearnerLost if a loss became NaN or infinite.
        """
        names = [*METRICS, "train/grad_norm"]
        parts = [(*step.losses, step.grad_norm) for step in steps]
        had = [name for name, part in zip(names, parts[0], strict=True) if part is not None]
        explained, self.explained_variance = self.explained_variance, None
        once = [] if explained is None else [explained]
        # One copy from the device for all of them.
        numbers = torch.stack([part for of in (*parts, once) for part in of if part is not None])
        of_steps, of_batch = np.split(np.array(numbers.tolist()), [len(steps) * len(had)])
        by_step = of_steps.reshape(len(steps), len(had))
        metrics: dict[str, float] = dict(zip(had, by_step.mean(0).tolist(), strict=True))
        del metrics["total"]
        kl = metrics.pop("train/approx_kl", None)
        self.version += 1
        if not all(map(math.isfinite, metrics.values())):
            shown = ", ".join(f"{name.split('/')[1]} {value:g}" for name, value in metrics.items())
            raise LearnerLost(
                f"the loss became NaN or infinite at update {self.version}: {shown}.  Lower"
                " learning_rate or max_grad_norm, or look for NaN in rewards or observations"
            )
        if kl is not None:
            last_epoch = len(steps) // epochs
            of_kl = by_step[:, had.index("train/approx_kl")]
            metrics["train/approx_kl"] = float(of_kl[-last_epoch:].mean())
        if self.others is not None and self.version % COMPARE_EVERY == 0:
            self._compare(self.others)
        metrics["train/learning_rate"] = self.learning_rate.value
        if explained is not None and math.isfinite(of_batch[0]):
            metrics["train/explained_variance"] = float(of_batch[0])
        if self.norms is not None:
            metrics |= self.norms.pop()
        return metrics | self.reward_clipper.pop_metrics()

    def _compare(self, others: AllReduce) -> None:
        """Raise LearnerLost if the parameters or running statistics of the learners differ."""
        scalars = [self.learning_rate.value, *self.value_scale.moments]
        statistics = networks.statistics_of(self.model).values()
        parts = [*self.model.parameters(), *map(torch.from_numpy, statistics)]
        parts.append(torch.tensor(scalars, dtype=torch.float64))
        if not others.same_everywhere(parts):
            raise LearnerLost(
                f"the learners' parameters differ after update {self.version}: a GPU or memory may"
                " be faulty, or the model's result depends on something that differs between"
                " processes"
            )

    def to_device(self, array: NDArray[Any] | Tensor) -> Tensor:
        """Copy an array to the learner's device; on a CPU the tensor shares its memory.

        A tensor is returned as it is: the sampler has put it on the device already.
        """
        if isinstance(array, Tensor):
            return array
        on_cpu = torch.from_numpy(array)
        if self.device.type == "cpu":
            return on_cpu
        return on_cpu.pin_memory().to(self.device, non_blocking=True)

    # --- parameters for actors, and checkpoints ---------------------------------------------------

    def parameters(self, env_steps: int = 0) -> Parameters:
        """Return the message to actors; `env_steps` of the run is for their schedules."""
        state = networks.state_of(self.model)
        return Parameters(self.version, state, env_steps, self.env_attributes)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        on_gpu = self.device.type == "cuda"
        return {
            "version": self.version,
            "rate": self.learning_rate.value,
            "rate_given": self.learning_rate.start,
            "scale": saved_scale(self.value_scale),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": self.generator.get_state(),
            # For dropout on a GPU; this library itself does not draw from it.
            "cuda_random": torch.cuda.get_rng_state(self.device) if on_gpu else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self.version = state["version"]
        is_overridden = "learning_rate" in self.config.overridden  # then it starts again
        if state["rate_given"] == self.learning_rate.start and not is_overridden:
            self.learning_rate.value = state["rate"]
        self.value_scale = loaded_scale(state["scale"], self.config)
        self.model.load_state_dict(state["model"])
        # Torch keeps the tensors that it gets, and Adam would write into the caller's.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.generator.set_state(state["random"])
        if self.device.type == "cuda" and state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"], self.device)


class TargetLearner(Learner[C]):
    """A learner with a target network, `target`: a copy of `followed`.

    The copy includes the running statistics of the observations, because the target network's
    values are for observations normalized by them.
    """

    def __init__(self, config: C, model: Any, actions: Actions):
        super().__init__(config, model, actions)
        self.target = copy.deepcopy(self.followed).requires_grad_(False)
        # Collected once: for small networks that takes longer than averaging them.
        both = self.target, self.followed
        self._parameters: list[list[Tensor]] = [list(network.parameters()) for network in both]
        self._statistics: list[list[Tensor]] = [list(network.buffers()) for network in both]
        self.renewals = 0  # completed intervals

    @property
    def followed(self) -> nn.Module:
        """The network that the target follows: the model, or a part of it."""
        return self.model

    def renew_target(self, env_steps: int, interval: int) -> None:
        """Copy the network if the run's steps have passed another multiple of `interval`."""
        due = env_steps // interval
        if due != self.renewals:
            self.renewals = due
            self.target.load_state_dict(self.followed.state_dict())

    @torch.no_grad()
    def average_target(self, tau: float) -> None:
        """Move the target's parameters by `tau` towards the network's (Polyak averaging)."""
        target, followed = self._parameters
        torch._foreach_lerp_(target, followed, tau)
        target_statistics, statistics = self._statistics
        if statistics:
            torch._foreach_copy_(target_statistics, statistics)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "target": self.target.state_dict(), "renewals": self.renewals}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.target.load_state_dict(state["target"])
        self.renewals = state["renewals"]


def to_device(learner: Learner[Any], trajectory: Trajectory) -> DeviceTrajectory:
    """Copy a trajectory to the learner's device, clip its rewards and apply gamma.

    Observations enter the running statistics only at the end of the update, so that the learner
    normalizes the trajectory as its actors did.
    """
    tensor = learner.to_device
    rows, terminated = trajectory.rows.to(tensor), tensor(trajectory.terminated)
    value = rows.fill_read(tensor(trajectory.value), terminated)
    reward = rows.fill(tensor(trajectory.reward))
    return DeviceTrajectory(
        obs=trees.map_tree(lambda x: rows.fill_read(tensor(x), terminated), trajectory.obs),
        action=rows.fill(tensor(trajectory.action)),
        log_prob=rows.fill(tensor(trajectory.log_prob)),
        reward=learner.reward_clipper.clip(reward, trajectory),
        discount=learner.config.gamma * ~terminated,
        rows=rows,
        begins=tensor(trajectory.begins),
        value=learner.value_scale.denormalize(value),
        state=tensor(trajectory.state),
    )


def make_batch(
    learner: Learner[Any],
    rollout: DeviceTrajectory,
    targets: Targets,
    *,
    old_log_prob: Tensor | None = None,
    start_log_prob: Tensor | None = None,
    weight: Tensor | None = None,
    normalize_advantage: bool = False,
) -> Batch:
    """Make a batch of a rollout's experience.

    Probability ratios are to `old_log_prob` [T, B], by default the behaviour policy's.  The KL
    divergence of the update is measured from `start_log_prob` [T, B], by default the same.
    Advantages are in the scale of normalized values, or else in that of rewards, normalized if
    asked for, then multiplied by `weight` [T, B].
    """
    rows, select = rollout.rows, rollout.rows.select
    value, advantage = targets
    if learner.explained_variance is None:  # of the first batch since it was last reported
        target, error = select(value), select(value - rollout.value[:-1])
        learner.explained_variance = 1 - error.var(correction=0) / target.var(correction=0)
    learner.count_values(select(value), select(rollout.reward))
    value = learner.value_scale.normalize(value)
    if normalizes_values(learner.config):
        advantage = advantage / learner.value_scale.std
    if normalize_advantage:
        samples = select(advantage)
        mean: Any = samples.mean()
        std: Any = samples.std(correction=0)
        if learner.others is not None:
            _, mean, variance = learner.others.moments(samples)
            std = math.sqrt(variance)
        advantage = (advantage - mean) / (std + 1e-6)
    if weight is not None:
        advantage = advantage * weight
    old = rollout.log_prob if old_log_prob is None else old_log_prob
    start = old if start_log_prob is None else start_log_prob
    transitions = Transitions(rollout.action, old, advantage, value, start)
    if networks.is_recurrent(learner.model):
        recurrent = RecurrentInput(rollout.state, rollout.begins[:-1], rows)
        return Batch(trees.map_tree(lambda x: x[:-1], rollout.obs), transitions, recurrent)
    return Batch(select(rollout.obs), Transitions(*map(select, transitions)))


def gae_batch(learner: Learner[Any], trajectory: Trajectory, *, normalize_advantage: bool) -> Batch:
    """Make a batch with GAE, from the values that the actors predicted.

    It suits the behaviour policy, or one hardly newer.
    """
    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward,
        rollout.discount,
        rollout.value,
        valid=rollout.valid,
        gae_lambda=learner.config.gae_lambda,
    )
    # To steer the learning rate, KL is measured from the policy before the update.
    steers = learner.learning_rate.target_kl and learner.is_newer_than(trajectory)
    start = learner.log_prob(rollout) if steers else None
    return make_batch(
        learner, rollout, targets, start_log_prob=start, normalize_advantage=normalize_advantage
    )


def actor_critic_losses(
    gradient: Tensor,
    log_prob: Tensor,
    policy: Tensor,
    value: Tensor,
    rows: Transitions,
    actions: Actions,
    value_coef: float,
    entropy_coef: float,
    clip_range: float = math.inf,
) -> Losses:
    """Add the value loss and the entropy bonus to a policy loss, `gradient`.

    `clip_range` is the policy loss's, for the metric; infinite if it has none.
    """
    error = losses.squared_error(value, rows.value_target)
    entropy = actions.entropy(policy).mean()
    kl = losses.kl_estimate(log_prob - rows.start_log_prob)
    total = gradient + value_coef * error - entropy_coef * entropy
    clipped = None
    if clip_range < math.inf:
        clipped = losses.clip_fraction(log_prob.detach() - rows.old_log_prob, clip_range)
    return Losses(total, gradient, error, entropy, kl, clipped)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next tensors, rather than return it to the kernel.

    It maps large blocks anew each time, and returns what is free at the end of its heap, so that
    the pages of tensors are faulted in again and again: 535 times in an update of crossq, a
    fifteenth of its time.  Both thresholds follow the largest block ever freed, up to 32 MB
    (mallopt(3), M_MMAP_THRESHOLD); this one is never written to, so it takes no memory.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def gpu_lost(error: torch.AcceleratorError) -> LearnerLost:
    """Return the error to raise if the GPU fails: its parameters can no longer be read."""
    return LearnerLost(f"the GPU is lost: {str(error).splitlines()[0]}")
