"""Training from a replay: rounds of actors fill it, and updates draw from it at the ratio.

    learn_from_replay(session, QActor, update)

is the loop of every algorithm with a replay.  A round is appended, then the learner makes the
updates that it owes; with `overlap` actors sample the next round meanwhile, and neither side runs
ahead of `replay_ratio` by more than 1 %.  The run is whole after the updates that a round owes:
checkpoints are written there, and the replay is saved beside them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remotely_rl import networks, trees
from remotely_rl.acting.actor import Actor, Parameters, Rollout
from remotely_rl.acting.rounds import Rounds
from remotely_rl.config import OffPolicy
from remotely_rl.experience.replay import Draw, Ratio, Replay
from remotely_rl.experience.trajectory import Trajectory
from remotely_rl.learning.learner import Learner
from remotely_rl.runs import sampling
from remotely_rl.runs.session import Session
from remotely_rl.trees import Tree

FOLDER = "replay"  # in the run folder


class Steps(NamedTuple):
    """A batch from the replay on the learner's device, [N, ...]."""

    obs: Tree
    action: Tensor
    reward: Tensor  # the discounted sum of n, each clipped if the config says so
    discount: Tensor  # gamma^n, or 0 where the episode ended
    next_obs: Tree
    weight: Tensor  # corrects for what prioritized draws favour; 1 if all are drawn alike


class Update(NamedTuple):
    """What an update returns: its metrics, and how surprising each step was [N]."""

    metrics: dict[str, float]
    priority: NDArray[np.floating[Any]]


class RunReplay:
    """The replay of a run, made when the first round tells what a row is."""

    def __init__(self, session: Session[Any]):
        config: OffPolicy = session.learner.config
        self._config = config
        self._folder = session.folder.path / FOLDER
        self._say = session.say
        self._saved: dict[str, Any] | None = session.saved["replay"] if session.saved else None
        self._is_told = False  # of rewards
        self._is_unsaved = False
        self.replay: Replay | None = None
        self.ratio = Ratio(config.replay_ratio, config.batch_size, config.learn_from)

    def append(self, rollouts: Sequence[Rollout]) -> None:
        """Add a round; each actor's environments have columns of their own."""
        for rollout in rollouts:
            replay = self.replay or self._make(rollout.trajectory)
            replay.append(rollout.trajectory, column=rollout.actor * self._config.envs_per_actor)
            self.ratio.appended(rollout.steps)
            self._warn(rollout.trajectory)

    @property
    def owes_update(self) -> bool:
        """Whether the learner owes an update, and there is a row whose window is closed."""
        return self.ratio.updates_owed > 0 and self.replay is not None and len(self.replay) > 0

    def draw(self, env_steps: int, updates: int) -> Draw:
        """Draw a batch for the next update, after so many steps and updates of the run."""
        assert self.replay is not None, "there is nothing to learn from before the first round"
        config = self._config
        self.replay.gamma = config.gamma_at(updates)
        if (n_step := config.n_step_at(updates)) != self.replay.n_step:
            self.replay.n_step = n_step
        return self.replay.draw(config.batch_size, beta=config.prioritized_beta_at(env_steps))

    def update(self, draw: Draw, priority: NDArray[np.floating[Any]]) -> None:
        """Count an update, which has found these priorities of the rows drawn."""
        self.ratio.updated()
        if self.replay is not None and self._config.prioritized_alpha:
            self.replay.update(draw.rows, priority)

    def save(self) -> dict[str, Any]:
        """Save the replay, if the config says so; return what the checkpoint keeps of it.

        Before the first round of a resumed run it is what was saved before.
        """
        if self.replay is None:
            return self._saved or {}
        if not self._config.save_replay:
            return {}
        try:
            number = self.replay.save(self._folder)
        except OSError as error:  # a full disk, say: the checkpoint is small, and may still fit
            if not self._is_unsaved:
                self._say(f"{error.strerror or error}; the checkpoint is without the replay")
            self._is_unsaved = True
            return {}
        self._is_unsaved = False
        return {"number": number, **self.ratio.state()}

    def _warn(self, seen: Trajectory) -> None:
        warning = self._config.warning_of(seen.reward[seen.valid])
        if warning and not self._is_told:
            self._is_told = True
            self._say(warning)

    def _make(self, example: Trajectory) -> Replay:
        config = self._config
        replay = Replay(
            config.replay_rows,
            config.actors * config.envs_per_actor,
            example,
            n_step=config.n_step,
            gamma=config.gamma,
            reward_clip=config.clips_rewards_at,
            alpha=config.prioritized_alpha,
            seed=config.seed,
            say=self._say,
        )
        if self._saved is not None:
            self._load(replay, self._saved)
        self.replay = replay  # from here on it is saved over what was saved before
        return replay

    def _load(self, replay: Replay, saved: dict[str, Any]) -> None:
        """Continue with the replay that was saved, or say why not and fill a new one."""
        if not saved or not Replay.is_saved(self._folder):
            why = "is gone" if saved else "was not saved"
            self._say(
                f"the replay {why}: the loaded policy first plays {self._config.learn_from:,} steps"
            )
            return
        number = replay.load(self._folder)
        if number != saved["number"]:
            self._say(
                "the replay was saved after the checkpoint, which the run did not live to write:"
                " some steps will be in it twice"
            )
        self.ratio.restore(saved)


def learn_from_replay(
    session: Session[Any],
    kind: type[Actor],
    update: Callable[[Any, Steps, int], Update],
) -> None:
    """Trains the session's learner until the run is over.

    `update(learner, steps, env_steps)` takes a step on a batch; `kind` is the class of the actors.
    """
    learner = session.learner
    experience = session.replay = RunReplay(session)  # first: a checkpoint keeps what was saved
    actors = sampling.rounds(session, kind)
    while not session.over():
        if actors.idle:
            actors.begin(parameters(session))
        rollouts = session.take(actors)
        if not rollouts:
            continue
        with session.spending("learning"):
            experience.append(rollouts)
            count_in(learner, rollouts)
        staleness = [learner.version - int(r.trajectory.version[0]) for r in rollouts]
        while experience.owes_update:
            if overlaps(session, experience, actors):
                actors.begin(parameters(session))
            with session.spending("learning"):
                draw = experience.draw(session.env_steps, learner.version)
                metrics, priority = update(learner, to_device(learner, draw), session.env_steps)
                experience.update(draw, priority)
            session.count_update(metrics, staleness)
            staleness = []
        session.tick()


def overlaps(session: Session[Any], experience: RunReplay, actors: Rounds) -> bool:
    """Whether actors may sample the next round while this one is learnt from."""
    return (
        session.learner.config.overlap
        and actors.idle
        and experience.ratio.rows_allowed > 0
        and not session.over()
    )


def parameters(session: Session[Any]) -> Parameters:
    """What actors are sent."""
    sent: Parameters = session.learner.parameters()
    return sent._replace(env_steps=session.env_steps)


def count_in(learner: Learner[Any], rollouts: Sequence[Rollout]) -> None:
    """Counts new experience into the statistics of the input and of clipped rewards.

    Once, when it comes: what is drawn often would count often.
    """
    for rollout in rollouts:
        seen = rollout.trajectory
        if not rollout.steps:  # each environment was just reset: nothing to take a mean of
            continue
        learner.reward_clipper.count(seen)
        if networks.has_normalizer(learner.model):
            obs = trees.map_tree(lambda x: learner.to_device(x[:-1][seen.valid]), seen.obs)  # noqa: B023 - called at once
            networks.update_normalizers(learner.model, obs)


def to_device(learner: Learner[Any], draw: Draw) -> Steps:
    """Copies a batch to the learner's device.

    Images become channels last here, once, because two networks look at them.
    """

    def observation(array: NDArray[Any]) -> Tensor:
        tensor = learner.to_device(array)
        if tensor.dim() == 4:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    return Steps(
        obs=trees.map_tree(observation, draw.obs),
        action=learner.to_device(draw.action),
        reward=learner.to_device(draw.reward),
        discount=learner.to_device(draw.discount),
        next_obs=trees.map_tree(observation, draw.next_obs),
        weight=learner.to_device(draw.weight),
    )
