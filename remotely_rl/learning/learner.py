"""Who learns: a model, its optimiser, the rates of both, and the device that they are on.

An algorithm makes a `Lesson` of a trajectory, with a target and an advantage for each
action, and has the learner go over it:

    lesson = learner.on_policy(trajectory)           # on the device, by GAE
    numbers = learner.learn(lesson, compute_losses, epochs=3, minibatches=4)

The same code runs on a CPU and on a GPU.  There, the observations cross once, as bytes and
from pinned memory, and stay.  Networks may compute in bfloat16 (`precision.py`); losses and
targets are in float32.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from remotely_rl import networks
from remotely_rl.acting.actor import Parameters
from remotely_rl.config import Common, device_of
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import returns
from remotely_rl.functions.returns import Targets
from remotely_rl.learning import reward_clipping
from remotely_rl.learning.value_scale import Scale
from remotely_rl.networks import precision

# A rate that is steered moves by this factor, within these parts of its bounds.
STEER, ABOVE, BELOW = 1.5, 4.0, 0.1

# The most that an advantage is weighed by, whose action an older policy took.
RHO_BAR = 2.0


class Batch(NamedTuple):
    """A trajectory as the learner sees it: [T, B] tensors on its device."""

    obs: Tensor  # [T + 1, B, ...]
    action: Tensor  # [T, B, ...]
    log_prob: Tensor
    reward: Tensor  # clipped, if the config says so
    discount: Tensor  # gamma, or 0 where the episode ended
    valid: Tensor
    begins: Tensor  # [T + 1, B]
    value: Tensor  # [T + 1, B], by the model that acted
    state: Tensor  # [B, S]


class Rows(NamedTuple):
    """What is learnt of each action, [rows, ...] in no particular order."""

    action: Tensor
    log_prob: Tensor  # by the policy that a loss's ratio is to
    advantage: Tensor
    target: Tensor  # of the value, in the units that the model learns it in
    begun: Tensor  # like log_prob, by the policy that the update begins with


class Memory(NamedTuple):
    """What a model with a memory needs besides, for it is asked about whole pieces."""

    state: Tensor  # [B, S]
    begins: Tensor  # [T, B]
    valid: Tensor  # [T, B]


class Lesson(NamedTuple):
    """Observations, and what is to be learnt of each.

    Without `memory` everything is rows, in any order.  With it everything is [T, B], and is
    cut along B alone.
    """

    obs: Tensor
    rows: Rows
    memory: Memory | None = None

    def parts(self, count: int, random: torch.Generator) -> Iterator["Lesson"]:
        """Cuts it into `count` parts at random, of the same size within one; none is empty."""
        rows = self.obs.shape[0 if self.memory is None else 1]
        order = torch.randperm(rows, generator=random).to(self.obs.device)
        parts = order.tensor_split(min(count, rows))
        if self.memory is None:
            for which in parts:
                yield Lesson(self.obs[which], Rows(*(part[which] for part in self.rows)))
            return
        state, begins, valid = self.memory
        for which in parts:
            yield Lesson(
                self.obs[:, which],
                Rows(*(part[:, which] for part in self.rows)),
                Memory(state[which], begins[:, which], valid[:, which]),
            )

    def over(self, epochs: int, minibatches: int, random: torch.Generator) -> Iterator["Lesson"]:
        """What each step is of that goes over it several times, in parts of their own each time."""
        for _ in range(epochs):
            yield from self.parts(minibatches, random) if minibatches > 1 else [self]

    @property
    def flat_obs(self) -> Tensor:
        """The observations in one row."""
        return self.obs if self.memory is None else self.obs.flatten(0, 1)

    @property
    def experience(self) -> Rows:
        """The rows that are experience, in the order of `ask`."""
        if self.memory is None:
            return self.rows
        return Rows(*(part[self.memory.valid] for part in self.rows))

    def ask(self, model: Callable[..., Any]) -> tuple[Tensor, Tensor, Rows]:
        """Asks a model: policy [rows, outputs], value [rows], and the rows that they are of."""
        if self.memory is None:
            policy, value = model(self.obs)
            return policy.float(), value.float(), self.rows
        state, begins, valid = self.memory
        policy, value, _ = model(self.obs, state, begins)
        return policy[valid].float(), value[valid].float(), self.experience


def join(lessons: Sequence[Lesson]) -> Lesson:
    """Several lessons of the same kind as one."""
    if len(lessons) == 1:
        return lessons[0]
    along = 0 if lessons[0].memory is None else 1
    rows = zip(*(lesson.rows for lesson in lessons), strict=True)
    obs = torch.cat([lesson.obs for lesson in lessons], along)
    joined = Lesson(obs, Rows(*(torch.cat(parts, along) for parts in rows)))
    if along == 0:
        return joined
    state, begins, valid = zip(*(one.memory for one in lessons if one.memory), strict=True)
    return joined._replace(
        memory=Memory(torch.cat(state), torch.cat(begins, 1), torch.cat(valid, 1))
    )


class Losses(NamedTuple):
    """What is minimised, and how far the policy is from the one that the update began with."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


class Done(NamedTuple):
    """A step that was taken: its losses, and the norm of its gradient."""

    losses: Losses
    norm: Tensor


# Of policy [rows, outputs], value [rows], rows, config, weight of the entropy, actions.
ComputeLosses = Callable[[Tensor, Tensor, Rows, Any, float, Actions], Losses]
# Of learner, batch, and what the newest parameters say of it: log-probability of the actions
# [T, B], value [T + 1, B].
Correct = Callable[["Learner", Batch, Tensor, Tensor], Lesson]


class Learner:
    """See the module's docstring.  `version` is how often it was updated."""

    def __init__(self, config: Common, model: nn.Module, actions: Actions):
        self.config = config
        self.actions = actions
        self.device = device_of(config.device)
        self.model = model.to(self.device).train()
        self.computes_in = precision.of(config.precision, model, self.device)
        self.version = 0
        self.rate = config.learning_rate
        self.entropy_coef = config.entropy_coef
        self.random = torch.Generator().manual_seed(config.seed)
        self.scale = Scale()
        self.about: list[str] = []  # what a run says of it at the start
        self._clipped: list[float] = []  # a share of rewards for each trajectory that was taken
        self.network: Callable[..., Any] = self.model
        if config.compile:
            graphs = self.device.type == "cuda" and not networks.is_recurrent(model)
            self.network = torch.compile(model, mode="reduce-overhead" if graphs else "default")

    @functools.cached_property
    def optimizer(self) -> torch.optim.Adam:
        """Made by the first step, since the first of a process takes a second of imports: who
        computes gradients for others takes no step."""
        rate = self.config.learning_rate
        return torch.optim.Adam(self.model.parameters(), lr=rate, eps=1e-5, fused=True)

    def take(self, trajectory: Trajectory) -> Batch:
        """Brings a trajectory to the device.  Its observations are counted into the model's
        statistics only when the update is over: until then the model is the one that acted."""
        reward = self._on_device(trajectory.reward)
        if bound := self.config.clips_rewards_at:
            reward = reward.clamp(-bound, bound)
            self._clipped.append(reward_clipping.share(trajectory.reward, trajectory.valid, bound))
        return Batch(
            obs=self._on_device(trajectory.obs),
            action=self._on_device(trajectory.action),
            log_prob=self._on_device(trajectory.log_prob),
            reward=reward,
            discount=self.config.gamma * ~self._on_device(trajectory.terminated),
            valid=self._on_device(trajectory.valid),
            begins=self._on_device(trajectory.begins),
            value=self.unscaled(self._on_device(trajectory.value)),
            state=self._on_device(trajectory.state),
        )

    def follow(self, env_steps: int) -> None:
        """Sets rate and entropy weight to what the schedule says after so many steps."""
        config = self.config
        done = config.progress(env_steps)
        self.entropy_coef = config.entropy_coef + done * (
            config.entropy_coef_end - config.entropy_coef
        )
        if not config.target_kl:
            self.rate = config.learning_rate_at(env_steps)

    def look(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Asks the newest parameters about a batch: policy [T + 1, B, outputs], and value
        [T + 1, B] in the units that the model learns it in."""
        with self.precision():
            policy, value, _ = networks.unroll(self.network, batch.obs, batch.state, batch.begins)
        return policy.float(), value.float()

    def unscaled(self, value: Tensor) -> Tensor:
        """Values as the model gives them, in the units of rewards."""
        return value * self.scale.deviation + self.scale.mean

    def lesson(
        self,
        batch: Batch,
        log_prob: Tensor,
        target: Targets,
        weight: Tensor | None = None,
        begun: Tensor | None = None,
    ) -> Lesson:
        """What is to be learnt of the rows that are experience.

        `weight` [T, B] is of each row's advantage, once that is scaled.  `begun` [T, B] is by the
        policy that the update begins with, where `log_prob` is by another.
        """
        valid = batch.valid
        value, advantage = target
        if self.config.normalize_advantage:
            known = advantage[valid]
            advantage = (advantage - known.mean()) / (known.std(correction=0) + 1e-6)
        if weight is not None:
            advantage = advantage * weight
        if self.config.normalizes_values:
            self.scale.count_in(value[valid])
            value = (value - self.scale.mean) / self.scale.deviation
        begun = log_prob if begun is None else begun
        rows = Rows(batch.action, log_prob, advantage, value, begun)
        if networks.is_recurrent(self.model):
            return Lesson(batch.obs[:-1], rows, Memory(batch.state, batch.begins[:-1], valid))
        return Lesson(batch.obs[:-1][valid], Rows(*(part[valid] for part in rows)))

    def on_policy(self, trajectory: Trajectory, decoupled: bool = False) -> Lesson:
        """What a trajectory teaches that the policy itself has sampled, or one hardly older: GAE
        by the values that were found in acting.

        With `decoupled`, if one older has sampled it, a loss's ratio is to the policy that the
        update begins with, and each advantage is weighed by that one's ratio to the one that acted,
        up to RHO_BAR (Hilton et al. 2021, https://arxiv.org/abs/2110.00641, without the bound).
        """
        batch = self.take(trajectory)
        target = returns.gae(
            batch.reward,
            batch.discount,
            batch.value,
            valid=batch.valid,
            gae_lambda=self.config.gae_lambda,
        )
        is_older = bool((trajectory.version != self.version).any())
        if not is_older or not (decoupled or self.config.target_kl):
            return self.lesson(batch, batch.log_prob, target)
        with torch.no_grad():
            begun = self.actions.log_prob(self.look(batch)[0][:-1], batch.action)
        if not decoupled:
            return self.lesson(batch, batch.log_prob, target, begun=begun)
        rho = (begun - batch.log_prob).exp().clamp(max=RHO_BAR)
        return self.lesson(batch, begun, target, weight=rho)

    def learn(
        self, lesson: Lesson, compute_losses: ComputeLosses, epochs: int = 1, minibatches: int = 1
    ) -> dict[str, float]:
        """Goes over a lesson, a step for each minibatch; returns the numbers of a metrics row.

        Raises LearnerLost if the losses are no numbers any more, or the GPU is gone.
        """
        with self._gpu():
            done = self._go_over(lesson, compute_losses, epochs, minibatches)
            return self._finish(done, lesson.flat_obs, len(done) // epochs)

    def learn_corrected(
        self,
        batches: Sequence[Batch],
        correct: Correct,
        compute_losses: ComputeLosses,
        epochs: int = 1,
        minibatches: int = 1,
    ) -> dict[str, float]:
        """Like `learn`, of batches by an older policy, which the newest parameters correct.

        The first batch is new.  The others were learnt from before, and their observations are in
        the statistics already.

        Without minibatches the first pass asks the network once, for targets and gradients
        both.  With them it is asked for targets alone first: a minibatch is of rows from
        everywhere in all batches, for steps of a few whole pieces each are led astray by
        what these few have in common.
        """
        done: list[Done] = []
        lessons: list[Lesson] = []
        with self._gpu():
            for batch in batches:
                with torch.set_grad_enabled(minibatches == 1):
                    policy, value = self.look(batch)
                policy, valid = policy[:-1], batch.valid
                log_prob = self.actions.log_prob(policy.detach(), batch.action)
                lesson = correct(self, batch, log_prob, self.unscaled(value.detach()))
                lessons.append(lesson)
                if minibatches == 1:
                    losses = self._losses(
                        policy[valid], value[:-1][valid], lesson.experience, compute_losses
                    )
                    done.append(self._descend(losses))
            lesson, count = join(lessons), minibatches * len(lessons)
            left = epochs - 1 if minibatches == 1 else epochs
            done += self._go_over(lesson, compute_losses, left, count)
            return self._finish(done, lessons[0].flat_obs, count)

    def losses(self, lesson: Lesson, compute_losses: ComputeLosses) -> Losses:
        """The losses of a lesson, by the model as it is."""
        with self.precision():
            policy, value, rows = lesson.ask(self.network)
        return self._losses(policy, value, rows, compute_losses)

    def gradient(
        self, lesson: Lesson, compute_losses: ComputeLosses, model: nn.Module
    ) -> tuple[Losses, Sequence[Tensor | None]]:
        """The losses of a lesson and their gradients, by a copy of the model."""
        with self._gpu():
            with self.precision():
                policy, value, rows = lesson.ask(model)
            losses = self._losses(policy, value, rows, compute_losses)
            parameters = list(model.parameters())
            gradients = torch.autograd.grad(losses.total, parameters, allow_unused=True)
        return Losses(*(part.detach() for part in losses)), gradients

    def apply(self, losses: Losses, gradients: Sequence[Tensor | None]) -> Done:
        """Takes a step by gradients from elsewhere."""
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        with self._gpu():
            return Done(losses, self._step())

    def finish(self, done: Sequence[Done], lesson: Lesson, minibatches: int) -> dict[str, float]:
        """Ends an update of these steps, in so many parts; returns the numbers of a metrics row.

        Raises LearnerLost if the losses are no numbers any more, or the GPU is gone.
        """
        with self._gpu():
            return self._finish(done, lesson.flat_obs, minibatches)

    def _go_over(
        self, lesson: Lesson, compute_losses: ComputeLosses, epochs: int, minibatches: int
    ) -> list[Done]:
        return [
            self._descend(self.losses(part, compute_losses))
            for part in lesson.over(epochs, minibatches, self.random)
        ]

    def _losses(
        self, policy: Tensor, value: Tensor, rows: Rows, compute_losses: ComputeLosses
    ) -> Losses:
        return compute_losses(policy, value, rows, self.config, self.entropy_coef, self.actions)

    def _descend(self, losses: Losses) -> Done:
        self.optimizer.zero_grad()
        losses.total.backward()  # type: ignore[no-untyped-call]
        return Done(Losses(*(part.detach() for part in losses)), self._step())

    def _step(self) -> Tensor:
        bound = self.config.max_grad_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), bound)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.step()
        return norm

    def _finish(self, done: Sequence[Done], obs: Tensor, minibatches: int) -> dict[str, float]:
        seen = [one.losses for one in done]
        means = torch.stack([torch.stack(part).mean() for part in zip(*seen, strict=True)])
        _, policy, value, entropy, _ = means.tolist()
        norm = float(torch.stack([one.norm for one in done]).mean())
        moved = float(torch.stack([losses.kl for losses in seen[-minibatches:]]).mean())
        self.version += 1
        if not all(map(math.isfinite, (policy, value, entropy, norm))):
            raise LearnerLost(
                f"update {self.version} diverged: policy loss {policy:g}, value loss {value:g},"
                f" gradient norm {norm:g}.  Lower learning_rate or max_grad_norm, or look for"
                " rewards or observations that are no numbers"
            )
        numbers = {
            "train/policy_loss": policy,
            "train/value_loss": value,
            "train/entropy": entropy,
            "train/approx_kl": moved,
            "train/grad_norm": norm,
            "train/learning_rate": self.rate,
        }
        numbers |= self.pop_clipped()
        if self.config.target_kl:
            self.rate = steered(self.rate, moved, self.config)
        networks.update_normalizers(self.model, obs)
        return numbers

    def pop_clipped(self) -> dict[str, float]:
        """For a metrics row: which part of the rewards taken since was clipped, if any could be."""
        shares, self._clipped = self._clipped, []
        return {"train/rewards_clipped": sum(shares) / len(shares)} if shares else {}

    @contextmanager
    def _gpu(self) -> Iterator[None]:
        try:
            yield
        except torch.AcceleratorError as error:
            raise LearnerLost(f"the GPU is gone: {str(error).splitlines()[0]}") from error

    def parameters(self) -> Parameters:
        """What actors are sent."""
        return Parameters(self.version, networks.state_of(self.model))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "version": self.version,
            "rate": self.rate,
            "rate_given": self.config.learning_rate,
            "scale": list(self.scale.moments),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": self.random.get_state(),
            # What dropout on a GPU draws from; nothing of the library's own does.
            "cuda_random": torch.cuda.get_rng_state(self.device) if self._is_on_gpu else None,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        self.version = state["version"]
        if state["rate_given"] == self.config.learning_rate:  # else it begins with the new one
            self.rate = state["rate"]
        self.scale = Scale(*state["scale"])
        self.model.load_state_dict(state["model"])
        # Torch would keep the tensors that it is given, and Adam writes into them.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.random.set_state(state["random"])
        if self._is_on_gpu and state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"], self.device)

    def precision(self) -> AbstractContextManager[Any]:
        """Within it, networks compute in the numbers that the config asks for."""
        return precision.computing(self.computes_in, self.device)

    @property
    def _is_on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def _on_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def steered(rate: float, moved: float, config: Common) -> float:
    """The learning rate for the next update, after one that moved the policy by `moved` nats.

    Up if that was less than half of `target_kl`, down if more than twice; never above
    `learning_rate` times 4, nor below where the schedule would end, over 10.
    """
    if moved > 2 * config.target_kl:
        return max(rate / STEER, config.learning_rate_ends_at * BELOW)
    if moved < config.target_kl / 2:
        return min(rate * STEER, config.learning_rate * ABOVE)
    return rate
