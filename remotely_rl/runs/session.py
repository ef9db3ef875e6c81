"""The session of a training run, from its folder to its curve, whatever the algorithm.

A `Session` counts steps and updates, records them (`records.py`), decides when to stop, and leaves
a complete run folder however the run ends.  The algorithm supplies the loop:

    def loop(session: Session[Config]) -> None:
        learner, actors = session.learner, sampling.rounds(session)
        while not session.over():
            if actors.idle:
                actors.begin(learner.parameters())
            trajectory = session.collect(actors)
            if trajectory is None:  # the round is not over: check the limits again
                continue
            with session.spending("learning"):
                metrics = update(learner, trajectory, session.progress)
            session.learnt(metrics, staleness=[0])

Ctrl-C (or SIGTERM) makes `over` return True; the loop returns, and the session saves the checkpoint
and the curve.  A second Ctrl-C interrupts immediately.  The session also saves if the loop raises,
because the learner is consistent between updates; but if the learner is lost, the last checkpoint
is kept unchanged.  If the disk is full, the run says so and continues.

Its parts:

    process.py      state of the process that a run changes: signals, threads, random numbers
    ending.py       the clock of the run, and why it ends
    peers.py        the other learners, if there are several: each has a session, with the same
                    loop.  That of rank 0 is the run's; the others write nothing, and end when it
                    ends
    records.py      what those who watch the run see of it: rows, checkpoints, evaluations, hooks
"""

import copy
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.acting.actor import EnvAttributes, Rollout
from remotely_rl.acting.crew import POLL_S
from remotely_rl.acting.rounds import Rounds
from remotely_rl.acting.stream import Stream
from remotely_rl.config import Common, device_of, learners_of
from remotely_rl.environments import name_of
from remotely_rl.environments.spaces import Spaces
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.trajectory import Trajectory, columns, stack
from remotely_rl.learning.all_reduce import AllReduce
from remotely_rl.learning.learner import Learner, gpu_lost
from remotely_rl.learning.parameter_server import ParameterServer
from remotely_rl.learning.threads import LearnerThreads, waited_s
from remotely_rl.learning.trained import TrainedLearner
from remotely_rl.runs import run_folder, status
from remotely_rl.runs.derived_seeds import seed_of_actor
from remotely_rl.runs.ending import Clock, RunEnding
from remotely_rl.runs.evaluating import Policy
from remotely_rl.runs.hooks import COEFFICIENTS, Hook, Hooks
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.peers import Apart, Peers, minibatches_in
from remotely_rl.runs.process import Process
from remotely_rl.runs.progress import RunProgress
from remotely_rl.runs.records import Records, RunRecords
from remotely_rl.runs.result import Result
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.supervision import Crashes

C = TypeVar("C", bound=Common)
A = TypeVar("A", bound=Rounds | Stream[Any] | ParameterServer)


class Kept(Protocol):
    """A replay, which is saved in the run folder beside the checkpoint."""

    @property
    def is_ready(self) -> bool:
        """Whether it holds something to learn from."""
        ...

    def save(self) -> dict[str, Any]:
        """Save it; return its entry in the checkpoint."""
        ...


class Session(Generic[C]):
    """The session of a run (see the module's docstring), made by `training.begin`.

    set-up         restore, keep, keep_replay, at_end   what to save and close
                   learn_with, learn_apart              other learners
    the loop       take, collect, gather, count         wait for rollouts in slices; count them
                   spending, learnt                     record an update: its time and metrics
                   over, is_urgent, tick, progress      when to stop; due work; the schedule
    for hooks      stop, change, set_env_attr           the end, coefficients, environments
                   log_image, log_histogram             for TensorBoard and the dashboard
    for users      say, warn                            lines that stay on the terminal
    """

    result: Result

    def __init__(
        self,
        algorithm: str,
        config: C,
        folder: RunFolder,
        saved: dict[str, Any] | None = None,
        *,
        learner: TrainedLearner | None = None,
        spaces: Spaces | None = None,
        opening: Sequence[str] = (),
        progress: RunProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
        process: Process | None = None,
        follows: Callable[[], str] | None = None,
        hooks: Sequence[Hook] = (),
        claim: status.TrainingLock | None = None,
    ):
        """`spaces` are those of the environments.  `opening` are lines that are printed first.
        Without `claim`, rank 0 claims the folder here, before it changes a file.

        `follows`, for ranks other than 0, returns why the run is over, or an empty string.
        """
        self.folder = folder
        self.algorithm = algorithm
        self._config = config
        self.saved = saved  # the checkpoint that the run resumes from
        self._learner: Any = learner
        self._is_saved = False  # whether there is a learner to save: between `restore` and a loss
        self._is_ending = False
        self.tally = Tally.of(saved) if saved else Tally()
        self._steps_before = self.tally.counters.env_steps
        self._episodes_before = self.tally.counters.episodes
        self.times_resumed = saved["times_resumed"] + 1 if saved else 0
        self._process = process or Process()
        self._clock = Clock(self.tally.counters.seconds, clock)
        self._ending = RunEnding(config, self.tally, self._clock, self._process, follows)
        self._is_first = follows is None
        self.peers = Peers(self.tally, self._minibatches_in, self._may_learn, self._clock.seconds)
        title = f"{algorithm} on {name_of(config.env)}"
        watch = f"to watch it in the browser: remotely-rl dashboard {folder.path.parent}"
        self._opening = f"{title}: {folder.path}", watch, *opening
        self._records: Records
        if self._is_first:
            self._records = RunRecords(
                folder,
                title,
                config,
                self.tally,
                Hooks(self, hooks),
                saved=saved,
                spaces=spaces,
                content=self._checkpoint_content,
                policy=self._policy,
                progress=progress,
                claim=claim,
            )
        else:
            self._records = Records(config)
        self._replay: Kept | None = None
        self._threads: LearnerThreads | None = (
            None  # torch's, if their number follows the machine's load
        )
        self._actors: Rounds | Stream[Any] | ParameterServer | None = None
        self._gathered: list[Trajectory] = []
        self._attributes_are_new = False  # to the actors of a stream
        self._learning = 0.0, 0.0  # seconds of the last learning block; of these, waiting for cores
        self._warned: set[str] = set()
        self._at_end = ExitStack()
        self._at_end.callback(self._process.restore)
        self._at_end.callback(self._records.close)

    def __enter__(self) -> "Session[C]":
        if self._is_first:  # not in an actor's process
            self._process.listen()
        try:
            self._records.begin(self._opening, self._gpu())
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raised = error
        self._records.end_phases()
        if isinstance(error, torch.AcceleratorError):
            error = gpu_lost(error)
        try:
            if isinstance(error, LearnerLost):
                self._is_saved = False
                self._records.lost()
            self._finish(error)
        except BaseException as later:  # a hook's, or of a last evaluation
            self._records.write_end(self._ending.of(later))
            raise
        else:
            self._records.write_end(self._ending.of(error))
        finally:
            self._at_end.close()
        if error is not raised and error is not None:
            raise error from raised

    @property
    def crashes(self) -> Crashes:
        """What is known of environments and actors that have crashed."""
        return self._records.crashes

    def _gpu(self) -> str | None:
        """Return the name of the GPU that the run learns on."""
        device = device_of(self._config)
        return torch.cuda.get_device_name(device) if device.type == "cuda" else None

    # --- learner and actors -----------------------------------------------------------------------

    def restore(self, learner: TrainedLearner) -> None:
        """Set the learner that is trained and saved; if the run is resumed, load its state.

        One of its own kind continues what hooks have set when the run started.
        """
        if self._learner is not None:
            learner.env_attributes = self._learner.env_attributes
        if self.saved:
            learner.load(self.saved["learner"])
            torch.set_rng_state(self.saved["random"])
            # best.pt may be better than anything before the checkpoint, if the run crashed.
            best = run_folder.best_of(self.folder.best, self._config.best_by)
            counters = self.tally.counters
            counters.best_return = max(best.best_return, counters.best_return)
            counters.best_metric = max(best.best_metric, counters.best_metric)
            self._records.know_best(best.evaluated)
        self._learner, self._is_saved = learner, True

    @property
    def learner(self) -> Learner[C]:
        """The learner that the run trains; of another kind in a3c, n_step_q and ga3c, but always a
        TrainedLearner (`learning/trained.py`)."""
        assert self._learner is not None, "a session without a learner only counts"
        learner: Learner[C] = self._learner
        return learner

    def learn_with(self, others: AllReduce) -> None:
        """Make this session's learner one of a group, which is in step."""
        self.peers.group = self.learner.others = others

    def learn_apart(self, apart: Apart) -> None:
        """Make this session's learner one of those that share a store."""
        self.peers.apart = apart

    def keep(self, actors: A) -> A:
        """Close these actors when the session ends.  Returns them."""
        self._actors = actors
        self._at_end.callback(actors.close)
        return actors

    def keep_replay(self, replay: Kept) -> None:
        """Save this replay with the checkpoints."""
        self._replay = replay

    def adapt_threads(self, threads: LearnerThreads) -> None:
        """Have the number of torch's threads follow the machine's load."""
        self._threads = threads

    def at_end(self, end: Callable[[], object]) -> None:
        """Call this after the learner is saved and whatever was registered later is closed."""
        self._at_end.callback(end)

    def seed_of(self, number: int) -> int:
        """Return the seed of actor `number`.  Replacements and resumed runs get new seeds."""
        return seed_of_actor(self._config.seed, self.times_resumed, number)

    @property
    def model(self) -> nn.Module:
        """The model as it is trained, whatever the algorithm."""
        return self.learner.model

    # --- sampling ---------------------------------------------------------------------------------

    def count(self, rollouts: Sequence[Rollout]) -> Trajectory:
        """Count rollouts; return their trajectories, stacked."""
        for rollout in rollouts:
            self.tally.sampled(rollout.steps, rollout.episodes, rollout.seconds)
        self._records.sampled(rollouts)
        return stack([rollout.trajectory for rollout in rollouts])

    def take(self, actors: Rounds) -> list[Rollout]:
        """Wait up to POLL_S for a round; return its rollouts, or an empty list.

        With several learners, a round is over when it is over for all of them.
        """
        with self.spending("waiting"):
            rollouts = self.peers.exchange(actors.take(timeout_s=POLL_S), self.over)
        self._records.sampled(rollouts)
        if not rollouts:
            self._records.look()
            # Not a checkpoint: actors cannot be saved during a round.
            self._records.write_due_row(self.seconds())
        return rollouts

    def collect(self, actors: Rounds) -> Trajectory | None:
        """Wait up to POLL_S for a round; return its trajectories, stacked.

        Returns None if the round is not over or holds no experience.  With several learners it
        returns None unless all have the same number of minibatches, because every gradient step
        averages over all of them.
        """
        rollouts = self.take(actors)
        if not rollouts:
            return None
        trajectory = stack([rollout.trajectory for rollout in rollouts])
        if self.peers.group is not None:
            return trajectory if self.peers.have_equal_minibatches() else None
        return trajectory if trajectory.rows.count else None

    def steps_of(self, rollouts: Sequence[Rollout]) -> int:
        """Return the steps of a round returned by `take`, of all learners."""
        return self.peers.steps_of(rollouts)

    @property
    def all_ready(self) -> bool:
        """Whether all learners could draw from their replays at the end of the last round."""
        return all(each.is_ready for each in self.peers.last)

    def _minibatches_in(self, rollouts: Sequence[Rollout]) -> int:
        wanted = getattr(self._config, "minibatches", 1)
        return minibatches_in(rollouts, wanted, networks.is_recurrent(self.learner.model))

    def _may_learn(self) -> bool:
        return self._replay is None or self._replay.is_ready

    def gather(self, actors: Stream[Rollout], count: int) -> Trajectory | None:
        """Wait up to POLL_S for `count` trajectories; return them stacked, or None.

        Trajectories received so far are kept for the next call.  A trajectory covers one actor's
        environments: a centrally sampled rollout counts as one for each actor.
        """
        width = count * self._config.rows_per_actor
        if sum(one.width for one in self._gathered) < width:
            if self._attributes_are_new:  # do not wait for the next update
                self._attributes_are_new = False
                actors.crew.publish(self.learner.parameters())
            with self.spending("waiting"):
                rollout = actors.take(timeout_s=POLL_S)
                rollouts = self.peers.exchange([] if rollout is None else [rollout], self.over)
            if self.peers.apart is not None:
                self.learner.optimizer.pull()  # the other learners' updates
            if not rollouts:
                self.tick()
                return None
            self._records.sampled(rollouts)
            trajectory = rollouts[0].trajectory
            if trajectory.rows.count:
                self._gathered.append(trajectory)
        if sum(one.width for one in self._gathered) < width:
            return None
        gathered, self._gathered = stack(self._gathered), []
        if gathered.width > width:  # a rollout covers more actors than an update uses
            self._gathered = [columns(gathered, slice(width, None))]
            gathered = columns(gathered, slice(width))
        return gathered if gathered.rows.count else None

    # --- counting ---------------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Environment steps since the beginning of the run."""
        if (apart := self.peers.apart) is not None:
            return self._steps_before + int(apart.steps.sum())
        return self.tally.counters.env_steps

    @property
    def saved_steps(self) -> int:
        """The environment steps in the last checkpoint; 0 if there is none yet."""
        return self._records.saved_steps

    def seconds(self) -> float:
        """Return the seconds of training, without the time between resumes."""
        return self._clock.seconds()

    @property
    def progress(self) -> float:
        """The position in the schedules of coefficients, from 0 to 1."""
        seconds = self.peers.last[0].clock_s if self.peers.last else self.seconds()
        return self._config.progress(self.env_steps, seconds)

    @contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Count the time of a block for a phase named in `metrics.py`."""
        waited_s = self._waited_s(phase)
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.tally.spent(phase, spent)
        self.peers.spent(phase, spent)
        if phase == "learning":
            self._learning = spent, self._waited_s(phase) - waited_s

    def _waited_s(self, phase: str) -> float:
        """Return how long torch's threads have waited for a core, if that matters."""
        return waited_s() if phase == "learning" and self._threads is not None else 0.0

    def learnt(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Count an update; write what is due."""
        self._records.updated(metrics, staleness)
        if self._threads is not None and self._threads.updated(*self._learning):
            torch.set_num_threads(self._threads.count)
        self.tick()

    def tick(self) -> None:
        """Write what is due and start due evaluations.  Call it in each iteration of the loop."""
        self._records.look()  # a hook may stop the run
        if not self._ending.is_by_hook:
            self._records.begin_due_evaluation(self.env_steps)
        self._records.write_due(self.seconds())

    def over(self) -> bool:
        """Whether to stop: at a limit or on request.  The first reason is kept."""
        return self._ending.is_here()

    def is_urgent(self) -> bool:
        """Whether to stop even between the updates of a round: see `RunEnding`."""
        return self._ending.is_urgent()

    def stop(self, why: str) -> None:
        """End the run gracefully, as a limit does: for hooks.  The first reason is kept.

        No new evaluation starts; the end of the run waits for a running one.
        """
        self._ending.stop(why)

    def change(self, **coefficients: float) -> None:
        """Change coefficients for the following updates: for hooks.

        Allowed are the algorithm's fields in `hooks.COEFFICIENTS`.  A resumed run starts again
        with those of its config.  Raises TrainingError for any other name, for a value out of
        range, and with several learners.
        """
        self._check_is_alone("coefficients")
        known = COEFFICIENTS & {field.name for field in dataclasses.fields(self._config)}
        for name in coefficients.keys() - known:
            raise TrainingError(
                f"{name} cannot be changed during a run; {', '.join(sorted(known))} can"
            )
        self.learner.change(**coefficients)

    def set_env_attr(self, name: str, value: Any) -> None:
        """Set an attribute of all environments, from the next rollout on: for hooks.

        Each environment gets a copy, and so do replacements; evaluations do not.  Set it again
        when a run is resumed.  Raises TrainingError with several learners; the run raises it if
        the environments have no such attribute.
        """
        self._check_is_alone("attributes of environments")
        learner = self.learner
        version, values = learner.env_attributes
        learner.env_attributes = EnvAttributes(version + 1, {**values, name: copy.deepcopy(value)})
        self._attributes_are_new = True

    def _check_is_alone(self, what: str) -> None:
        # Check the config too: in `on_start` the other learners do not exist yet.
        if learners_of(self._config) > 1 or not self.peers.is_alone:
            raise TrainingError(f"{what} cannot be changed in a run with several learners")

    def log_image(self, name: str, image: Any) -> None:
        """Write an image for TensorBoard and the dashboard: for hooks.

        It is [height, width] or [height, width, channels], of bytes or of floats from 0 to 1; a
        tensor is one too.  metrics.csv has no part in it.  Raises TrainingError for other shapes.
        """
        self._records.log_image(name, _array_of(image))

    def log_histogram(self, name: str, numbers: Any) -> None:
        """Write a histogram of numbers, an array or a tensor, for TensorBoard and the dashboard.

        metrics.csv has no part in it.  What is not finite is left out; raises TrainingError if
        nothing is left.
        """
        self._records.log_histogram(name, _array_of(numbers))

    def say(self, text: str) -> None:
        """Print a line for the user, in rank 0 only."""
        self._records.say(text)

    def warn(self, topic: str, text: str) -> None:
        """Print a line for the user, unless it is empty or its topic has had one."""
        if text and topic not in self._warned:
            self._warned.add(topic)
            self.say(text)

    def _checkpoint_content(self, path: Path) -> dict[str, Any] | None:
        if not self._is_saved:
            return None
        paused: list[bytes] = []
        # With several learners, the actors of the others are not paused at the same time.
        is_checkpoint = path == self.folder.checkpoint
        if isinstance(self._actors, Rounds) and is_checkpoint and self.peers.is_alone:
            paused = self._actors.pause(self._is_ending)
        kept: dict[str, Any] = {}
        if self._replay is not None and is_checkpoint:
            kept["replay"] = self._replay.save()
        return {
            **kept,
            **self._records.state(),
            "algorithm": self.algorithm,
            "env": name_of(self._config.env),
            "outputs": self._config.outputs_are,
            "learner": self.learner.state(),
            "counters": dataclasses.asdict(self.tally.counters),
            "recent": [list(episode) for episode in self.tally.recent],
            "random": torch.get_rng_state(),
            # As tensors, which load without running code.
            "actors": [torch.from_numpy(np.frombuffer(one, np.uint8).copy()) for one in paused],
            "times_resumed": self.times_resumed,
        }

    def _policy(self) -> Policy | None:
        """Return the current policy, for an evaluation and for best.pt."""
        if not self._is_saved:
            return None
        self.tally.counters.seconds = self.seconds()
        content = self._checkpoint_content(self.folder.best)
        return None if content is None else Policy(content, self.model)

    def _finish(self, error: BaseException | None) -> None:
        self.crashes.flush()
        episodes = self.tally.counters.episodes - self._episodes_before
        self.warn("episodes", self.crashes.instead_of_episodes(episodes))
        self._is_ending = True
        now = self.seconds()
        try:
            if error is None:
                self._records.end_evaluations(
                    None if self._ending.is_by_hook else self.env_steps,
                    lambda: bool(self._process.asked_to_stop),
                )
        finally:
            self._records.finish(now, has_learner=self._is_saved)
        new_steps = self.env_steps - self._steps_before
        ended = summary = self._ending.why
        if error is not None:  # the caller prints its text
            kind = type(error).__name__
            ended, summary = f"{kind}: {error}", f"ended by {kind}"
        self.result = Result.of(self.folder.path, ended, self.tally, new_steps)
        self._records.conclude(summary, self.result)


def _array_of(numbers: Any) -> Any:
    """Return a tensor of any device as an array, and everything else as it is."""
    if not isinstance(numbers, torch.Tensor):
        return numbers
    on_cpu = numbers.detach().cpu()
    return (on_cpu.float() if on_cpu.dtype is torch.bfloat16 else on_cpu).numpy()
