"""GA3C: agents without a model, and an inference server that holds the model and trains it.

Babaeizadeh et al. 2017, https://arxiv.org/abs/1611.06256.

    Agent    steps its environments, requests actions from the server, sends it the trajectories
    server   holds the only model: predictors answer requests in batches, trainers learn
             (`learning/inference_server.py`)

The model may have changed by the time an action is learnt from.  This policy lag is reported as
staleness, in updates.  It stays small because the queue holds one trajectory: an agent continues
only when a trainer has taken its trajectory, or the queue has room for it.

The paper uses each transition once, with the plain policy gradient, which actions that the
policy has since given up would dominate.  So log-probabilities are clamped below at that of
`probability_floor` (the paper adds a constant to the probability).  On Pong that took 1.2
million steps to win half of the points.  Here an update makes several epochs over its batch
(`epochs`, `minibatches`), and PPO's clipped ratio to the behaviour policy bounds the effect of
both the epochs and the lag.  `--epochs 1 --minibatches 1 --clip-range 0 --no-normalize-advantage
--target-kl 0 --gae-lambda 1 --rollout-steps 8 --train-rows 256 --entropy-coef 0.004` is closest
to the paper, but for Adam, and means instead of sums.

Other differences from the paper and the authors' code:

    an agent steps 8 environments, 32 steps each (paper: one, 5 steps)
    a trainer waits for 1,024 steps (paper: by default for one agent's rollout)
    losses are means, and target_kl steers Adam's rate (paper: sums, RMSProp at 3e-4)
    advantages are normalized, and the gradient's norm is clipped
    the entropy coefficient is annealed from 0.01 to 0.001 (paper: 0.01)
    the reward of an episode's last step counts (their code drops it)
    truncated episodes bootstrap, and observations are normalized
    where rewards are not clipped, value targets are normalized
    the numbers of agents, predictors and trainers stay as they are (paper: section 4.2 tries
        others for the rate of updates)
"""

import dataclasses
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import remotely
from remotely_rl import networks
from remotely_rl.acting.actor import Parameters
from remotely_rl.acting.crew import Number
from remotely_rl.acting.messages import Messages
from remotely_rl.acting.player import AgentOutput, Player, play
from remotely_rl.acting.samplers import Samplers
from remotely_rl.acting.stream import Stream
from remotely_rl.algorithms import ppo
from remotely_rl.config import Common, fields
from remotely_rl.environments import Episode
from remotely_rl.environments.action_spaces import Actions
from remotely_rl.errors import TrainingError
from remotely_rl.experience.batch import Transitions
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.functions import losses
from remotely_rl.functions.distributions import INITIAL_LOG_STD
from remotely_rl.learning import inference_server
from remotely_rl.learning.inference_server import Prediction, Record, RemoteLearner, Server
from remotely_rl.learning.learner import (
    Learner,
    Losses,
    SavedScale,
    actor_critic_losses,
    annealed,
    gae_batch,
    saved_scale,
)
from remotely_rl.learning.trained import TrainedLearner
from remotely_rl.runs.training import Session, Train
from remotely_rl.settings import COUNT, FRACTION, NOT_NEGATIVE
from remotely_rl.supervision import CrashReport, failures
from remotely_rl.trees import Tree


@dataclasses.dataclass(frozen=True)
class Config(Common):
    """The settings; their descriptions are the help of `remotely-rl train ga3c`."""

    lacks: ClassVar[Mapping[str, str]] = fields.one_way_to_sample(
        "ga3c always samples centrally: its inference server computes all actions"
    ) | fields.one_learner("ga3c has one learner, the inference server of all agents")

    actors: Annotated[int, "agents, processes that step environments", COUNT] = 4
    envs_per_actor: Annotated[int, "environments that each agent steps together", COUNT] = 8
    rollout_steps: int = 32  # long enough for returns, short enough to stay fresh
    predictors: Annotated[int, "threads that answer agents", COUNT] = 1
    trainers: Annotated[int, "threads that learn", COUNT] = 1
    predict_requests: Annotated[int, "maximum requests in a batch of a predictor", COUNT] = 2
    predict_wait_ms: Annotated[
        float, "milliseconds that a predictor waits for a batch to fill", NOT_NEGATIVE
    ] = 2.0
    train_rows: Annotated[int, "minimum steps in a trainer's batch", COUNT] = 1024

    gamma: fields.Gamma = 0.99
    gae_lambda: fields.GaeLambda = 0.95
    normalize_values: fields.NormalizeValues = None
    normalize_advantage: fields.NormalizeAdvantage = True
    epochs: fields.Epochs = 3
    minibatches: fields.Minibatches = 4
    clip_range: fields.ClipRangeOrNone = 0.2
    probability_floor: Annotated[
        float,
        "without clip_range, the lower bound of an action's probability in the loss",
        FRACTION,
    ] = 1e-6
    value_coef: fields.ValueCoef = 0.5
    entropy_coef: fields.EntropyCoef = 0.01
    entropy_coef_end: fields.EntropyCoefEnd = 0.001
    max_grad_norm: fields.MaxGradNorm = 0.5
    learning_rate: fields.RateOrSteered = None
    learning_rate_end: fields.LearningRateEnd = None
    target_kl: fields.TargetKl = None

    log_std_start: fields.LogStdStart = INITIAL_LOG_STD
    free_log_std: fields.FreeLogStd = False
    device: fields.Device = "auto"
    learner_threads: fields.LearnerThreads = 0

    paper: ClassVar[Mapping[str, Any]] = {
        "epochs": 1,
        "minibatches": 1,
        "clip_range": 0.0,
        "normalize_advantage": False,
        "target_kl": 0.0,
        "gae_lambda": 1.0,
        "image_size": 84,
    }

    def unused(self) -> dict[str, str]:
        why = super().unused()
        if self.clip_range:
            why["probability_floor"] = "clip_range is not 0"
        why["compile"] = "trainers compute on copies of the model, which are not compiled"
        return why

    def __post_init__(self) -> None:
        super().__post_init__()
        ppo.check_steering(self)

    @property
    def processes(self) -> int:
        return self.actors + 1  # the inference server

    def check_fits(self, model: nn.Module, actions: Actions) -> None:
        if networks.is_recurrent(model):
            raise TrainingError(
                "GA3C's agents keep no recurrent state; to train an LSTM use a2c, ppo or impala"
            )


def compute_losses(
    policy: Tensor,
    value: Tensor,
    rows: Transitions,
    config: Config,
    entropy_coef: float,
    actions: Actions,
) -> Losses:
    """Compute the losses of PPO, or without `clip_range` those of A2C with a floor."""
    if config.clip_range:
        return ppo.compute_losses(policy, value, rows, config, entropy_coef, actions)
    log_prob, floor = actions.log_prob(policy, rows.action), config.probability_floor
    floored = log_prob.clamp(min=math.log(floor)) if floor else log_prob
    gradient = losses.policy_gradient(floored, rows.advantage)
    return actor_critic_losses(
        gradient, log_prob, policy, value, rows, actions, config.value_coef, entropy_coef
    )


def update(
    learner: Learner[Config],
    model: nn.Module,
    lock: threading.Lock,
    trajectory: Trajectory,
    progress: float,
    record: Record,
) -> None:
    """Learn from a batch, in one of several trainer threads.

    `model` is this trainer's copy; `lock` guards the learner's.  The update is recorded under the
    lock, so records are in the order of versions.
    """
    config, parameters = learner.config, list(model.parameters())
    entropy_coef = annealed(config.entropy_coef, config.entropy_coef_end, progress)
    with lock:
        learner.learning_rate.anneal(progress)
    batch = gae_batch(learner, trajectory, normalize_advantage=config.normalize_advantage)

    steps = []
    for _ in range(config.epochs):
        for minibatch in batch.minibatches(config.minibatches, learner.generator):
            with lock:
                model.load_state_dict(learner.model.state_dict())
            policy, value, rows = learner.forward(minibatch, model)
            parts = compute_losses(policy, value, rows, config, entropy_coef, learner.actions)
            gradients = torch.autograd.grad(parts.total, parameters, allow_unused=True)
            with lock:
                steps.append(learner.step_with(gradients, parts))
    with lock:
        staleness = (learner.version - trajectory.version).tolist()
        metrics = learner.end_update(steps, batch, config.epochs)
        record(metrics, staleness)


class SampleReport(NamedTuple):
    """The result of `Agent.sample`; the trajectory itself goes to the server."""

    steps: int
    episodes: list[Episode]
    seconds: dict[str, float]
    crashes: Sequence[CrashReport] = ()


@remotely.remote_class
class Agent:
    """Steps environments with actions drawn from the server's predictions."""

    def __init__(self, config: Config, server: Server, seed: int, is_replacement: bool = False):
        if is_replacement:
            failures.disable_stack_dumps()
        self.server = server
        self.steps = config.rollout_steps
        self.player = Player.here(config, seed)
        self.prediction: Prediction | None = None  # for the last observation of a trajectory
        self.version = 0
        self._messages = Messages()

    def read_from(self, source: "remotely.Published[Parameters]") -> None:
        """Use the newest message that is published there whenever `sample` begins."""
        self._messages = Messages(source)

    def sample(self, at_least: int = 0) -> SampleReport:
        """Take T steps in each environment and send the trajectory to the server.

        Returns when the server has room for it.
        """
        if (params := self._messages.newest(at_least)) is not None:
            self.set_param(params)
        self.version = -1
        trajectory, seconds = play([self.player], self.steps, self.act, 0, "waiting")
        trajectory.version[:] = self.version
        start = time.perf_counter()
        self.server.train_on(trajectory)
        seconds["waiting"] += time.perf_counter() - start
        self.player.idle_since = time.perf_counter()
        steps = trajectory.rows.count
        envs = self.player.envs
        return SampleReport(steps, envs.pop_episodes(), seconds, envs.pop_crashes())

    def set_param(self, params: Parameters) -> None:
        """Set the attributes of the environments; see `_attributes`."""
        self.player.envs.set_attributes(params.env_attributes.values)

    def act(self, player: Player, obs: Tree, last: bool) -> AgentOutput:
        """Query the server, and sample an action from each policy."""
        actions = player.envs.actions
        # The last observation of a trajectory is the first of the next one: query only once.
        prediction = self.prediction or self.query(obs)
        self.prediction = prediction if last else None
        if last:
            return AgentOutput(np.empty(0), np.empty(0, np.float32), prediction.value)
        if self.version < 0:
            self.version = prediction.version
        policy = torch.from_numpy(prediction.policy)
        action = player.draw(actions.sample, policy)
        log_prob = actions.log_prob(policy, action).numpy()
        return AgentOutput(action.numpy(), log_prob, prediction.value)

    def query(self, obs: Tree) -> Prediction:
        """Send one request, which the server batches with those of other agents."""
        prediction: Prediction = self.server.predict(obs)  # type: ignore[assignment]
        return prediction

    def close(self) -> None:
        """Close the environments."""
        self.player.envs.close()


def make_server(
    config: Config,
    model: nn.Module,
    actions: Actions,
    gpus: int = 0,
    scale: SavedScale | None = None,
) -> Server:
    """Start the inference server on the cluster; `scale` is the initial state of its ValueScale."""
    kind: Any = remotely.options(inference_server.inference_server(config), gpus=gpus)
    server: Server = kind(config, model, actions, update, scale)
    return server


def loop(session: Session[Config]) -> None:
    """Train.  A seed does not repeat a run, because the batches of requests depend on timing."""
    here, config = session.learner, session.learner.config
    gpus, model = int(here.device.type == "cuda"), networks.copy_to_cpu(here.model)
    server = make_server(config, model, here.actions, gpus, saved_scale(here.value_scale))
    session.at_end(lambda: inference_server.end(server))
    learner = RemoteLearner(server, config, networks.copy_to_cpu(here.model))
    session.restore(learner)
    known = learner.env_attributes.version
    agents = session.keep(Stream(_agents(session, config, server), ahead=2))
    while not session.over():
        if learner.env_attributes.version > known:
            known = learner.env_attributes.version
            agents.publish(_attributes(learner))
        if sampled := agents.take(timeout_s=0.5):
            session.tally.sampled(sampled.steps, sampled.episodes, sampled.seconds)
        with inference_server.server_lost_loses_learner():
            report = server.report(session.progress)
        learner.version = report.version
        for phase, spent in report.seconds.items():
            session.tally.spent(phase, spent)
        for metrics, staleness in report.updates:
            session.learnt(metrics, staleness)
        session.tick()


train = Train("ga3c", Config, loop)


def _attributes(learner: TrainedLearner) -> Parameters:
    """Return the message to agents: environment attributes only, since they hold no parameters."""
    attributes = learner.env_attributes
    return Parameters(attributes.version, {}, 0, attributes)


def _agents(session: Session[Config], config: Config, server: Server) -> Samplers[SampleReport]:
    def make(number: Number) -> Agent:
        own = config.of_actor(number.index, number.is_replacement)
        return Agent(own, server, session.seed_of(number), number.is_replacement)

    return Samplers(
        make,
        config.actors,
        _attributes(session.learner),
        session.say,
        over=session.over,
        width=config.rows_per_actor,
        crashes=session.crashes,
    )
