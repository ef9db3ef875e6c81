"""Workers that share parameters by a sync rule: what A3C and n-step Q have in common.

    SharedLearner   the shared parameters, where the training is: a rule around the model
    SegmentWork     what a worker computes with: an actor, and a learner of the same model,
                    which has gradients and takes no step

The loop of both is in `runs/shared_training.py`.
`sync/` has the rules and the parameter server.  Statistics, of the input and of the values to be
learnt, are none of the parameters, which travel as one vector.  Workers send a few of the
observations that they saw and the values that they found, the shared learner counts them between
two steps, and all play and learn by what it says then.
"""

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import networks, sync
from remotely_rl.acting.actor import Actor
from remotely_rl.config import Shared
from remotely_rl.environments import Episode
from remotely_rl.experience.batch import Batch
from remotely_rl.learning.batches import gae_batch
from remotely_rl.learning.learner import ComputeLosses, Learner
from remotely_rl.learning.parameter_server import Pushed
from remotely_rl.learning.value_scale import ValueScale
from remotely_rl.sync.flat import Flat


class Report(NamedTuple):
    """What a worker tells besides its gradient."""

    obs: NDArray[Any] | None  # a few of those seen [N, ...], for the statistics
    steps: int
    episodes: list[Episode]
    seconds: dict[str, float]
    metrics: dict[str, float]
    values: NDArray[np.float32] | None = None  # those learnt, in units of rewards, for the scale


class Told(NamedTuple):
    """What workers are told with each call."""

    env_steps: int  # of all workers: entropy and such go by that
    statistics: networks.State  # of the input
    scale: tuple[float, float, float] = (0.0, 1.0, 0.0)  # of the values: what ValueScale is made of


class SharedLearner:
    """The shared parameters.  A session saves and restores it."""

    def __init__(self, config: Shared, model: nn.Module):
        self.config = config
        self.flat = Flat(model)
        self.rule = sync.make(config.sync, self.flat.vector, config.actors, config.make_optimizer)
        self.scale = ValueScale()
        self._statistics: networks.State | None = None
        self._seen: dict[int, list[Report]] = {}
        self._counted = self.rule.version  # the version at which observations were counted last

    @property
    def model(self) -> nn.Module:
        """The model, with the newest parameters."""
        self.flat.load(self.rule.parameters)
        return self.flat.module

    def follow(self, env_steps: int) -> Told:
        """Sets the rate to what the schedule says after so many steps; returns what the workers
        are to be told."""
        self.rule.set_rate(self.config.learning_rate_at(env_steps))
        if self._statistics is None:
            self._statistics = networks.statistics_of(self.flat.module)
        return Told(env_steps, self._statistics, self.scale.moments)

    def count_in(self, pushed: Pushed) -> None:
        """Counts what a worker saw into the statistics, once the parameters are stepped: in the
        order of the workers, so that a synchronous run repeats whoever came first."""
        report: Report = pushed.report
        self._seen.setdefault(pushed.client, []).append(report)
        if self.rule.version == self._counted or not self._seen:
            return
        for client in sorted(self._seen):
            obs = [report.obs for report in self._seen[client] if report.obs is not None]
            if obs:
                seen = torch.from_numpy(np.concatenate(obs))
                networks.update_normalizers(self.flat.module, seen, every=1)
            values = [report.values for report in self._seen[client] if report.values is not None]
            if values:
                self.scale.update(torch.from_numpy(np.concatenate(values)))
        self._seen.clear()
        self._counted, self._statistics = self.rule.version, None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "model": self.model.state_dict(),
            "rule": self.rule.state(),
            "scale": list(self.scale.moments),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave; what was under way then is lost."""
        self.flat.module.load_state_dict(state["model"])
        self.rule.load(state["rule"])
        self.scale = ValueScale(*state["scale"])
        self._counted, self._statistics = self.rule.version, None


class SegmentWork:
    """Plays segments by the parameters that it is given, and has the gradients of their losses.

    With several `epochs` or `minibatches` a segment is played once, and its parts are gone
    through one gradient after the other, by the parameters of each.
    """

    def __init__(
        self,
        config: Shared,
        actor: Actor,
        compute_losses: ComputeLosses,
        epochs: int = 1,
        minibatches: int = 1,
    ):
        self.config = config
        self.actor = actor
        # What acts is what learns: one model, and one vector that is its parameters.
        self.learner = Learner(config, actor.model, actor.player.envs.actions)
        self.flat = Flat(actor.model)
        self._compute_losses = compute_losses
        self._epochs, self._minibatches = epochs, minibatches
        self._minibatches_left: list[Batch] = []
        self._has_normalizer = networks.has_normalizer(actor.model)
        self._seen: list[Tensor] = []
        self._values: list[Tensor] = []
        self._report = Report(None, 0, [], {}, {})

    def gradient(self, parameters: Tensor, told: Told | None) -> Tensor:
        """The gradient [P] of the next part, at these parameters.

        Statistics that it is told are taken over where a segment begins: its parts are of what
        was seen by the same.
        """
        if told is not None:
            self.actor.env_steps = told.env_steps
        self.flat.load(parameters)
        self.learner.learning_rate.anneal(self.actor.env_steps)
        if told is not None and not self._minibatches_left:
            networks.load_statistics(self.actor.model, told.statistics)
            self.learner.value_scale = ValueScale(*told.scale)
        while not self._minibatches_left:
            self._play()
        batch = self._minibatches_left.pop()
        began = time.perf_counter()
        policy, value, rows = self.learner.forward(batch)
        entropy_coef = self.config.entropy_coef_at(self.actor.env_steps)
        actions = self.learner.actions
        losses = self._compute_losses(policy, value, rows, self.config, entropy_coef, actions)
        gradient = self.flat.gradient_of(losses.total, self.config.max_grad_norm)
        metrics = {
            "train/policy_loss": float(losses.policy.detach()),
            "train/value_loss": float(losses.value.detach()),
            "train/entropy": float(losses.entropy.detach()),
        }
        metrics |= self.learner.reward_clipper.pop_metrics()
        self._report = self._report._replace(metrics=metrics)
        self.actor.player.idle_since = ended = time.perf_counter()
        self._spent({"learning": ended - began})
        return gradient

    def report(self) -> Report:
        """What was played since the report before."""
        report, self._report = self._report, Report(None, 0, [], {}, {})
        if self._values:
            report = report._replace(values=torch.cat(self._values).numpy())
        if self._seen:
            report = report._replace(obs=torch.cat(self._seen).numpy())
        self._seen, self._values = [], []
        return report

    def _play(self) -> None:
        self.actor.model.eval()  # the learner's mode is for gradients: dropout is no way to act
        rollout = self.actor.sample()
        self.actor.model.train()
        self._report = self._report._replace(
            steps=self._report.steps + rollout.steps,
            episodes=self._report.episodes + rollout.episodes,
        )
        self._spent(rollout.seconds)
        if not rollout.steps:  # all environments began anew
            return
        batch = gae_batch(self.learner, rollout.trajectory)
        if self._has_normalizer:
            self._seen.append(batch.flat_obs[:: networks.UPDATE_EVERY])
        if self.config.normalizes_values:
            self._values.append(
                self.learner.value_scale.denormalize(batch.valid_transitions.value_target)
            )
        self._minibatches_left = [
            minibatch
            for _ in range(self._epochs)
            for minibatch in batch.minibatches(self._minibatches, self.actor.random)
        ][::-1]

    def _spent(self, seconds: dict[str, float]) -> None:
        for phase, spent in seconds.items():
            self._report.seconds[phase] = self._report.seconds.get(phase, 0.0) + spent
