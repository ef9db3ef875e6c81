"""The learner: a model, its optimizer, and all that is between a trajectory and a step.

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

    LearningRate     annealed over the run, or steered by how far updates move the policy
    ValueScale       the units in which values are learnt
    RewardClipper    rewards as the learner sees them
    Learner          the model, its optimizer, its steps
    TargetLearner    with an older copy of the model, to bootstrap from
    make_batch, ...  from a trajectory to a batch: clipped, normalized, on the device

A learner with `others` is one of several that learn together (`all_reduce.py`): what follows from
a batch, gradients and statistics alike, then follows from the batches of all.

The same code runs on a CPU and on a GPU.  There, observations are copied once, as bytes from
pinned memory, and stay.  Networks may compute in bfloat16 (`networks/precision.py`); losses and
targets are float32.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.acting.actor import AS_MADE, EnvAttributes, Parameters
from remotely_rl.config import Common, device_of, rate_factor, target_kl_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost
from remotely_rl.experience.batch import (
    Batch,
    DeviceTrajectory,
    RecurrentInput,
    Transitions,
    full,
)
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses, returns
from remotely_rl.functions.returns import Targets
from remotely_rl.learning.all_reduce import AllReduce, Moments
from remotely_rl.learning.store import Statistics
from remotely_rl.networks import precision
from remotely_rl.trees import Tree

C = TypeVar("C", bound=Common)

# What the parts of `Losses` are called in a row of metrics.
METRICS = (
    "total", "train/policy_loss", "train/value_loss", "train/entropy", "train/approx_kl",
    "train/clip_fraction",
)  # fmt: skip

# A steered rate begins here unless a rate is given, and changes by this factor, within these
# multiples of its bounds.
STEERED_FROM, FACTOR, ABOVE, BELOW = 1e-3, 1.5, 4.0, 0.1

COMPARE_EVERY = 100  # updates; several learners then compare their parameters

HORIZON = 100_000  # targets, or rewards, by which the units of values are known


ABSENT: Any = None  # of Losses: what an algorithm does not have


class Losses(NamedTuple):
    """What is minimized, and how far the policy is from the one before the update.

    What an algorithm does not have is ABSENT.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor | None = None  # the share of rows whose ratio is beyond the clip


class Step(NamedTuple):
    """An optimizer step that was taken: its losses, detached, and the norm of its gradient."""

    losses: Losses
    grad_norm: Tensor


class LearningRate:
    """The rate at which the next optimizer step is taken: `value`.

    It falls linearly over the schedule.  Or, with a `target_kl`, each update's KL divergence steers
    it: it rises if the update moved the policy little, and falls if it moved it far, so that no
    horizon has to be guessed.
    """

    def __init__(
        self, start: float, end: float | None = None, target_kl: float = 0.0,
        usual_end: float = Common.rate_end,
    ):  # fmt: skip
        """`end` is the usual one by default, or `start` if that is lower."""
        self.start = self.value = start
        self.end = min(usual_end, start) if end is None else end
        self.target_kl = target_kl
        self._range = self.end * BELOW, start * ABOVE

    @classmethod
    def of(cls, config: Any) -> "LearningRate":
        """The rate that a config asks for: a constant where it has no `learning_rate_end`."""
        start = STEERED_FROM if config.learning_rate is None else config.learning_rate
        end = getattr(config, "learning_rate_end", start)
        asked = cls(start, end, usual_end=config.rate_end)
        by = rate_factor(config)
        return cls(asked.start * by, asked.end * by, target_kl_of(config))

    def __str__(self) -> str:
        if not self.target_kl:
            falls = "" if self.end == self.start else f", annealed to {self.end:g}"
            return f"{self.start:g}{falls}"
        low, high = self._range
        return f"{self.start:g}, steered by target_kl={self.target_kl:g}, from {low:g} to {high:g}"

    def anneal(self, progress: float) -> None:
        """Sets the rate that the schedule has when so much of it is over, unless it is steered."""
        if not self.target_kl:
            self.value = annealed(self.start, self.end, progress)

    def steer(self, kl: float) -> None:
        """Adapts the rate after an update that moved the policy by `kl` nats, if it is steered.

        Up if that was less than half of `target_kl`, down if more than twice; never above `start`
        times 4, nor below `end` over 10.
        """
        low, high = self._range
        if not self.target_kl:
            return
        if kl > 2 * self.target_kl:
            self.value = max(self.value / FACTOR, low)
        elif kl < self.target_kl / 2:
            self.value = min(self.value * FACTOR, high)


def annealed(start: float, end: float, progress: float) -> float:
    """A coefficient that changes linearly as `progress` goes from 0 to 1."""
    if not 0 <= progress <= 1:  # steps, perhaps: the rate would soon be below 0
        raise ValueError(f"progress is from 0 to 1, not {progress:g}; see Config.progress")
    return start + progress * (end - start)


class ValueScale:
    """Units of values: the running mean and standard deviation of their targets; old ones fade."""

    def __init__(self, mean: float = 0.0, variance: float = 1.0, count: float = 0.0):
        self.mean = mean
        self.variance = variance
        self.count = count

    @property
    def moments(self) -> tuple[float, ...]:
        """What it is made of: pass these to make another."""
        return self.mean, self.variance, self.count

    @property
    def std(self) -> float:
        # Of float32, what is below varies by rounding alone.  Exactly 1 if nothing is normalized.
        return max(math.sqrt(self.variance), 1e-5 * abs(self.mean), 1e-12)

    def seen(self, targets: Tensor, reward: Tensor) -> Tensor:
        """Of experience, what `update` is to count in [N]."""
        return targets

    def update(self, seen: Tensor, horizon: int = HORIZON, others: AllReduce | None = None) -> None:
        """Counts targets in, those of `others` too (Chan et al.'s parallel update)."""
        rows, mean, spread = moments(seen, others)
        if not rows:
            return
        total = self.count + rows
        away = mean - self.mean
        self.variance = (
            self.variance * self.count + spread * rows + away**2 * self.count * rows / total
        ) / total
        self.mean += away * rows / total
        self.count = min(total, horizon)

    def normalize(self, value: Tensor) -> Tensor:
        """Values in units of rewards, as the model learns them."""
        return (value - self.mean) / self.std

    def denormalize(self, value: Tensor) -> Tensor:
        """Values as the model predicts them, in units of rewards."""
        return value * self.std + self.mean


class RewardScale(ValueScale):
    """Units of action values: the root mean square of rewards other than 0.

    Epsilon-greedy play goes by the order of values, which a mean would not change.  Targets come
    from an older network in the units of its day: rewards hardly change theirs, where returns grow
    as the agent learns.
    """

    def __init__(self, variance: float = 1.0, count: float = 0.0):
        super().__init__(0.0, variance, count)

    @property
    def moments(self) -> tuple[float, ...]:
        return self.variance, self.count

    def seen(self, targets: Tensor, reward: Tensor) -> Tensor:
        return reward[reward != 0]

    def update(self, seen: Tensor, horizon: int = HORIZON, others: AllReduce | None = None) -> None:
        """Counts rewards in."""
        rows, mean_square, _ = moments(seen.double().square(), others)
        total = self.count + rows
        if total:
            self.variance = (self.variance * self.count + mean_square * rows) / total
        self.count = min(total, horizon)


def moments(numbers: Tensor, others: AllReduce | None = None) -> Moments:
    """The moments of a batch's numbers, or of those of the batches of all learners."""
    if others is not None:
        return others.moments(numbers)
    if not numbers.numel():
        return Moments(0, 0.0, 0.0)
    numbers = numbers.double()  # squares of small ones are 0 in float32
    return Moments(numbers.numel(), float(numbers.mean()), float(numbers.var(correction=0)))


def normalizes_values(config: Common) -> bool:
    """Whether values are learnt in units of their own.

    Values of clipped rewards are small as they are.  Others may be in the hundreds, or in the
    millionths: their errors would use up the gradient's norm, or be lost in it.
    """
    asked = None if config.values_in_rewards else getattr(config, "normalize_values", False)
    return not config.clips_rewards_at if asked is None else asked


def scale_of(config: Common) -> ValueScale:
    """The units in which values are learnt, before there is any experience."""
    if not normalizes_values(config):
        return ValueScale()
    # Until there are targets, values count for nothing: beside the noise of a new network, rewards
    # of 1e-6 would be nothing.
    return RewardScale() if config.values_in_rewards else ValueScale(variance=0.0)


def clipped_share(reward: NDArray[np.float32], valid: NDArray[np.bool_], bound: float) -> float:
    """The share of valid rewards [T, B] that are beyond the bound; 0 if the bound is 0."""
    if not bound or not valid.any():
        return 0.0
    return float((np.abs(reward[valid]) > bound).mean())


class RewardClipper:
    """Clips rewards to [-bound, bound] and counts how many that changes; 0 clips nothing."""

    def __init__(self, bound: float):
        self.bound = bound
        self._shares: list[float] = []  # one for each trajectory

    def clip(self, reward: Tensor, trajectory: Trajectory) -> Tensor:
        """Clips the rewards of a trajectory, which are on the learner's device already."""
        if not self.bound:
            return reward
        self.count(trajectory)
        return reward.clamp(-self.bound, self.bound)

    def count(self, trajectory: Trajectory) -> None:
        """Counts a trajectory whose rewards are clipped elsewhere."""
        if self.bound:
            self._shares.append(clipped_share(trajectory.reward, trajectory.valid, self.bound))

    def pop_metrics(self) -> dict[str, float]:
        """The share of rewards clipped since the last call; nothing if none could be."""
        shares, self._shares = self._shares, []
        return {"train/rewards_clipped": sum(shares) / len(shares)} if shares else {}


class Learner(Generic[C]):
    """See the module's docstring.  `version` counts updates."""

    env_attributes: EnvAttributes = AS_MADE  # what actors are to set in their environments

    def __init__(self, config: C, model: nn.Module, actions: Actions):
        self.config = config
        self.actions = actions
        self.device = device_of(config)
        self.model = model.to(self.device).train()
        self.dtype = precision.of(config.precision, model, self.device)
        self.version = 0
        self.others: AllReduce | None = None  # the learners that it learns together with
        self.statistics: Statistics | None = None  # of learners that share a store
        self.learning_rate = LearningRate.of(config)
        self._max_grad_norm: float = getattr(config, "max_grad_norm", 0.0) or math.inf
        self.value_scale = scale_of(config)
        self.explained_variance: Tensor | None = None  # of the batch that is learnt from
        self.reward_clipper = RewardClipper(config.clips_rewards_at)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.network: Callable[..., Any] = self.model  # the model, compiled if asked for
        if config.compile:
            graphs = self.device.type == "cuda" and not networks.is_recurrent(model)
            self.network = torch.compile(model, mode="reduce-overhead" if graphs else "default")

    @functools.cached_property
    def optimizer(self) -> Any:
        """Made by the first step: the first optimizer of a process takes a second of imports,
        and a process that only computes gradients takes no step."""
        return self.make_optimizer(list(self.model.parameters()))

    def make_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """The rule of a step, for these parameters."""
        return torch.optim.Adam(parameters, lr=self.learning_rate.start, eps=1e-5, fused=True)

    def is_newer_than(self, trajectory: Trajectory) -> bool:
        """Whether the parameters were updated since a trajectory was sampled."""
        return bool((trajectory.version != self.version).any())

    # --- forward ----------------------------------------------------------------------------------

    def forward(
        self, batch: Batch, network: Callable[..., Any] | None = None
    ) -> tuple[Tensor, Tensor, Transitions]:
        """Runs the network, or a copy of it, on a batch: policy [rows, outputs], value [rows],
        and the transitions that they are of."""
        with self.autocast():
            return batch.forward(network or self.network)

    def unroll(self, rollout: DeviceTrajectory) -> tuple[Tensor, Tensor]:
        """Runs the network on a whole trajectory: policy [T + 1, B, outputs], and value
        [T + 1, B] in the units in which the model learns it."""
        with self.autocast():
            policy, value, _ = networks.unroll(
                self.network, rollout.obs, rollout.state, rollout.begins
            )
        return full(policy), full(value)

    @torch.no_grad()
    def log_prob(self, rollout: DeviceTrajectory) -> Tensor:
        """Log-probabilities [T, B] of a trajectory's actions by the current parameters."""
        return self.actions.log_prob(self.unroll(rollout)[0][:-1], rollout.action)

    def autocast(self) -> AbstractContextManager[Any]:
        """Within it, networks compute in the precision that the config asks for."""
        return precision.computing(self.dtype, self.device)

    # --- steps ------------------------------------------------------------------------------------

    def step(self, losses: Losses, rows: int = 1) -> Step:
        """Takes one optimizer step on `losses.total`.

        The losses are means of so many rows, which is what they count beside those of others.
        """
        self.optimizer.zero_grad()
        losses.total.backward()  # type: ignore[no-untyped-call]
        return self._step(losses, rows)

    def step_with(self, gradients: Sequence[Tensor | None], losses: Losses) -> Step:
        """Takes one optimizer step by gradients of a copy of the model."""
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return self._step(losses)

    def _step(self, losses: Losses, rows: int = 1) -> Step:
        if self.others is not None:
            losses = self._average(losses, rows, self.others)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate.value
        self.optimizer.step()
        detached: list[Any] = [part if part is None else part.detach() for part in losses]
        return Step(Losses(*detached), norm)

    def _average(self, losses: Losses, rows: int, others: AllReduce) -> Losses:
        """Makes the gradient the mean over the rows of all learners; returns their losses."""
        gradients = [part.grad for part in self.model.parameters() if part.grad is not None]
        parts = [part for part in losses if part is not None]
        scalars = torch.stack([part.detach() for part in parts]).to(gradients[0].dtype)
        _, (*averaged, means) = others.means(rows, [*gradients, scalars])
        for gradient, mean in zip(gradients, averaged, strict=True):
            gradient.copy_(mean)
        found = iter(means)
        of_all: list[Any] = [part if part is None else next(found) for part in losses]
        return Losses(*of_all)

    def count_observations(self, obs: Tree) -> None:
        """Counts observations [N, ...] into the statistics of the model's input."""
        means = None if self.others is None else self.others.means
        with self._counting():
            networks.update_normalizers(self.model, obs, means=means)

    def count_values(self, targets: Tensor, reward: Tensor) -> None:
        """Counts experience into the units of values, if they are learnt in units of their own."""
        if normalizes_values(self.config):
            with self._counting():
                seen = self.value_scale.seen(targets, reward)
                self.value_scale.update(seen, others=self.others)

    def _counting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.statistics is None else self.statistics.shared_by(self)

    def end_update(self, steps: Sequence[Step], batch: Batch, epochs: int = 1) -> dict[str, float]:
        """Ends an update of these steps; returns its metrics.

        Counts the batch's observations into the model's statistics, and steers the learning rate.
        See `count_update`.
        """
        metrics = self.count_update(steps, epochs)
        self.learning_rate.steer(metrics["train/approx_kl"])
        self.count_observations(batch.flat_obs)
        return metrics

    def count_update(self, steps: Sequence[Step], epochs: int = 1) -> dict[str, float]:
        """Counts an update of these steps; returns its metrics.

        They are means over all steps, but for `approx_kl`: over the last epoch.  Raises
        LearnerLost if the loss became NaN or infinite.
        """
        parts = dict(zip(METRICS, zip(*(step.losses for step in steps), strict=True), strict=True))
        had = {name: torch.stack(part) for name, part in parts.items() if part[0] is not None}
        means = torch.stack([part.mean() for part in had.values()]).tolist()
        metrics: dict[str, float] = dict(zip(had, means, strict=True))
        del metrics["total"]
        metrics["train/grad_norm"] = float(torch.stack([step.grad_norm for step in steps]).mean())
        kl = metrics.pop("train/approx_kl", None)
        self.version += 1
        if not all(map(math.isfinite, metrics.values())):
            told = ", ".join(f"{name.split('/')[1]} {value:g}" for name, value in metrics.items())
            raise LearnerLost(
                f"the loss became NaN or infinite at update {self.version}: {told}.  Lower"
                " learning_rate or max_grad_norm, or look for NaN in rewards or observations"
            )
        if kl is not None:
            last_epoch = len(steps) // epochs
            metrics["train/approx_kl"] = float(had["train/approx_kl"][-last_epoch:].mean())
        if self.others is not None and self.version % COMPARE_EVERY == 0:
            self._compare(self.others)
        metrics["train/learning_rate"] = self.learning_rate.value
        explained, self.explained_variance = self.explained_variance, None
        if explained is not None and math.isfinite(share := float(explained)):
            metrics["train/explained_variance"] = share
        return metrics | self.reward_clipper.pop_metrics()

    def _compare(self, others: AllReduce) -> None:
        """Raises LearnerLost if another learner's parameters, or what they follow, differ."""
        known = [self.learning_rate.value, *self.value_scale.moments]
        statistics = networks.statistics_of(self.model).values()
        parts = [*self.model.parameters(), *map(torch.from_numpy, statistics)]
        parts.append(torch.tensor(known, dtype=torch.float64))
        if not others.same_everywhere(parts):
            raise LearnerLost(
                f"the learners' parameters differ after update {self.version}: a GPU or a memory"
                " may be faulty, or the model computes with what differs between processes"
            )

    def to_device(self, array: NDArray[Any] | Tensor) -> Tensor:
        """Copies an array to the learner's device; on a CPU the tensor shares its memory.

        What is a tensor already was put there as it was sampled.
        """
        if isinstance(array, Tensor):
            return array
        on_cpu = torch.from_numpy(array)
        if self.device.type == "cpu":
            return on_cpu
        return on_cpu.pin_memory().to(self.device, non_blocking=True)

    # --- what others get --------------------------------------------------------------------------

    def parameters(self, env_steps: int = 0) -> Parameters:
        """What actors are sent; `env_steps` so far, if they follow a schedule."""
        state = networks.state_of(self.model)
        return Parameters(self.version, state, env_steps, self.env_attributes)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        on_gpu = self.device.type == "cuda"
        return {
            "version": self.version,
            "rate": self.learning_rate.value,
            "rate_given": self.learning_rate.start,
            "scale": list(self.value_scale.moments),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": self.generator.get_state(),
            # Dropout on a GPU draws from this; nothing of the library's own does.
            "cuda_random": torch.cuda.get_rng_state(self.device) if on_gpu else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` returned."""
        self.version = state["version"]
        asked = "learning_rate" in self.config.overridden  # then it begins anew
        if state["rate_given"] == self.learning_rate.start and not asked:
            self.learning_rate.value = state["rate"]
        self.value_scale = type(self.value_scale)(*state["scale"])
        self.model.load_state_dict(state["model"])
        # Torch would keep the tensors that it is given, and Adam writes into them.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.generator.set_state(state["random"])
        if self.device.type == "cuda" and state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"], self.device)


class TargetLearner(Learner[C]):
    """A learner that bootstraps from `target`, a copy of `followed`.

    The copy includes the statistics of the input: values that the target network has learnt are
    those of observations as it saw them normalized.
    """

    def __init__(self, config: C, model: Any, actions: Actions):
        super().__init__(config, model, actions)
        self.target = copy.deepcopy(self.followed).requires_grad_(False)
        # Looked up once: that takes longer than an average of small networks.
        pairs = (self.target.parameters(), self.followed.parameters())
        self._parameters = list(zip(*pairs, strict=True))
        self._statistics = list(zip(self.target.buffers(), self.followed.buffers(), strict=True))
        self.renewals = 0  # how many intervals are over

    @property
    def followed(self) -> nn.Module:
        """The network that the target follows: the model, or a part of it."""
        return self.model

    def renew_target(self, env_steps: int, interval: int) -> None:
        """Copies the network, if the steps of the run have passed a multiple of the interval."""
        due = env_steps // interval
        if due != self.renewals:
            self.renewals = due
            self.target.load_state_dict(self.followed.state_dict())

    @torch.no_grad()
    def average_target(self, tau: float) -> None:
        """Moves the target's parameters by `tau` of their distance to the network's (Polyak)."""
        for old, new in self._parameters:
            old.lerp_(new, tau)
        for statistic, newest in self._statistics:
            statistic.copy_(newest)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "target": self.target.state_dict(), "renewals": self.renewals}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.target.load_state_dict(state["target"])
        self.renewals = state["renewals"]


def to_device(learner: Learner[Any], trajectory: Trajectory) -> DeviceTrajectory:
    """Copies a trajectory to the learner's device, clips its rewards and applies gamma.

    The observations are not counted into the model's statistics yet: until the update is
    over, the model is the one that acted.
    """

    tensor = learner.to_device
    return DeviceTrajectory(
        obs=trees.map_tree(tensor, trajectory.obs),
        action=tensor(trajectory.action),
        log_prob=tensor(trajectory.log_prob),
        reward=learner.reward_clipper.clip(tensor(trajectory.reward), trajectory),
        discount=learner.config.gamma * ~tensor(trajectory.terminated),
        valid=tensor(trajectory.valid),
        begins=tensor(trajectory.begins),
        value=learner.value_scale.denormalize(tensor(trajectory.value)),
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
    """What to learn from the rows that are experience.

    Probability ratios are to `old_log_prob` [T, B], by default the policy that acted.  Pass
    `start_log_prob` [T, B] where that is not the policy before the update.  Advantages are
    in the units of values, normalized if asked for, then multiplied by `weight` [T, B].
    """
    valid = rollout.valid
    value, advantage = targets
    if learner.explained_variance is None:  # of replays and the like, the first batch is the new
        target, error = value[valid], (value - rollout.value[:-1])[valid]
        learner.explained_variance = 1 - error.var(correction=0) / target.var(correction=0)
    learner.count_values(value[valid], rollout.reward[valid])
    if normalizes_values(learner.config):
        scale = learner.value_scale
        value, advantage = scale.normalize(value), advantage / scale.std
    if normalize_advantage:
        known = advantage[valid]
        mean: Any = known.mean()
        std: Any = known.std(correction=0)
        if learner.others is not None:
            _, mean, variance = learner.others.moments(known)
            std = math.sqrt(variance)
        advantage = (advantage - mean) / (std + 1e-6)
    if weight is not None:
        advantage = advantage * weight
    old = rollout.log_prob if old_log_prob is None else old_log_prob
    start = old if start_log_prob is None else start_log_prob
    transitions = Transitions(rollout.action, old, advantage, value, start)
    if networks.is_recurrent(learner.model):
        recurrent = RecurrentInput(rollout.state, rollout.begins[:-1], valid)
        return Batch(trees.map_tree(lambda x: x[:-1], rollout.obs), transitions, recurrent)
    obs = trees.map_tree(lambda x: x[:-1][valid], rollout.obs)
    return Batch(obs, Transitions(*(part[valid] for part in transitions)))


def gae_batch(
    learner: Learner[Any],
    trajectory: Trajectory,
    *,
    normalize_advantage: bool,
) -> Batch:
    """A batch by GAE, for the policy that acted or one hardly newer.

    Values are those that the actor predicted.  An update that steers the learning rate needs to
    know where the policy starts.
    """
    rollout = to_device(learner, trajectory)
    targets = returns.gae(
        rollout.reward,
        rollout.discount,
        rollout.value,
        valid=rollout.valid,
        gae_lambda=learner.config.gae_lambda,
    )
    steers = learner.learning_rate.target_kl and learner.is_newer_than(trajectory)
    start = learner.log_prob(rollout) if steers else None
    return make_batch(
        learner, rollout, targets, start_log_prob=start, normalize_advantage=normalize_advantage
    )


def actor_critic_losses(
    gradient: Tensor, log_prob: Tensor, policy: Tensor, value: Tensor, rows: Transitions,
    actions: Actions, value_coef: float, entropy_coef: float, clip_range: float = math.inf,
) -> Losses:  # fmt: skip
    """A policy's loss `gradient`, with the value loss and the entropy that go with it.

    `clip_range` is that of the loss; infinite where it has none.
    """
    error = losses.squared_error(value, rows.value_target)
    entropy = actions.entropy(policy).mean()
    kl = losses.kl_estimate(log_prob - rows.start_log_prob)
    total = gradient + value_coef * error - entropy_coef * entropy
    clipped = None
    if clip_range < math.inf:
        clipped = losses.clip_fraction(log_prob.detach() - rows.old_log_prob, clip_range)
    return Losses(total, gradient, error, entropy, kl, clipped)


def gpu_lost(error: torch.AcceleratorError) -> LearnerLost:
    """What to raise for an error of the GPU: the parameters on it cannot be read any more."""
    return LearnerLost(f"the GPU is lost: {str(error).splitlines()[0]}")
