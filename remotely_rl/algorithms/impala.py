"""IMPALA: actors that run free, and a learner that corrects for their being behind.

Espeholt et al. 2018, https://arxiv.org/abs/1802.01561; equation and section numbers are
theirs.  Tensors are [T, B] or, once the order of time no longer matters, [rows].

An update has two halves.  `targets` asks the newest parameters about the whole batch and
lets V-trace tell what each observation was worth and how much better each action was than
that (section 4).  `compute_losses` then moves the network, in one or several passes.

The paper makes one pass and one step, with summed losses; in that way the policy hardly
moves in the first million steps of Pong.  By default this learner makes several passes in
minibatches over standardised advantages, and holds the policy near the one that the update
began with: V-trace corrects for the actors' policy being older, `clip` for the learner's
own becoming newer.  `passes=1, minibatches=1, standardise=False, trace_decay=1` is the
paper's learner, but for means where it has sums: with one step a clip has no effect.
"""

import copy
import dataclasses
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import remotely
from remotely_rl import environments, losses, models, returns, sampler, training
from remotely_rl.environments import Atari, Source
from remotely_rl.errors import TrainingError
from remotely_rl.sampler import Parameters, Rollout, Sampler
from remotely_rl.trajectory import Trajectory, stack


@dataclasses.dataclass(frozen=True)
class Config:
    """All that can be set.  The prose is the help of `remotely-rl train impala`."""

    env: Annotated[Source, "Gymnasium id, or a callable that makes environments"] = "ALE/Pong-v5"
    actors: Annotated[int, "processes that sample"] = 2
    envs_per_actor: Annotated[int, "environments that each actor steps together"] = 16
    steps: Annotated[int, "stop after so many environment steps in all; 0: no limit"] = 0
    minutes: Annotated[float, "stop after so many minutes in all; 0: no limit"] = 0.0
    target: Annotated[float | None, "stop when the mean return reaches this"] = None
    seed: Annotated[int, "where all random streams begin"] = 1

    trajectory_steps: Annotated[int, "T, steps of each environment in a trajectory"] = 64
    batch_trajectories: Annotated[int, "trajectories that an update learns from"] = 2
    ahead: Annotated[int, "trajectories that an actor may sample before one is learnt"] = 1
    passes: Annotated[int, "times that an update goes over its batch"] = 3
    minibatches: Annotated[int, "parts of the batch, with a step each"] = 8

    gamma: Annotated[float, "discount of a reward one step later"] = 0.98
    trace_decay: Annotated[float, "lambda of V-trace; 1 is the paper's"] = 0.95
    rho_bar: Annotated[float, "clip of V-trace's rho, for values"] = 1.0
    c_bar: Annotated[float, "clip of V-trace's c, at most rho_bar"] = 1.0
    rho_bar_pg: Annotated[float, "clip of V-trace's rho, for the policy"] = 1.0
    clip: Annotated[float, "how far an update may change an action's probability, in parts"] = 0.2
    standardise: Annotated[bool, "scale advantages to mean 0 and deviation 1"] = True
    reward_clip: Annotated[float, "clip of rewards in the learner; 0: none"] = 1.0

    learning_rate: Annotated[float, "Adam's, at the start"] = 3e-4
    learning_rate_end: Annotated[float, "Adam's, after decay_steps, without kl_target"] = 1e-4
    kl_target: Annotated[float, "steer the rate so that an update moves so far; 0: decay"] = 0.01
    entropy: Annotated[float, "weight of the policy's entropy, at the start"] = 0.01
    entropy_end: Annotated[float, "weight of the policy's entropy, after decay_steps"] = 0.001
    decay_steps: Annotated[int, "environment steps over which both change, linearly"] = 1_000_000
    value_weight: Annotated[float, "weight of the value's loss"] = 0.5
    max_grad_norm: Annotated[float, "bound of the gradient's norm over all parameters"] = 0.5

    image_size: Annotated[int, "Atari: height and width of the image, 84 or 42"] = 42
    sticky_actions: Annotated[float, "Atari: chance that the action before is repeated"] = 0.0
    life_loss_is_terminal: Annotated[bool, "Atari: a lost life ends the episode"] = False

    learner_threads: Annotated[int, "torch threads of the learner; 0: cores less actors"] = 0
    interval_s: Annotated[float, "seconds between rows of metrics"] = 5.0
    checkpoint_s: Annotated[float, "seconds between checkpoints"] = 30.0

    def __post_init__(self) -> None:
        for name in ("actors", "envs_per_actor", "trajectory_steps", "batch_trajectories",
                     "ahead", "passes", "minibatches", "decay_steps"):  # fmt: skip
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.clip <= 0:
            raise TrainingError(f"clip must be above 0, not {self.clip}")
        if self.rho_bar < self.c_bar:
            raise TrainingError(f"rho_bar ({self.rho_bar}) must be at least c_bar ({self.c_bar})")

    @property
    def atari(self) -> Atari:
        return Atari(self.image_size, self.sticky_actions, self.life_loss_is_terminal)


class Rows(NamedTuple):
    """Experience in no particular order, with what V-trace made of it.  [rows, ...] each."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor  # of the action, by the policy that the update began with
    advantage: Tensor
    target: Tensor

    def of(self, which: Tensor) -> "Rows":
        """Some of the rows."""
        return Rows(*(part[which] for part in self))


class Losses(NamedTuple):
    """What is minimised, and how far the policy is from the one that the update began with."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor


@torch.no_grad()
def targets(model: nn.Module, trajectory: Trajectory, config: Config) -> Rows:
    """V-trace by the newest parameters (equation 1, section 4.2).  Keeps the valid rows."""
    obs = torch.from_numpy(trajectory.obs)
    action = torch.from_numpy(trajectory.action)
    reward = torch.from_numpy(trajectory.reward)
    valid = torch.from_numpy(trajectory.valid)
    if config.reward_clip:
        reward = reward.clamp(-config.reward_clip, config.reward_clip)
    # In pieces: one [T * B] batch of images would not stay in the cache.
    pieces = [model(piece) for piece in torch.split(obs.flatten(0, 1), 256)]
    logits, value = (torch.cat(part) for part in zip(*pieces, strict=True))
    logits, value = logits.view(*obs.shape[:2], -1), value.view(obs.shape[:2])
    log_prob = losses.log_prob_of(logits[:-1], action)
    corrected = returns.v_trace(
        log_prob - torch.from_numpy(trajectory.log_prob),
        reward,
        config.gamma * ~torch.from_numpy(trajectory.terminated),
        value,
        valid=valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        rho_bar_pg=config.rho_bar_pg,
        trace_decay=config.trace_decay,
    )
    advantage = corrected.advantage[valid]
    if config.standardise:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-6)
    return Rows(obs[:-1][valid], action[valid], log_prob[valid], advantage, corrected.value[valid])


def compute_losses(model: nn.Module, rows: Rows, config: Config, entropy_weight: float) -> Losses:
    """Section 4.2's three parts; the first as a surrogate whose gradient is theirs at first."""
    logits, value = model(rows.obs)
    log_ratio = losses.log_prob_of(logits, rows.action) - rows.log_prob
    policy = losses.clipped_surrogate(log_ratio, rows.advantage, config.clip)
    distance = losses.squared_error(value, rows.target)
    entropy = losses.entropy_of(logits).mean()
    total = policy + config.value_weight * distance - entropy_weight * entropy
    return Losses(total, policy, distance, entropy, losses.kl_estimate(log_ratio))


def steered(rate: float, moved: float, config: Config) -> float:
    """The learning rate for the next update, after one that moved the policy by `moved` nats.

    Up if that was less than half of `kl_target`, down if more than twice; never above
    `learning_rate` times 4, nor below `learning_rate_end` over 10.
    """
    if moved > 2 * config.kl_target:
        return max(rate / 1.5, config.learning_rate_end / 10)
    if moved < config.kl_target / 2:
        return min(rate * 1.5, config.learning_rate * 4)
    return rate


def _mean(tensors: Iterable[Tensor]) -> float:
    return float(torch.stack(list(tensors)).mean())


class Learner:
    """The model, its optimiser, and how often it was updated (`version`)."""

    def __init__(self, config: Config, model: nn.Module):
        self.config = config
        self.model = model.train()
        self.version = 0
        self.rate = config.learning_rate
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.learning_rate, eps=1e-5)

    def update(self, trajectory: Trajectory, env_steps: int) -> dict[str, float]:
        """Learns from one batch, all passes; `env_steps` so far set rate and entropy.

        Returns the numbers of a metrics row, means over the update's steps.
        """
        config = self.config
        done = min(1.0, env_steps / config.decay_steps)
        entropy_weight = config.entropy + done * (config.entropy_end - config.entropy)
        if not config.kl_target:
            self.rate = config.learning_rate * (1 - done) + config.learning_rate_end * done
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate

        rows = targets(self.model, trajectory, config)
        seen: list[Losses] = []
        norms: list[Tensor] = []
        for _ in range(config.passes):
            for part in torch.randperm(len(rows.action)).chunk(config.minibatches):
                parts = compute_losses(self.model, rows.of(part), config, entropy_weight)
                self.optimizer.zero_grad()
                parts.total.backward()  # type: ignore[no-untyped-call]
                norms.append(
                    nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm)
                )
                self.optimizer.step()
                seen.append(Losses(*(part.detach() for part in parts)))
        self.version += 1
        moved = float(torch.stack([parts.kl for parts in seen[-config.minibatches :]]).mean())
        numbers = {
            "loss_policy": _mean(parts.policy for parts in seen),
            "loss_value": _mean(parts.value for parts in seen),
            "entropy": _mean(parts.entropy for parts in seen),
            "kl": moved,
            "gradient_norm": _mean(norms),
            "learning_rate": self.rate,
        }
        if config.kl_target:
            self.rate = steered(self.rate, moved, config)
        return numbers

    def parameters(self) -> Parameters:
        """What actors are sent."""
        return Parameters(self.version, models.state_of(self.model))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "version": self.version,
            "rate": self.rate,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        self.version = state["version"]
        self.rate = state["rate"]
        self.model.load_state_dict(state["model"])
        # Torch would keep the tensors that it is given, and Adam writes into them.
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


@remotely.remote_class
class Actor:
    """Steps its environments with the newest parameters that it was sent."""

    def __init__(self, config: Config, model: nn.Module, seed: int):
        torch.set_num_threads(1)
        self.config = config
        self.version = 0
        self.model = copy.deepcopy(model).eval()  # in REMOTELY_LOCAL it is the learner's own
        self.random = torch.Generator().manual_seed(seed)
        self.envs = environments.make(config.env, config.envs_per_actor, config.atari)
        self.obs = self.envs.reset(seed)
        self.left_off = time.perf_counter()

    def set_param(self, params: Parameters) -> None:
        """Acts by these parameters from now on."""
        models.load_state(self.model, params.state)
        self.version = params.version

    def sample(self) -> Rollout:
        """Takes T steps in each environment, from where the call before left off."""
        began = time.perf_counter()
        inference = 0.0
        obs, rows = [self.obs], []
        for _ in range(self.config.trajectory_steps):
            start = time.perf_counter()
            action, log_prob = self.act(self.obs)
            inference += time.perf_counter() - start
            self.obs, *outcome = self.envs.step(action)
            obs.append(self.obs)
            rows.append((action, log_prob, *outcome))
        trajectory = Trajectory.of(obs, rows, self.version)
        ended = time.perf_counter()
        seconds = {
            "inference": inference,
            "environment": ended - began - inference,
            "idle": began - self.left_off,
        }
        self.left_off = ended
        return Rollout(trajectory, self.envs.pop_episodes(), seconds)

    @torch.inference_mode()
    def act(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws an action [B] for each observation; returns it and its log-probability."""
        logits, _ = self.model(torch.from_numpy(obs))
        log_prob = torch.log_softmax(logits, -1)
        # The first of exponential clocks with these rates: one draw from the policy.
        clocks = torch.empty_like(log_prob).exponential_(generator=self.random)
        action = (log_prob - clocks.log()).argmax(-1)
        return action.numpy(), log_prob.gather(-1, action[:, None]).squeeze(-1).numpy()

    def close(self) -> None:
        """Ends the environments."""
        self.envs.close()


def train(
    config: Config | None = None,
    model: models.Maker | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `model` is a class or function of `(observation_shape, action_count)`, or a module; the
    network that fits the observations if left out.  The run is kept in folder `run`, a new
    one under runs/ if left out; `resume` goes on with an earlier run's folder, by its config
    if none is given.  Uses the cluster that is connected, else an embedded one.  Raises
    TrainingError for what can be told in a sentence.
    """
    if config is None:
        config = Config() if resume is None else training.config_of(Config, "impala", resume)
    torch.manual_seed(config.seed)
    probe = environments.make(config.env, 1, config.atari)
    dtype = probe.reset(config.seed).dtype
    network = models.build(model, probe.observation_shape, dtype, probe.action_count)
    probe.close()

    with training.begin("impala", config, run, resume) as session:
        learner = Learner(config, network)
        session.restore(learner)
        sampler.connect(config.actors)
        torch.set_num_threads(training.learner_threads(config.learner_threads, config.actors))

        def hire(number: int) -> Actor:
            # No two actors share a seed: not a replacement's, nor those after a resume.
            stream = np.random.SeedSequence([config.seed, session.times_resumed, number])
            return Actor(config, learner.model, int(stream.generate_state(1)[0]) >> 1)

        start_with = learner.parameters()
        with closing(Sampler(hire, config.actors, config.ahead, start_with, session.say)) as actors:
            batch: list[Trajectory] = []
            while not session.over():
                session.tick()
                start = time.perf_counter()
                rollout = actors.take(timeout_s=0.5)
                session.tally.spent("waiting", time.perf_counter() - start)
                if rollout is None:
                    continue
                steps = int(rollout.trajectory.valid.sum())
                session.tally.sampled(steps, rollout.episodes, rollout.seconds)
                if steps:  # one of reset rows alone teaches nothing
                    batch.append(rollout.trajectory)
                if len(batch) < config.batch_trajectories:
                    continue
                start = time.perf_counter()
                staleness = [learner.version - int(one.version[0]) for one in batch]
                numbers = learner.update(stack(batch), session.tally.counters.env_steps)
                actors.publish(learner.parameters())
                batch.clear()
                session.tally.learnt(numbers, staleness)
                session.tally.spent("learning", time.perf_counter() - start)
    return session.result
