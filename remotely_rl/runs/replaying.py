"""The replay of a run: rounds of actors fill it, and updates draw from it at a fixed ratio.

    replay = replaying.RunReplay(session)
    for _ in replay.rounds(sampling.rounds(session, QActor)):
        for progress in replay.updates():
            draw = replay.draw(progress)
            steps = replaying.to_device(learner, draw)
            replay.learnt(draw, update(learner, steps, progress))

which is `learn`, for algorithms with nothing to do in between.

A round is appended, then the learner makes the updates that are due; with `overlap` actors sample
the next round meanwhile, and neither side runs ahead of `replay_ratio` by more than 1 %.  Between
two updates the run looks at its limits and signals, and writes rows and checkpoints, with the
replay beside them.  A run that is resumed from there first makes the updates that were still due,
so it learns what an unbroken one does, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remotely_rl import networks, trees
from remotely_rl.acting.actor import AS_MADE, EnvAttributes, Rollout
from remotely_rl.acting.rounds import Rounds
from remotely_rl.config import joint_learners_of, learners_of
from remotely_rl.config.common import ATARI_STACK
from remotely_rl.environments.contract import Environments
from remotely_rl.environments.goals import judge_of
from remotely_rl.errors import TrainingError
from remotely_rl.experience.replay import (
    Draw,
    Hindsight,
    Ratio,
    Replay,
    SequenceInput,
    Sequences,
)
from remotely_rl.experience.replay.layout import Layout
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.learner import Learner, annealed
from remotely_rl.runs.session import Session
from remotely_rl.supervision import env_ranks
from remotely_rl.trees import Tree

FOLDER = "replay"  # in the run folder

RATE_IS_FOR = 128  # rows per batch; see `rate_rule`
RATE_FOLLOWS = f"batch_size / {RATE_IS_FOR}"


class ReplayConfig(Protocol):
    """What is read here of the Configs of the DQN family, SAC and TD3."""

    @property
    def actors(self) -> int: ...

    @property
    def rows_per_actor(self) -> int: ...

    @property
    def rollout_steps(self) -> int: ...

    @property
    def frame_stack(self) -> int | None: ...

    @property
    def seed(self) -> int: ...

    @property
    def clips_rewards_at(self) -> float: ...

    @property
    def overlap(self) -> bool: ...

    @property
    def gamma(self) -> float: ...

    @property
    def n_step(self) -> int: ...

    @property
    def replay_rows(self) -> int: ...

    @property
    def replay_ratio(self) -> float: ...

    @property
    def learn_from(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def save_replay(self) -> bool: ...

    @property
    def prioritized_alpha(self) -> float: ...

    @property
    def prioritized_beta(self) -> float: ...

    @property
    def hindsight(self) -> int: ...

    def make_environments(self, count: int) -> Environments: ...

    def ranked(self, first: int) -> Self: ...


class Steps(NamedTuple):
    """A batch from the replay on the learner's device, [N, ...].

    Of sequences, N are the rows to learn from; `obs` is [L, sequences, ...], and `next_obs` None.
    """

    obs: Tree
    action: Tensor
    reward: Tensor  # the discounted sum of n rewards, each clipped if the config says so
    discount: Tensor  # gamma^n, or 0 where the episode ended
    next_obs: Tree
    weight: Tensor  # importance-sampling weight of prioritized replay; 1 for uniform draws
    sequences: SequenceInput | None = None  # of a recurrent model


class Update(NamedTuple):
    """The result of an update: its metrics, and the new priority of each step [N]."""

    metrics: dict[str, float]
    priority: NDArray[np.floating[Any]]


class RunReplay:
    """The replay of a run, made from the first round, whose rows have its shapes and dtypes.

    See the module's docstring for its loop.
    """

    def __init__(self, session: Session[Any]):
        self._session = session
        config = self._config
        self._folder = session.folder.path / FOLDER
        self._say = session.say
        learners = joint_learners_of(config)
        self._is_kept = config.save_replay and learners_of(config) == 1
        self._saved: dict[str, Any] | None = None
        if session.saved:
            self._saved = session.saved["replay"] if learners_of(config) == 1 else {}
        self._is_unsaved = False
        self._actors: Rounds | None = None
        self._staleness: list[int] = []  # of the trajectories of the last round
        self._metrics: dict[str, float] = {}  # of the last update
        self.replay: Replay | None = None
        self._sequences = sequences_of(config, session.learner.model)
        self._judging: Environments | None = None  # one environment, which nobody plays
        self._judging_version = AS_MADE.version  # of its attributes
        self._hindsight = self._goals() if config.hindsight else None
        # Of each environment: the discounted return of its episode, and the next discount.
        self._since = np.array([[0.0], [1.0]]).repeat(config.actors * config.rows_per_actor, 1)
        self._largest = 0.0
        rows = config.batch_size * learners  # of an update of all learners
        # Learners that share a store each wait for their share of the first steps.
        learn_from = config.learn_from * learners // learners_of(config)
        self.ratio = Ratio(config.replay_ratio, rows, learn_from)
        self._to_judge = learn_from  # rows whose rewards are compared with what hindsight says
        session.say(updates_per_step(config.replay_ratio / rows))
        if config.save_replay and not self._is_kept:
            session.say("the replays of several learners are not saved")
        session.tally.gauges.append(lambda: self.gauge(session.progress))
        session.keep_replay(self)

    @property
    def _config(self) -> ReplayConfig:
        """The current config, which hooks may change."""
        config: ReplayConfig = self._session.learner.config
        return config

    def rounds(self, actors: Rounds) -> Iterator[list[Rollout]]:
        """Yield each round after appending it, until the run is over.

        A run that ended between updates begins with an empty round, for those still due.
        """
        session, learner = self._session, self._session.learner
        self._actors = actors
        if self._is_amid_updates():
            self._judge_by(learner.env_attributes)
            yield []
        while not session.over():
            if actors.idle:
                self._begin(actors)
            rollouts = session.take(actors)
            if not rollouts:
                continue
            with session.spending("learning"):
                self.append(rollouts)
                count_in(learner, rollouts)
            self._staleness = [learner.version - int(r.trajectory.version[0]) for r in rollouts]
            yield rollouts
            session.tick()

    def updates(self) -> Iterator[float]:
        """Yield the progress of the schedule for each update due, which must call `learnt`.

        Stops early if the run is to end at once.
        """
        session, actors = self._session, self._actors
        assert actors is not None, "call `rounds` first"
        while self.owes_update and not session.is_urgent():
            may_begin = self._config.overlap and actors.idle and self.allows_round
            if may_begin and not session.over():
                self._begin(actors)
            with session.spending("learning"):
                yield session.progress
            session.learnt(self._metrics, self._staleness)
            self._staleness = []

    def learnt(self, draw: Draw, update: Update) -> None:
        """Count an update with this draw."""
        self._metrics = update.metrics
        self.update(draw, update.priority)

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Append a round; each actor's environments have their own columns."""
        for rollout in rollouts:
            replay = self.replay
            if replay is None:  # an empty one is false
                replay = self._make(rollout.trajectory)
            if self._hindsight is not None and self._to_judge > 0:
                self._hindsight.compare(rollout.trajectory)
                self._to_judge -= rollout.steps
                if self._to_judge <= 0:
                    self._hindsight.check()
            replay.append(rollout.trajectory, column=rollout.actor * self._config.rows_per_actor)
        self.ratio.appended(self._session.steps_of(rollouts))

    def _begin(self, actors: Rounds) -> None:
        """Begin a round; hindsight judges by the same attributes of environments."""
        learner = self._session.learner
        self._judge_by(learner.env_attributes)
        actors.begin(learner.parameters(self._session.env_steps))

    def _judge_by(self, attributes: EnvAttributes) -> None:
        """Set attributes of the environment that judges, unless it has this version."""
        if self._judging is not None and attributes.version != self._judging_version:
            self._judging.set_attributes(attributes.values)
            self._judging.reset(self._config.seed)  # where environments read them
            self._judging_version = attributes.version

    def largest_return(self, rollouts: Sequence[Rollout]) -> float:
        """Return the largest discounted return met, from the beginning of an episode or of one
        reward, by its absolute value; rewards are clipped as the config says."""
        bound, gamma = self._config.clips_rewards_at, self._config.gamma
        for rollout in rollouts:
            seen, column = rollout.trajectory, rollout.actor * self._config.rows_per_actor
            at = slice(column, column + seen.reward.shape[1])  # central: those of all actors
            reward = seen.rows.fill(seen.reward).astype(np.float64)
            reward = reward.clip(-bound, bound) if bound else reward
            for begins, of_step in zip(seen.begins, reward, strict=False):  # T of T + 1
                self._since[:, at][:, begins] = np.array([[0.0], [1.0]])
                self._since[0, at] += self._since[1, at] * of_step
                self._since[1, at] *= gamma
                here = max(np.abs(self._since[0, at]).max(), np.abs(of_step).max())
                self._largest = max(self._largest, float(here))
        return self._largest

    @property
    def is_ready(self) -> bool:
        """Whether there is a row to draw, with all of its n steps."""
        return self.replay is not None and len(self.replay) > 0

    @property
    def owes_update(self) -> bool:
        """Whether an update is due and possible.

        Several learners always agree, perhaps a round later than one could: see `all_ready`.
        """
        return self.ratio.updates_owed > 0 and self.is_ready and self._session.all_ready

    @property
    def allows_round(self) -> bool:
        """Whether actors may sample the next round before all updates of this one are made."""
        return self.ratio.rows_allowed > 0

    def draw(
        self, progress: float, *, n_step: int | None = None, gamma: float | None = None
    ) -> Draw:
        """Draw a batch for the next update, at this progress of the schedule.

        `n_step` and `gamma` of its targets are the config's by default.
        """
        assert self.replay is not None, "there is nothing to learn from before the first round"
        config = self._config
        self.replay.gamma = config.gamma if gamma is None else gamma
        n_step = n_step or config.n_step
        if n_step != self.replay.n_step:
            self.replay.n_step = n_step
        count = config.batch_size // (self._sequences.length if self._sequences else 1)
        return self.replay.draw(count, beta=self.beta_at(progress))

    def beta_at(self, progress: float) -> float:
        """Return beta of prioritized replay at this progress of the schedule."""
        return annealed(self._config.prioritized_beta, 1.0, progress)

    def gauge(self, progress: float) -> dict[str, float]:
        """Return its metrics: how full it is, and beta if it is prioritized."""
        filled = 0 if self.replay is None else len(self.replay)
        filled *= self._sequences.stride if self._sequences else 1
        beta = {"train/beta": self.beta_at(progress)} if self._config.prioritized_alpha else {}
        return {"rollout/replay_fill": filled / self._config.replay_rows, **beta}

    def update(self, draw: Draw, priority: NDArray[np.floating[Any]]) -> None:
        """Count an update, and set the priorities of the rows drawn, from the error of each."""
        self.ratio.updated()
        if self.replay is not None and self._config.prioritized_alpha:
            self.replay.update(draw.rows, draw.priorities(priority))

    def save(self) -> dict[str, Any]:
        """Save the replay, if the config says so; return its entry in the checkpoint.

        Before the first round of a resumed run this is the entry of the earlier checkpoint.
        """
        if self.replay is None:
            return self._saved or {}
        if not self._is_kept:
            return {}
        try:
            number = self.replay.save(self._folder)
        except OSError as error:  # a full disk, say; the checkpoint is small and may still fit
            if not self._is_unsaved:
                self._say(f"{error.strerror or error}; the checkpoint is without the replay")
            self._is_unsaved = True
            return {}
        self._is_unsaved = False
        return {"number": number, "layout": self.replay.layout.plain, **self.ratio.state()}

    def _is_amid_updates(self) -> bool:
        """Load a replay that was saved between updates; return whether some are still due."""
        saved = self._saved
        if not saved or "layout" not in saved or not Replay.is_saved(self._folder):
            return False
        if self.ratio.batch_size > saved["owed"]:
            return False
        self._make(Layout.of_plain(saved["layout"]))
        return self.owes_update

    def _make(self, example: Trajectory | Layout) -> Replay:
        config = self._config
        replay = Replay(
            config.replay_rows,
            config.actors * config.rows_per_actor,
            example,
            n_step=config.n_step,
            gamma=config.gamma,
            reward_clip=config.clips_rewards_at,
            alpha=config.prioritized_alpha,
            seed=config.seed,
            say=self._say,
            sequences=self._sequences,
            hindsight=self._hindsight,
        )
        if self._saved is not None:
            self._load(replay, self._saved)
        self.replay = replay  # from here on it overwrites what was saved before
        return replay

    def _goals(self) -> Hindsight:
        """Return the goals of a run, judged by one more of its environments."""
        if self._sequences is not None:
            raise TrainingError("hindsight needs a network without a memory, which saw other goals")
        own = self._config.ranked(env_ranks.HINDSIGHT + self._session.peers.rank)
        self._judging = own.make_environments(1)
        self._session.at_end(self._judging.close)
        judge = judge_of(self._judging, self._session.crashes.add)
        self._judging.reset(own.seed)
        if self._judging.spaces.is_masked:
            raise TrainingError("hindsight needs an environment without action masks")
        return Hindsight(own.hindsight, judge)

    def _load(self, replay: Replay, saved: dict[str, Any]) -> None:
        """Load the saved replay, or say why not and start an empty one."""
        if not saved or not Replay.is_saved(self._folder):
            why = "is gone" if saved else "was not saved"
            self._say(
                f"the replay {why}: the loaded policy first plays {self._config.learn_from:,} steps"
            )
            return
        number = replay.load(self._folder)
        if number != saved["number"]:
            self._say(
                "the replay is newer than the checkpoint, because the run ended before it wrote"
                " one: some steps will be in it twice"
            )
        self.ratio.restore(saved)


def updates_per_step(updates: float) -> str:
    """Return a line for the user about the number of updates per step."""
    if updates >= 1:
        text = f"{updates:g} update{'s' if updates > 1 else ''} for each step"
    else:
        text = f"an update for every {1 / updates:g} steps"
    return f"{text} (replay_ratio / batch_size)"


def check(config: ReplayConfig) -> None:
    """Raise TrainingError for an invalid ratio."""
    if config.replay_ratio == 0:
        raise TrainingError("replay_ratio must be more than 0: at 0 nothing would be learnt")


def unused(config: ReplayConfig) -> dict[str, str]:
    """Return the fields that have no effect, each with the reason."""
    if config.prioritized_alpha:
        return {}
    return {"prioritized_beta": "prioritized_alpha is 0"}


def check_saved(config: ReplayConfig, run: Path) -> None:
    """Raise TrainingError if the replay saved in a run folder does not fit the config."""
    folder = run / FOLDER
    if not Replay.is_saved(folder):
        return
    environments = config.actors * config.rows_per_actor
    differs = Replay.difference(
        folder,
        config.replay_rows,
        environments,
        config.prioritized_alpha,
        config.rollout_steps,
    )
    if differs:
        raise TrainingError(
            f"{differs}: resume with the actors, envs_per_actor, replay_rows and prioritized_alpha"
            " that the run had, with a memory also the rollout_steps, or delete"
            f" {folder} to fill a new one"
        )


def check_sizes(config: ReplayConfig, n_step: int) -> None:
    """Raise TrainingError for inconsistent sizes."""
    if config.learn_from > config.replay_rows:
        raise TrainingError(
            f"learn_from ({config.learn_from:,}) is more than replay_rows ({config.replay_rows:,}):"
            " the replay would never hold enough to start learning"
        )
    batch = config.batch_size * learners_of(config)
    if batch > config.learn_from:
        of = "batch_size" if batch == config.batch_size else "batch_size of all learners"
        raise TrainingError(
            f"{of} ({batch:,}) is more than learn_from ({config.learn_from:,}):"
            " the first batch would hold steps more than once; raise learn_from"
        )
    needed = n_step + max(config.rollout_steps, config.frame_stack or ATARI_STACK)
    _check_room(config, needed, "n_step, and a round or a stack of frames")


def _check_room(config: ReplayConfig, needed: int, what: str) -> None:
    environments = config.actors * config.rows_per_actor
    each = config.replay_rows // environments
    if each < needed:
        raise TrainingError(
            f"replay_rows ({config.replay_rows:,}) leaves {each:,} steps to each of"
            f" {environments:,} environments, which need at least {needed:,}: {what}; raise"
            " replay_rows or lower envs_per_actor"
        )


class SequenceConfig(ReplayConfig, Protocol):
    """What is read here of the Configs of the DQN family besides."""

    @property
    def sequence_length(self) -> int: ...

    @property
    def burn_in(self) -> int: ...


def sequences_of(config: Any, model: nn.Module) -> Sequences | None:
    """Return the sequences that a recurrent model learns from; None for other models."""
    if not networks.is_recurrent(model):
        return None
    width = networks.initial_state(model, 1).shape[-1]
    return Sequences(config.sequence_length, config.burn_in, config.rollout_steps, width)


def check_sequences(config: SequenceConfig, n_step: int) -> None:
    """Raise TrainingError for sequences that do not fit the batch or the replay."""
    length = config.sequence_length
    if config.batch_size % length:
        raise TrainingError(
            f"batch_size ({config.batch_size:,}) must be a multiple of sequence_length"
            f" ({length:,}): with a memory, an update draws whole sequences"
        )
    needed = config.burn_in + length + n_step + config.rollout_steps
    _check_room(config, needed, "burn_in, sequence_length, n_step, and a round")


def check_has_no_memory(model: nn.Module) -> None:
    """Raise TrainingError for a recurrent network."""
    if networks.is_recurrent(model):
        raise TrainingError(
            "the critics have no memory, so neither has the policy; train a recurrent model with"
            " dqn, a2c, ppo or impala"
        )


def rewards(rollouts: Sequence[Rollout]) -> NDArray[np.float32]:
    """Return the raw rewards [N] of a round."""
    trajectories = [rollout.trajectory for rollout in rollouts]
    none = np.zeros(0, np.float32)
    return np.concatenate([none, *(each.rows.select(each.reward) for each in trajectories)])


def count_in(learner: Learner[Any], rollouts: Sequence[Rollout]) -> None:
    """Update the statistics of inputs and rewards with new experience.

    This is done once, when it arrives: counted by draws, some steps would count several times.
    """
    trajectories = [rollout.trajectory for rollout in rollouts]
    for trajectory in trajectories:
        learner.reward_clipper.count(trajectory)
    # No rows have no mean; but other learners may have rows, and wait for this one.
    if learner.others is None and not any(rollout.steps for rollout in rollouts):
        return
    reward = torch.from_numpy(rewards(rollouts))
    learner.count_values(reward, reward)
    if networks.has_normalizer(learner.model):
        obs = [each.rows.select(each.obs) for each in trajectories]
        joined = trees.join(np.concatenate, obs)
        learner.count_observations(trees.map_tree(learner.to_device, joined))


def learn(
    session: Session[Any], actors: Rounds, update: Callable[[Any, Steps, float], Update]
) -> None:
    """Train to the end of the run: `update(learner, steps, progress)` learns from each batch."""
    learner, replay = session.learner, RunReplay(session)
    for _ in replay.rounds(actors):
        for progress in replay.updates():
            draw = replay.draw(progress)
            replay.learnt(draw, update(learner, to_device(learner, draw), progress))


def to_device(learner: Learner[Any], draw: Draw) -> Steps:
    """Copy a batch to the learner's device, images in channels-last layout for both networks."""

    def observation(array: NDArray[Any]) -> Tensor:
        tensor = learner.to_device(array)
        if tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    sequences = draw.sequences
    if sequences is not None:
        *arrays, burn_in = sequences
        state, begins, step, next_step, column = map(learner.to_device, arrays)
        sequences = SequenceInput(state, begins, step, next_step, column, burn_in)
    return Steps(
        obs=trees.map_tree(observation, draw.obs),
        action=learner.to_device(draw.action),
        reward=learner.to_device(draw.reward),
        discount=learner.to_device(draw.discount),
        next_obs=None if sequences else trees.map_tree(observation, draw.next_obs),
        weight=learner.to_device(draw.weight),
        sequences=sequences,
    )
