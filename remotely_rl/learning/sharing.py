"""Parameters shared by workers under a sync rule: the common part of A3C and n-step Q.

    SharedLearner   the shared parameters, in the training process: a sync rule around the model
    SegmentWork     the computation of a worker: an actor, and a learner of the same model that
                    computes gradients and takes no step

`sync/` has the rules.

Parameters are sent as one vector, without the running statistics of observations and value
targets.  Instead, workers report samples of their observations and value targets.  The shared
learner adds them to the statistics between two steps, and broadcasts the statistics, which all
workers use to act and learn.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import networks, sync, trees
from remotely_rl.acting.actor import AS_MADE, Actor, EnvAttributes
from remotely_rl.config import measures_norms
from remotely_rl.environments import Episode
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.experience.batch import Batch, Transitions
from remotely_rl.learning.learner import (
    METRICS,
    RATES,
    Learner,
    LearningRate,
    Losses,
    SavedScale,
    ScaledConfig,
    ValueScale,
    gae_batch,
    loaded_scale,
    normalizes_values,
    saved_scale,
    scale_of,
)
from remotely_rl.learning.norms import Norms
from remotely_rl.learning.parameter_server import PushResult
from remotely_rl.supervision import Crashes, CrashReport
from remotely_rl.supervision.failures import model_errors_are_fatal
from remotely_rl.sync.client import MakeOptimizer
from remotely_rl.sync.flat import Flat
from remotely_rl.sync.rule import Rule
from remotely_rl.trees import Tree

# Called with policy [rows, outputs], value [rows], transitions, the worker's config, and the
# schedule's progress.
LossesAt = Callable[[Tensor, Tensor, Transitions, Any, float], Losses]


REPORTED = ("train/policy_loss", "train/value_loss", "train/entropy")


class SharingConfig(ScaledConfig, Protocol):
    """What is read here of the Configs of A3C and n-step Q."""

    @property
    def actors(self) -> int: ...

    @property
    def sync(self) -> str: ...

    @property
    def optimizer(self) -> str: ...

    @property
    def learning_rate(self) -> float: ...

    @property
    def rmsprop_decay(self) -> float: ...

    @property
    def rmsprop_epsilon(self) -> float: ...

    @property
    def max_crash_rate(self) -> float: ...


class WorkReport(NamedTuple):
    """A worker's report with its gradient."""

    obs: Tree | None  # a sample of the observations, arrays [N, ...], for the statistics
    steps: int
    episodes: list[Episode]
    seconds: dict[str, float]
    metrics: dict[str, float]
    values: NDArray[np.float32] | None = None  # value targets, or rewards, for the value scale
    crashes: Sequence[CrashReport] = ()


class Broadcast(NamedTuple):
    """The message to workers with each call."""

    env_steps: int  # of all workers
    progress: float  # of the schedule, from 0 to 1
    statistics: networks.State  # of the observations
    scale: SavedScale = saved_scale(ValueScale())
    env_attributes: EnvAttributes = AS_MADE
    coefficients: Mapping[str, Any] = {}  # of the config, those that hooks have changed


def make_rule(config: SharingConfig, parameters: Tensor) -> Rule:
    """Make the sync rule of a config, around these parameters.

    Raises TrainingError for an unknown rule or optimizer.
    """
    return sync.make(config.sync, parameters, config.actors, optimizer_of(config))


def unused(config: SharingConfig) -> dict[str, str]:
    """Return the fields of the optimizer that have no effect, with the reason."""
    if config.optimizer == "rmsprop":
        return {}
    why = f"the optimizer is {config.optimizer}"
    return dict.fromkeys(("rmsprop_decay", "rmsprop_epsilon"), why)


def optimizer_of(config: SharingConfig) -> MakeOptimizer:
    """Return the function that makes the optimizer of the shared parameters."""
    rate = config.learning_rate
    kinds: dict[str, MakeOptimizer] = {
        "rmsprop": lambda p: torch.optim.RMSprop(
            p, rate, alpha=config.rmsprop_decay, eps=config.rmsprop_epsilon
        ),
        "adam": lambda p: torch.optim.Adam(p, rate, eps=1e-5),
        "sgd": lambda p: torch.optim.SGD(p, rate),
    }
    if config.optimizer not in kinds:
        raise TrainingError(
            f"optimizer must be {', '.join(kinds)}, not {config.optimizer!r}"
            f"{nearest(config.optimizer, kinds)}"
        )
    return kinds[config.optimizer]


class SharedLearner:
    """The shared parameters: the learner of the run (trained.py)."""

    env_attributes: EnvAttributes = AS_MADE

    def __init__(self, config: SharingConfig, model: nn.Module):
        self.config: Any = config
        self._changed: dict[str, Any] = {}  # coefficients, for workers
        self.flat = Flat(model)
        self.rule = make_rule(config, self.flat.vector)
        self.rate = LearningRate.of(config)  # for rules without their own
        self.scale = scale_of(config)
        self._statistics: networks.State | None = None
        self._reports: dict[int, list[WorkReport]] = {}  # by client, not yet counted
        self._counted = self.rule.version  # the version at which reports were last counted
        self._norms = Norms(self._named()) if measures_norms(self.config) else None
        self._measured = self.rule.version  # the version at which an update was last measured

    @property
    def model(self) -> nn.Module:
        """The model, with the current parameters."""
        self.flat.load(self.rule.parameters)
        return self.flat.module

    @property
    def version(self) -> int:
        """The number of updates of the parameters."""
        return self.rule.version

    def change(self, **coefficients: Any) -> None:
        """Change coefficients for the following steps, and for workers with their next calls.

        Raises TrainingError for the learning rate of a rule that steps at its own.
        """
        if RATES & coefficients.keys():
            if self.rule.has_fixed_rate:
                raise TrainingError(
                    f"learning_rate cannot be changed: {self.config.sync} steps at its own rate"
                )
            self.rate = LearningRate.of(dataclasses.replace(self.config, **coefficients))
        self.config = dataclasses.replace(self.config, **coefficients)
        self._changed |= coefficients

    def broadcast(self, env_steps: int, progress: float) -> Broadcast:
        """Anneal the learning rate; return the message to workers."""
        self.rate.anneal(progress)
        self.rule.set_rate(self.rate.value)
        if self._statistics is None:
            self._statistics = networks.statistics_of(self.flat.module)
        return Broadcast(
            env_steps,
            progress,
            self._statistics,
            saved_scale(self.scale),
            self.env_attributes,
            dict(self._changed),
        )

    def record(self, pushed: PushResult) -> dict[str, float]:
        """Record a push; return its metrics: the worker's, and those of the step that it made.

        The worker's report is added to the statistics after the next step of the parameters.
        Reports are counted in the order of clients, so that a synchronous run repeats whatever the
        order of arrival.
        """
        self._reports.setdefault(pushed.client, []).append(pushed.report)
        self._count_reports()
        metrics: dict[str, float] = dict(pushed.report.metrics)
        if self._norms is not None and self.rule.version != self._measured:
            self._norms.measure_update()
            self._measured = self.rule.version
            metrics |= self._norms.pop()
        return metrics

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the shared parameters by name: views of the rule's vector."""
        vector, begin = self.rule.vector.detach(), 0
        for name, parameter in self.flat.module.named_parameters():
            end = begin + parameter.numel()
            yield name, vector[begin:end]
            begin = end

    def _count_reports(self) -> None:
        if self.rule.version == self._counted:
            return
        for _, reports in sorted(self._reports.items()):
            obs = [report.obs for report in reports if report.obs is not None]
            if obs:
                seen = trees.join(lambda parts: torch.from_numpy(np.concatenate(parts)), obs)
                networks.update_normalizers(self.flat.module, seen, every=1)
            values = [report.values for report in reports if report.values is not None]
            if values:
                self.scale.update(torch.from_numpy(np.concatenate(values)))
        self._reports.clear()
        self._counted, self._statistics = self.rule.version, None

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "rule": self.rule.state(),
            "scale": saved_scale(self.scale),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint; pushes in flight are lost."""
        self.flat.module.load_state_dict(state["model"])
        self.rule.load(state["rule"])
        self.scale = loaded_scale(state["scale"], self.config)
        self._counted, self._statistics = self.rule.version, None
        self._measured = self.rule.version
        if self._norms is not None:
            self._norms.keep()


class SegmentWork:
    """Samples segments (rollouts) with given parameters, and computes gradients on them.

    With several `epochs` or `minibatches`, each segment gives several gradients, one per minibatch,
    at the parameters of its call.
    """

    def __init__(
        self,
        config: SharingConfig,
        actor: Actor,
        losses_at: LossesAt,
    ):
        self.actor = actor
        self.progress = 0.0  # of the schedule
        # The same model acts and learns; one vector holds its parameters.
        self.learner = Learner[Any](config, actor.model, actor.envs.actions)
        self.flat = Flat(actor.model)
        self._losses_at = losses_at
        self._minibatches_left: list[Batch] = []
        self._has_normalizer = networks.has_normalizer(actor.model)
        self._seen: list[Tree] = []
        self._values: list[Tensor] = []
        self._report = WorkReport(None, 0, [], {}, {})
        # Checks the crash rate here too: `gradient` loops until it has experience, and would never
        # return if all environments crash.
        self._crashes = Crashes(None, config.max_crash_rate)

    @property
    def config(self) -> Any:
        """The config, with the coefficients that hooks have changed."""
        return self.learner.config

    def gradient(self, parameters: Tensor, broadcast: Broadcast | None) -> Tensor:
        """Compute the gradient [P] of the next minibatch, at these parameters.

        New statistics take effect with the next segment, so that all minibatches of a segment are
        normalized alike.
        """
        if broadcast is not None:
            self.actor.env_steps, self.progress = broadcast.env_steps, broadcast.progress
            if broadcast.coefficients:
                self.learner.change(**broadcast.coefficients)
            self.actor.set_env_attributes(broadcast.env_attributes)
        self.flat.load(parameters)
        if broadcast is not None and not self._minibatches_left:
            networks.load_statistics(self.actor.model, broadcast.statistics)
            self.learner.value_scale = loaded_scale(broadcast.scale, self.config)
        while not self._minibatches_left:
            self._play()
        batch = self._minibatches_left.pop()
        began = time.perf_counter()
        with model_errors_are_fatal():
            policy, value, rows = self.learner.forward(batch)
            losses = self._losses_at(policy, value, rows, self.config, self.progress)
            gradient = self.flat.gradient_of(losses.total, self.learner.clip)
        metrics = {
            name: float(part.detach())
            for name, part in zip(METRICS, losses, strict=True)
            if name in REPORTED and part is not None
        }
        metrics |= self.learner.reward_clipper.pop_metrics()
        if self.learner.norms is not None:
            metrics |= self.learner.norms.pop()
        self._report = self._report._replace(metrics=metrics)
        self.actor.players[0].idle_since = ended = time.perf_counter()
        self._spent({"learning": ended - began})
        return gradient

    def report(self) -> WorkReport:
        """Return the report of the steps since the last one."""
        report, self._report = self._report, WorkReport(None, 0, [], {}, {})
        if self._values:
            report = report._replace(values=torch.cat(self._values).numpy())
        if self._seen:
            seen = trees.join(lambda parts: torch.cat(parts).numpy(), self._seen)
            report = report._replace(obs=seen)
        self._seen, self._values = [], []
        return report

    def _play(self) -> None:
        self.actor.model.eval()  # dropout is for gradients, not for acting
        rollout = self.actor.sample()
        self.actor.model.train()
        self._report = self._report._replace(
            steps=self._report.steps + rollout.steps,
            episodes=self._report.episodes + rollout.episodes,
            crashes=[*self._report.crashes, *rollout.crashes],
        )
        self._crashes.stepped(rollout.steps)
        for crash in rollout.crashes:
            self._crashes.add(crash)
        self._spent(rollout.seconds)
        if not rollout.steps:  # all rows are resets
            return
        config = self.config
        batch = gae_batch(
            self.learner,
            rollout.trajectory,
            normalize_advantage=getattr(config, "normalize_advantage", False),
        )
        if self._has_normalizer:
            sample = trees.map_tree(lambda x: x[:: networks.UPDATE_EVERY], batch.obs_rows)
            self._seen.append(sample)
        if normalizes_values(self.config):
            trajectory, scale = rollout.trajectory, self.learner.value_scale
            targets = scale.denormalize(batch.transition_rows.value_target)
            rewards = torch.from_numpy(trajectory.rows.select(trajectory.reward))
            self._values.append(scale.samples(targets, rewards))
        self._minibatches_left = [
            minibatch
            for _ in range(getattr(config, "epochs", 1))
            for minibatch in batch.minibatches(
                getattr(config, "minibatches", 1), self.actor.players[0].random
            )
        ][::-1]

    def _spent(self, seconds: dict[str, float]) -> None:
        for phase, spent in seconds.items():
            self._report.seconds[phase] = self._report.seconds.get(phase, 0.0) + spent
