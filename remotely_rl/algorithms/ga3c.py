"""GA3C: agents without a model, one that answers and learns for all of them.

Babaeizadeh et al. 2017, https://arxiv.org/abs/1611.06256.

    Agent   steps its environments; asks the Brain what to do, and tells it what came of it
    Brain   the one model: predictors answer requests, many at once (`remotely.batched`);
            trainers eat the agents' experience, some of it at a time

By the time that an action is learnt from, the model may have changed.  That policy lag is
measured, in updates.  What bounds it is that nothing is piled up: an agent plays on once a
trainer, or the one place of the queue, has what it tells, so an update meets what was played
while the one or two before it were computed.

The paper learns from everything once, by the plain policy gradient, in which an action that
the policy has meanwhile given up would dominate; so no logarithm of a probability is let below
that of `probability_floor` (the paper adds a constant to it).  On Pong that took 1.2 million
steps to win half of the points.  Here an update goes over its batch several times (`epochs`,
`minibatches`), and PPO's clipped ratio to the policy that acted bounds both, the passes and
the lag.  `--epochs 1 --minibatches 1 --clip-range 0 --no-normalize-advantage --target-kl 0
--gae-lambda 1 --rollout-steps 8 --train-rows 256 --entropy-coef 0.004` is nearest to
the paper's way, by Adam and with means in place of sums.

Where it differs from the paper and the authors' code, besides:

    an agent steps 8 environments together, 32 steps each; theirs has one, and 5
    a trainer waits for 1,024 steps; theirs takes what one agent brings, unless told otherwise
    losses are means and Adam's rate is steered; theirs are sums, by RMSProp at 3e-4
    advantages are standardised, and the gradient's norm is bounded
    entropy's weight falls from 0.01 to 0.001; theirs is 0.01
    the reward of an episode's last step counts; in their code it is lost
    an episode that was truncated bootstraps, and the input is normalized
    values are learnt in units of their own deviation where rewards are not clipped

A trainer computes on a copy of the parameters and applies its gradients to the shared ones
under a lock, so several may compute at once; a predictor reads them as they are, in the
middle of an update too.  The numbers of agents, predictors and trainers are tried out by the
rate of training that they give (`tuner.py`), unless `adjust_s` is 0.
"""

import copy
import dataclasses
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import remotely
from remotely_rl import networks
from remotely_rl.acting import failures
from remotely_rl.acting.failures import LOST
from remotely_rl.acting.player import AgentOutput, Player
from remotely_rl.acting.samplers import Samplers
from remotely_rl.acting.stream import Stream
from remotely_rl.config import SeveralEpochs
from remotely_rl.environments import Episode
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.trajectory import Trajectory, stack
from remotely_rl.functions import losses
from remotely_rl.learning.learner import Done, Learner, Losses, Rows
from remotely_rl.learning.semaphore import ResizableSemaphore
from remotely_rl.learning.tuner import Tuner
from remotely_rl.runs import training
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE

QUEUED = 1  # trajectories that wait for a trainer; then agents wait, for what waits grows old
THREADS = 64  # of the Brain, for requests and for agents that wait
WARM_UP_S = 10.0  # before counts are tried out


@dataclasses.dataclass(frozen=True)
class Config(SeveralEpochs):
    """All that can be set.  The prose is the help of `remotely-rl train ga3c`."""

    actors: Annotated[int, "agents, at the start", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each agent steps together", COUNT] = 8
    predictors: Annotated[int, "threads that answer agents, at the start", COUNT] = 1
    trainers: Annotated[int, "threads that learn, at the start", COUNT] = 1
    adjust_s: Annotated[
        float, "seconds for which a change of these numbers is tried; 0: none is", NOT_NEGATIVE
    ] = 0.0
    most_agents: Annotated[int, "agents, at most, when numbers are adjusted", COUNT] = 16
    predict_requests: Annotated[int, "requests that a predictor waits for", COUNT] = 2
    predict_wait_ms: Annotated[
        float, "milliseconds after which it answers those that are there", NOT_NEGATIVE
    ] = 2.0
    train_rows: Annotated[int, "steps of experience that a trainer waits for", COUNT] = 1024
    clip_range: Annotated[
        float,
        "how far from the policy that acted an action may get, in parts; 0: the policy gradient",
        NOT_NEGATIVE,
    ] = 0.2
    probability_floor: Annotated[
        float, "without clip, no action counts as less probable than this", FRACTION
    ] = 1e-6

    # Long enough for a return, short enough not to grow old.
    rollout_steps: Annotated[int, "T, steps of each environment in a trajectory", COUNT] = 32

    @property
    def most(self) -> int:
        """Agents, at most."""
        return max(self.actors, self.most_agents) if self.adjust_s else self.actors

    @property
    def processes(self) -> int:
        return self.most + 1  # the Brain

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        if networks.is_recurrent(model):
            raise TrainingError("GA3C's agents hold no memory; for an LSTM take a2c, ppo or impala")


def compute_losses(
    policy: Tensor, value: Tensor, rows: Rows, config: Config, entropy_coef: float,
    actions: Actions,
) -> Losses:  # fmt: skip
    """PPO's clipped surrogate or the policy gradient with a floor; the value's error, the
    policy's entropy."""
    log_prob = actions.log_prob(policy, rows.action)
    if config.clip_range:
        gradient = losses.clipped_surrogate(
            log_prob - rows.log_prob, rows.advantage, config.clip_range
        )
    else:
        floor = config.probability_floor
        floored = log_prob.clamp(min=math.log(floor)) if floor else log_prob
        gradient = losses.policy_gradient(floored, rows.advantage)
    error = losses.squared_error(value, rows.target)
    entropy = actions.entropy(policy).mean()
    total = gradient + config.value_coef * error - entropy_coef * entropy
    return Losses(total, gradient, error, entropy, losses.kl_estimate(log_prob - rows.begun))


class Answer(NamedTuple):
    """What a predictor says of [B] observations."""

    policy: NDArray[np.float32]  # [B, outputs]
    value: NDArray[np.float32]  # [B]
    version: int  # of the parameters


class Played(NamedTuple):
    """What an agent tells whoever counts."""

    steps: int
    episodes: list[Episode]
    seconds: dict[str, float]


class Report(NamedTuple):
    """What the Brain has done since the report before."""

    updates: list[tuple[dict[str, float], list[int]]]  # numbers of a row, staleness
    seconds: dict[str, float]
    requests: int
    batches: int


class _Brain:
    """The one model.  Made remote by `brain_of`."""

    def __init__(self, config: Config, model: nn.Module, actions: Actions):
        torch.set_num_threads(config.learner_threads or 1)
        self.config = config
        self.learner = Learner(config, model, actions)
        self.env_steps = 0
        self.acting = copy.deepcopy(self.learner.model).eval()  # the same tensors, another mode
        _share(self.learner.model, self.acting)
        self._lock = threading.Lock()  # of the shared parameters
        self._queue: queue.Queue[Trajectory] = queue.Queue(QUEUED)
        self._eating = threading.Lock()  # who gathers a batch gathers it alone
        self._predicting = ResizableSemaphore(config.predictors)
        self._trainers: list[threading.Event] = []
        self._report = Report([], {"inference": 0.0, "learning": 0.0}, 0, 0)
        self._failed: Exception | None = None
        self.resize(config.predictors, config.trainers)

    def predict(self, requests: Sequence[NDArray[Any]]) -> list[Answer]:
        """Answers several agents at once: observations [B, ...] of each."""
        with self._predicting:
            began = time.perf_counter()
            version = self.learner.version
            obs = torch.from_numpy(np.concatenate(requests)).to(self.learner.device)
            with torch.inference_mode(), self.learner.precision():
                policy, value = self.acting(obs)
            sizes = [len(request) for request in requests]
            parts = zip(
                torch.split(policy.float().cpu(), sizes),
                torch.split(value.float().cpu(), sizes),
                strict=True,
            )
            answers = [Answer(p.numpy(), v.numpy(), version) for p, v in parts]
            with self._lock:
                self._report.seconds["inference"] += time.perf_counter() - began
                self._report = self._report._replace(
                    requests=self._report.requests + len(requests),
                    batches=self._report.batches + 1,
                )
            return answers

    def learn_from(self, trajectory: Trajectory) -> None:
        """Takes experience; returns when there is room for it."""
        while self._failed is None:
            try:
                self._queue.put(trajectory, timeout=1.0)
            except queue.Full:
                continue
            return

    def report(self, env_steps: int) -> Report:
        """What has been done since the call before; `env_steps` so far set rate and entropy.

        Raises what a trainer raised.
        """
        self.env_steps = env_steps
        if self._failed is not None:
            raise self._failed
        with self._lock:
            report, self._report = (
                self._report,
                Report([], {"inference": 0.0, "learning": 0.0}, 0, 0),
            )
        return report

    def resize(self, predictors: int, trainers: int) -> None:
        """Has so many of each from here on; what they are at they finish."""
        self._predicting.resize(predictors)
        while len(self._trainers) > trainers:
            self._trainers.pop().set()
        while len(self._trainers) < trainers:
            leave = threading.Event()
            threading.Thread(target=self._train, args=(leave,), daemon=True).start()
            self._trainers.append(leave)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, on the CPU."""
        with self._lock:
            state: dict[str, Any] = _on_cpu(copy.deepcopy(self.learner.state()))
            return state

    def load(self, state: dict[str, Any]) -> None:
        """Goes back to what `state` gave."""
        with self._lock:
            self.learner.load(state)

    def close(self) -> None:
        """Ends the trainers."""
        self.resize(self.config.predictors, 0)

    def _train(self, leave: threading.Event) -> None:
        # A copy each: autograd does not let parameters change between forward and backward.
        model = copy.deepcopy(self.learner.model)
        try:
            while not leave.is_set() and self._failed is None:
                if batch := self._next_batch(leave):
                    self._learn(model, stack(batch))
        except Exception as error:
            self._failed = error

    def _next_batch(self, leave: threading.Event) -> list[Trajectory]:
        batch: list[Trajectory] = []
        rows = 0
        with self._eating:
            while rows < self.config.train_rows:
                try:
                    trajectory = self._queue.get(timeout=0.5)
                except queue.Empty:
                    if leave.is_set():
                        break
                    continue
                if trajectory.valid.any():
                    batch.append(trajectory)
                    rows += int(trajectory.valid.sum())
        return batch

    def _learn(self, model: nn.Module, trajectory: Trajectory) -> None:
        began = time.perf_counter()
        learner, config = self.learner, self.config
        with self._lock:
            learner.follow(self.env_steps)
        lesson = learner.on_policy(trajectory)
        done: list[Done] = []
        for part in lesson.over(config.epochs, config.minibatches, learner.random):
            with self._lock:
                model.load_state_dict(learner.model.state_dict())
            found, gradients = learner.gradient(part, compute_losses, model)
            with self._lock:
                done.append(learner.apply(found, gradients))
        with self._lock:
            staleness = (learner.version - trajectory.version).tolist()
            numbers = learner.finish(done, lesson, config.minibatches)
            self._report.updates.append((numbers, staleness))
            self._report.seconds["learning"] += time.perf_counter() - began


def brain_of(config: Config) -> type[_Brain]:
    """The remote class of the Brain, with the config's batching of requests."""

    class Brain(_Brain):
        predict = remotely.batched(
            max_size=config.predict_requests, wait_ms=config.predict_wait_ms
        )(_Brain.predict)

    return remotely.remote_class(concurrency=THREADS)(Brain)


@remotely.remote_class
class Agent:
    """Plays as the Brain says."""

    def __init__(self, config: Config, brain: _Brain, seed: int, is_replacement: bool = False):
        if is_replacement:
            failures.disable_stack_dumps()
        self.brain = brain
        self.random = torch.Generator().manual_seed(seed)
        self.player = Player(config, seed)
        self.answer: Answer | None = None  # to an observation that was looked at for its value
        self.version = 0

    def sample(self) -> Played:
        """Takes T steps in each environment, and gives the Brain what came of it.

        Returns when the Brain has room for it.
        """
        self.version = -1
        trajectory, seconds = self.player.play(
            self.act, np.empty((len(self.player.obs), 0), np.float32), 0, "waiting"
        )
        trajectory.version[:] = self.version
        start = time.perf_counter()
        self.brain.learn_from(trajectory)
        seconds["waiting"] += time.perf_counter() - start
        self.player.idle_since = time.perf_counter()
        steps = int(trajectory.valid.sum())
        return Played(steps, self.player.envs.pop_episodes(), seconds)

    def act(self, last: bool) -> AgentOutput:
        """Asks the Brain, and draws an action from each of its policies."""
        actions = self.player.envs.actions
        # The answer that told what the last step led to says what to do next, too.
        answer = self.answer or self.ask()
        self.answer = answer if last else None
        if last:
            return AgentOutput(np.empty(0), np.empty(0, np.float32), answer.value)
        if self.version < 0:
            self.version = answer.version
        policy = torch.from_numpy(answer.policy)
        action = actions.sample(policy, self.random)
        log_prob = actions.log_prob(policy, action).numpy()
        return AgentOutput(action.numpy(), log_prob, answer.value)

    def ask(self) -> Answer:
        """One request; it is answered together with other agents'."""
        answer: Answer = self.brain.predict(self.player.obs)  # type: ignore[arg-type, assignment]
        return answer

    def close(self) -> None:
        """Ends the environments."""
        self.player.envs.close()


class FarLearner:
    """The Brain's learner, as a session saves and restores it."""

    def __init__(self, brain: _Brain, model: nn.Module):
        self.brain = brain
        self.model = model

    def state(self) -> dict[str, Any]:
        with _telling_of_its_end():
            return self.brain.state()

    def load(self, state: dict[str, Any]) -> None:
        self.brain.load(state)


def train(
    config: Config | None = None,
    model: networks.ModelSource | None = None,
    *,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> training.Result:
    """Trains until a limit of the config is reached, or Ctrl-C.  Returns how it ended.

    `training.begin` says what the arguments are.  A seed does not repeat a run: who is
    answered with whom is up to the machine.
    """
    with (
        ExitStack() as after,
        training.begin("ga3c", Config, config, model, run, resume) as session,
    ):
        learner = session.learner
        assert isinstance(learner.config, Config)
        config = learner.config
        on_gpu = learner.device.type == "cuda"
        made: Any = remotely.options(brain_of(config), gpus=int(on_gpu))
        brain = made(config, networks.copy_to_cpu(learner.model), learner.actions)
        after.callback(_end, brain)  # once the session has saved what it has learnt
        session.restore(FarLearner(brain, learner.model))

        def hire(number: int) -> Agent:
            return Agent(config, brain, session.stream_of(number), number >= config.actors)

        crew: Samplers[Played] = Samplers(hire, config.actors, None, session.say, over=session.over)
        agents = session.keep(Stream(crew, ahead=2))
        counts = {"agents": config.actors, "predictors": config.predictors,
                  "trainers": config.trainers}  # fmt: skip
        cores = os.cpu_count() or 1
        tuner = Tuner(
            counts, {"agents": config.most, "predictors": cores, "trainers": cores}, config.seed
        )
        window = Window(session.seconds() + WARM_UP_S, config.adjust_s)
        while not session.over():
            if played := agents.take(timeout_s=0.5):
                session.tally.sampled(played.steps, played.episodes, played.seconds)
            with _telling_of_its_end():
                report = brain.report(session.env_steps)
            for phase, spent in report.seconds.items():
                session.tally.spent(phase, spent)
            for numbers, staleness in report.updates:
                session.learnt(numbers, staleness)
            session.tick()
            rate = window.add(len(report.updates), session.seconds())
            if config.adjust_s and rate is not None:
                counts = tuner.judge(rate)
                agents.resize(counts["agents"])
                brain.resize(counts["predictors"], counts["trainers"])
                session.say(f"{rate:.1f} updates a second; now {counts}")
    return session.result


def _end(brain: Any) -> None:
    with suppress(remotely.RemotelyError):
        remotely.close(brain)


@contextmanager
def _telling_of_its_end() -> Iterator[None]:
    """A Brain that is gone takes what was learnt with it: only the last checkpoint is left."""
    try:
        yield
    except LOST as error:
        raise LearnerLost(f"the Brain is gone: {error}") from error


class Window:
    """Counts updates in windows of time."""

    def __init__(self, begins: float, length: float):
        self._begins = begins
        self._length = length
        self._count = 0

    def add(self, count: int, now: float) -> float | None:
        """Counts in what came by `now`; returns the rate of a window when it ends."""
        if now < self._begins:
            return None
        self._count += count
        if now < self._begins + self._length:
            return None
        rate = self._count / (now - self._begins)
        self._begins, self._count = now, 0
        return rate


def _share(model: nn.Module, other: nn.Module) -> None:
    """Makes `other`, of the same make, hold the very tensors of `model`."""
    for one, two in zip(model.modules(), other.modules(), strict=True):
        two._parameters, two._buffers = one._parameters, one._buffers


def _on_cpu(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_on_cpu(value) for value in state]
    return state.cpu() if isinstance(state, Tensor) else state
