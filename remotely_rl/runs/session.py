"""The session of a training run, from its folder to its curve, whatever the algorithm.

A `Session` counts steps and updates, records them (`recorder.py`), decides when to stop, and leaves
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

A run changes this state of its process, and restores it at the end (`Process`):

    torch's threads     their number, to suit the algorithm
    random numbers      torch's global generator starts at the run's seed, for the parts of a
                        model that draw from it: initial weights, dropout
    SIGINT, SIGTERM     the first asks the run to stop, the second interrupts it immediately

The library itself draws from its own generators, so runs in several threads of one process do not
affect each other, except through dropout, which has no generator.  Python handles signals only in
the main thread: runs in other threads stop gracefully when a KeyboardInterrupt propagates through
the main thread or has ended it.

A run with several learners (`ranks.py`) has a session in each, with the same loop.  After each
round they exchange what was sampled, so that all have the same counts and make the same decisions.
The session of rank 0 is the run's; the others write nothing, and end when it ends.

The file is over 700 lines because all ways to end or resume a run share its state.
"""

import copy
import dataclasses
import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from remotely_rl import networks
from remotely_rl.acting.actor import EnvAttributes, Rollout
from remotely_rl.acting.crew import POLL_S
from remotely_rl.acting.rounds import Rounds
from remotely_rl.acting.stream import Stream
from remotely_rl.config import Common, learners_of
from remotely_rl.environments import Episode, name_of
from remotely_rl.environments.spaces import Spaces
from remotely_rl.errors import LearnerLost, TrainingError
from remotely_rl.experience.trajectory import Trajectory, columns, stack
from remotely_rl.learning.all_reduce import AllReduce
from remotely_rl.learning.learner import Learner, LearningRate, gpu_lost
from remotely_rl.learning.parameter_server import ParameterServer
from remotely_rl.learning.threads import Threads, waited_s
from remotely_rl.runs import evaluating, notebook, progress, run_folder
from remotely_rl.runs.evaluating import Evaluations
from remotely_rl.runs.hooks import COEFFICIENTS, Hook, Hooks
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.progress import Progress
from remotely_rl.runs.recorder import Recorder
from remotely_rl.runs.run_folder import RunFolder
from remotely_rl.supervision import Crashes
from remotely_rl.supervision.logbook import Logbook

SAY_AFTER_S = 2.0  # after this wait for an evaluation, the end of a run says that it waits

C = TypeVar("C", bound=Common)
A = TypeVar("A", bound=Rounds | Stream[Any] | ParameterServer)


class Saveable(Protocol):
    """A learner, local or remote, that a session saves and restores."""

    @property
    def model(self) -> nn.Module: ...
    def state(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class Kept(Protocol):
    """A replay, which is saved in the run folder beside the checkpoint."""

    @property
    def is_ready(self) -> bool:
        """Whether it holds something to learn from."""
        ...

    def save(self) -> dict[str, Any]:
        """Save it; return its entry in the checkpoint."""
        ...


class Round(NamedTuple):
    """What learners exchange after a round of their actors."""

    steps: int
    episodes: list[tuple[float, int, dict[str, float]]]
    seconds: dict[str, float]  # by phase
    minibatches: int  # into which its experience can be split
    is_ready: bool  # whether it can draw from its replay, if there is one
    clock_s: float  # since the run began; rank 0's counts


@dataclasses.dataclass
class Apart:
    """The counts of a session whose learner shares a store and does not wait for the others.

    `steps` has each learner's environment steps since it started, in memory shared by all.  The
    other ranks keep their `rounds` until rank 0 fetches them through `news`.
    """

    rank: int
    steps: NDArray[np.int64]
    news: Callable[[], Sequence[Round]] = lambda: ()
    rounds: deque[Round] = dataclasses.field(default_factory=deque)


class Result(NamedTuple):
    """The result of a run.  All counts are since its beginning, before any resume.

    `return_mean` is over the last 100 episodes; `best_return` is the best mean over 30 episodes
    at the time of a row.
    """

    run: Path
    ended: str
    seconds: float
    env_steps: int
    updates: int
    episodes: int
    return_mean: float
    best_return: float
    # Steps since the run was started or resumed; None if it had already reached its limit.
    new_steps: int | None = None

    @classmethod
    def of(cls, run: Path, ended: str, tally: Tally, new_steps: int | None = None) -> "Result":
        """Return the result of a run with this tally."""
        counters = tally.counters
        return cls(
            run=run,
            ended=ended,
            seconds=counters.seconds,
            env_steps=counters.env_steps,
            updates=counters.updates,
            episodes=counters.episodes,
            return_mean=tally.return_mean(),
            best_return=counters.best_return,
            new_steps=new_steps,
        )

    def _repr_html_(self) -> str:
        """Return a table and the learning curve, for notebooks."""
        facts = {
            "run": self.run,
            "ended": self.ended,
            "time": progress.clock(self.seconds),
            "steps": f"{self.env_steps:,}",
            "episodes": f"{self.episodes:,}",
            "mean return of the last 100": progress.number(self.return_mean),
        }
        return notebook.as_html(facts, RunFolder(self.run).curve)


def seed_from(*words: int) -> int:
    """Return a seed derived from all of these numbers."""
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


def limit_reached(config: Common, tally: Tally, seconds: float) -> str:
    """Return the limit of a config that is reached, as text, or an empty string."""
    if config.total_steps and tally.counters.env_steps >= config.total_steps:
        return f"{config.total_steps:,} steps are done"
    if config.minutes and seconds >= config.minutes * 60:
        return f"{config.minutes:g} minute{' is' if config.minutes == 1 else 's are'} over"
    if config.target is not None and tally.short_return_mean() >= config.target:
        return f"the mean return of {config.target:g} is reached"
    return ""


def _minibatches_in(rollouts: Sequence[Rollout], wanted: int, is_recurrent: bool) -> int:
    """Return into how many minibatches, at most `wanted`, a round can be split."""
    valid = [rollout.trajectory.valid for rollout in rollouts]
    if is_recurrent:  # split along the environments
        return min(wanted, sum(one.shape[1] for one in valid) if any(map(np.any, valid)) else 0)
    return min(wanted, sum(int(one.sum()) for one in valid))


class Session(Generic[C]):
    """The session of a run (see the module's docstring), made by `training.begin`.

    set-up         restore, keep, at_end, learn_with    what to save and close; other learners
    the loop       take, collect, gather, count         wait for rollouts in slices; count them
                   spending, learnt, count_update       record an update: its time and metrics
                   over, tick, progress                 when to stop; due work; the schedule
    for hooks      stop, change, set_env_attr           the end, coefficients, environments
                   log_image, log_histogram             for TensorBoard
    for users      say, warn                            lines that stay on the terminal
    """

    result: Result
    learner: Learner[C]
    others: AllReduce | None = None  # the group of learners, if there are several
    apart: Apart | None = None  # if the learner shares a store
    opening: Sequence[str] = ()  # lines about the model, printed at the start
    replay: Kept | None = None
    spaces: Spaces | None = None  # of the environments
    threads: Threads | None = None  # torch's, if their number follows the machine's load

    def __init__(
        self,
        algorithm: str,
        config: C,
        folder: RunFolder,
        saved: dict[str, Any] | None = None,
        *,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        process: "Process | None" = None,
        follows: Callable[[], str] | None = None,
        hooks: Sequence[Hook] = (),
    ):
        """`follows`, for ranks other than 0, returns why the run is over, or an empty string."""
        self.folder = folder
        self.algorithm = algorithm
        self._config = config
        self.saved = saved  # the checkpoint that the run resumes from
        self._clock = clock
        self.tally = Tally.of(saved) if saved else Tally()
        counters = self.tally.counters
        self._started = clock() - counters.seconds
        self._steps_before = counters.env_steps
        self.times_resumed = saved["times_resumed"] + 1 if saved else 0
        self._process = process or Process()
        self._ended = ""  # why the run stops, once known
        self._may_evaluate = True  # until a hook stops the run
        self._follows = follows
        self._title = f"{algorithm} on {name_of(config.env)}"
        self._hooks = Hooks(self, hooks)
        # Rank 0 records for all learners; None in the others.
        self._recorder: Recorder | None = None
        if follows is None:
            self._recorder = Recorder(
                folder,
                self._title,
                config,
                self.tally,
                self._checkpoint_content,
                progress,
                on_row=self._hooks.row,
            )
            self.crashes = Crashes(self.say, config.max_crash_rate, keep=Logbook(folder.crashes))
        else:  # this is an actor's process, whose output appears on the run's terminal
            self.crashes = Crashes(print, config.max_crash_rate)
        self._evaluations: Evaluations | None = None
        if self._recorder is not None and config.evaluate_every:
            known = saved.get("evaluations", {}) if saved else {}
            self._evaluations = Evaluations(config, self.say, self._evaluation_seed, known)
        self._last_rounds: list[Round] = []  # one per learner
        self._unreported: dict[str, float] = {}  # seconds spent since, by phase
        self._saveable: Saveable | None = None
        self._actors: Rounds | Stream[Any] | ParameterServer | None = None
        self._gathered: list[Trajectory] = []
        self._learning = 0.0, 0.0  # seconds of the last learning block; of these, waiting for cores
        self._warned: set[str] = set()
        self._at_end = ExitStack()
        self._at_end.callback(self._process.restore)
        if self._evaluations is not None:
            self._at_end.callback(self._evaluations.close)

    def __enter__(self) -> "Session[C]":
        if self._follows is None:  # not in an actor's process
            self._process.listen()
        watch = f"to watch it in the browser: remotely-rl dashboard {self.folder.path.parent}"
        for text in (f"{self._title}: {self.folder.path}", watch, *self.opening):
            self.say(text)
        try:
            self._hooks.start()
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
        if isinstance(error, torch.AcceleratorError):
            error = gpu_lost(error)
        try:
            if isinstance(error, LearnerLost):
                self._saveable = None
                if self.folder.checkpoint.exists():
                    self.say(f"the last good checkpoint is kept: --resume {self.folder.path}")
                else:
                    self.say("there is no checkpoint yet to resume from")
            self._finish(error)
        finally:
            self._at_end.close()
        if error is not raised and error is not None:
            raise error from raised

    # --- learner and actors -----------------------------------------------------------------------

    def restore(self, learner: Saveable) -> None:
        """Set the learner to save; if the run is resumed, load its state."""
        if self.saved:
            learner.load(self.saved["learner"])
            torch.set_rng_state(self.saved["random"])
            # best.pt may be better than anything before the checkpoint, if the run crashed.
            best = run_folder.best_of(self.folder.best, self._config.best_by)
            counters = self.tally.counters
            counters.best_return = max(best.best_return, counters.best_return)
            counters.best_metric = max(best.best_metric, counters.best_metric)
            if self._evaluations is not None:
                self._evaluations.best = max(best.evaluated, self._evaluations.best)
        self._saveable = learner

    def learn_with(self, others: AllReduce) -> None:
        """Make this session's learner one of a group."""
        self.others = self.learner.others = others

    def keep(self, actors: A) -> A:
        """Close these actors when the session ends.  Returns them."""
        self._actors = actors
        self._at_end.callback(actors.close)
        return actors

    def at_end(self, end: Callable[[], object]) -> None:
        """Call this after the learner is saved and whatever was registered later is closed."""
        self._at_end.callback(end)

    def seed_of(self, number: int) -> int:
        """Return the seed of actor `number`.  Replacements and resumed runs get new seeds."""
        return seed_from(self._config.seed, self.times_resumed, number)

    @property
    def model(self) -> nn.Module:
        """The model as it is trained, whatever the algorithm."""
        return (self._saveable or self.learner).model

    # --- sampling ---------------------------------------------------------------------------------

    def count(self, rollouts: Sequence[Rollout]) -> Trajectory:
        """Count rollouts; return their trajectories, stacked."""
        for rollout in rollouts:
            self.tally.sampled(rollout.steps, rollout.episodes, rollout.seconds)
        self._hooks.rollout(rollouts)
        return stack([rollout.trajectory for rollout in rollouts])

    def take(self, actors: Rounds) -> list[Rollout]:
        """Wait up to POLL_S for a round; return its rollouts, or an empty list.

        With several learners, a round is over when it is over for all of them.
        """
        with self.spending("waiting"):
            rollouts = actors.take(timeout_s=POLL_S)
            if self.others is not None:
                rollouts = self._share(rollouts, self.others)
        if self.apart is not None:
            self._exchange_news(rollouts, self.apart)
        if self.others is None:
            for rollout in rollouts:
                self.tally.sampled(rollout.steps, rollout.episodes, rollout.seconds)
        self._hooks.rollout(rollouts)
        if not rollouts and self._recorder is not None:
            self._look_at_evaluation()
            # Not a checkpoint: actors cannot be saved during a round.
            self._recorder.write_due_row(self.seconds())
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
        if self.others is not None:
            minibatches = {each.minibatches for each in self._last_rounds}
            return trajectory if len(minibatches) == 1 and min(minibatches) else None
        return trajectory if trajectory.valid.any() else None

    def steps_of(self, rollouts: Sequence[Rollout]) -> int:
        """Return the steps of a round returned by `take`, of all learners."""
        if self.others is not None:
            return sum(each.steps for each in self._last_rounds)
        return sum(rollout.steps for rollout in rollouts)

    @property
    def all_ready(self) -> bool:
        """Whether all learners could draw from their replays at the end of the last round."""
        return all(each.is_ready for each in self._last_rounds)

    def _share(self, rollouts: list[Rollout], others: AllReduce) -> list[Rollout]:
        """Exchange a round with the other learners and count them all; return this one's rollouts.

        Returns none if this session is over first.
        """
        others.look()
        if not rollouts:
            return []
        own = self._round_of(rollouts)
        shared = others.exchange(json.dumps(own).encode(), self.over)
        if shared is None:
            return []
        self._last_rounds = [Round(*json.loads(content)) for content in shared]
        for each in self._last_rounds:
            self._count_round(each)
        return rollouts

    def _exchange_news(self, rollouts: Sequence[Rollout], apart: Apart) -> None:
        """Publish a round of this learner, and count what the others have published."""
        apart.steps[apart.rank] += sum(rollout.steps for rollout in rollouts)
        if apart.rank and rollouts:
            apart.rounds.append(self._round_of(rollouts))
        for each in apart.news():
            self._count_round(each)

    def _count_round(self, each: Round) -> None:
        episodes = [Episode(*episode) for episode in each.episodes]
        self.tally.sampled(each.steps, episodes, each.seconds)

    def _round_of(self, rollouts: Sequence[Rollout]) -> Round:
        spent, self._unreported = self._unreported, {}
        for rollout in rollouts:
            for phase, seconds in rollout.seconds.items():
                spent[phase] = spent.get(phase, 0.0) + seconds
        return Round(
            steps=sum(rollout.steps for rollout in rollouts),
            episodes=[
                (float(one.score), one.length, dict(one.metrics))
                for rollout in rollouts
                for one in rollout.episodes
            ],
            seconds=spent,
            minibatches=_minibatches_in(
                rollouts,
                getattr(self._config, "minibatches", 1),
                networks.is_recurrent(self.learner.model),
            ),
            is_ready=self.replay is None or self.replay.is_ready,
            clock_s=self._clock() - self._started,
        )

    def gather(self, actors: Stream[Rollout], count: int) -> Trajectory | None:
        """Wait up to POLL_S for `count` trajectories; return them stacked, or None.

        Trajectories received so far are kept for the next call.  A trajectory covers one actor's
        environments: a centrally sampled rollout counts as one for each actor.
        """
        width = count * self._config.rows_per_actor
        if sum(one.width for one in self._gathered) < width:
            with self.spending("waiting"):
                rollout = actors.take(timeout_s=POLL_S)
            if self.apart is not None:
                self._exchange_news([] if rollout is None else [rollout], self.apart)
                self.learner.optimizer.pull()  # the other learners' updates
            if rollout is None:
                self.tick()
                return None
            trajectory = self.count([rollout])
            if trajectory.valid.any():
                self._gathered.append(trajectory)
        if sum(one.width for one in self._gathered) < width:
            return None
        gathered, self._gathered = stack(self._gathered), []
        if gathered.width > width:  # a rollout covers more actors than an update uses
            self._gathered = [columns(gathered, slice(width, None))]
            gathered = columns(gathered, slice(width))
        return gathered if gathered.valid.any() else None

    # --- counting ---------------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Environment steps since the beginning of the run."""
        if self.apart is not None:
            return self._steps_before + int(self.apart.steps.sum())
        return self.tally.counters.env_steps

    def seconds(self) -> float:
        """Return the seconds of training, without the time between resumes."""
        return self._clock() - self._started

    @property
    def progress(self) -> float:
        """The position in the schedules of coefficients, from 0 to 1."""
        seconds = self._last_rounds[0].clock_s if self._last_rounds else self.seconds()
        return self._config.progress(self.env_steps, seconds)

    @contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Count the time of a block for a phase named in `metrics.py`."""
        waited_s = self._waited_s(phase)
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.tally.spent(phase, spent)
        group = self.others or self.apart
        if group is not None and group.rank and phase == "learning":
            self._unreported[phase] = self._unreported.get(phase, 0.0) + spent
        if phase == "learning":
            self._learning = spent, self._waited_s(phase) - waited_s

    def _waited_s(self, phase: str) -> float:
        """Return how long torch's threads have waited for a core, if `threads` needs it."""
        return waited_s() if phase == "learning" and self.threads is not None else 0.0

    def learnt(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Count an update; write what is due."""
        self.count_update(metrics, staleness)
        self.tick()

    def count_update(self, metrics: dict[str, float], staleness: Sequence[int] = ()) -> None:
        """Count an update without `tick`, if more must follow before a checkpoint."""
        if self._recorder is not None:
            self._recorder.count_update(metrics, staleness)
            self._hooks.update(metrics)
        if self.threads is not None and self.threads.updated(*self._learning):
            torch.set_num_threads(self.threads.count)

    def tick(self) -> None:
        """Write what is due and start due evaluations.  Call it in each iteration of the loop."""
        if self._recorder is not None:
            self._look_at_evaluation()
            self._begin_evaluation()
            self._recorder.write_due(self.seconds())

    def over(self) -> bool:
        """Whether to stop: at a limit or on request.  The first reason is kept."""
        if not self._ended:
            self._ended = (
                self._process.asked_to_stop
                or limit_reached(self._config, self.tally, self.seconds())
                if self._follows is None
                else self._follows()
            )
        return bool(self._ended)

    def stop(self, why: str) -> None:
        """End the run gracefully, as a limit does: for hooks.  The first reason is kept.

        No new evaluation starts; the end of the run waits for a running one.
        """
        self._ended = self._ended or why
        self._may_evaluate = False

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
        learner = self.learner
        given: dict[str, Any] = coefficients
        learner.config = dataclasses.replace(learner.config, **given)
        if coefficients.keys() & {"learning_rate", "learning_rate_end"}:
            learner.learning_rate = LearningRate.of(learner.config)

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

    def _check_is_alone(self, what: str) -> None:
        # Check the config too: in `on_start` the other learners do not exist yet.
        if learners_of(self._config) > 1 or self.apart is not None:
            raise TrainingError(f"{what} cannot be changed in a run with several learners")

    def log_image(self, name: str, image: Any) -> None:
        """Write an image for TensorBoard: for hooks.

        It is [height, width] or [height, width, channels], of bytes or of floats from 0 to 1; a
        tensor is one too.  metrics.csv has no part in it.  Raises TrainingError for other shapes.
        """
        if self._recorder is not None:
            self._recorder.log_image(name, _array_of(image))

    def log_histogram(self, name: str, numbers: Any) -> None:
        """Write a histogram of numbers, an array or a tensor, for TensorBoard: for hooks.

        metrics.csv has no part in it.  What is not finite is left out; raises TrainingError if
        nothing is left.
        """
        if self._recorder is not None:
            self._recorder.log_histogram(name, _array_of(numbers))

    def say(self, text: str) -> None:
        """Print a line for the user, in rank 0 only."""
        if self._recorder is not None:
            self._recorder.say(text)

    def warn(self, topic: str, text: str) -> None:
        """Print a line for the user, unless it is empty or its topic has had one."""
        if text and topic not in self._warned:
            self._warned.add(topic)
            self.say(text)

    def _checkpoint_content(self, path: Path) -> dict[str, Any] | None:
        if self._saveable is None:
            return None
        paused: list[bytes] = []
        # With several learners, the actors of the others are not paused at the same time.
        is_alone = self.others is None and self.apart is None
        if isinstance(self._actors, Rounds) and path == self.folder.checkpoint and is_alone:
            paused = self._actors.pause()
        kept: dict[str, Any] = {}
        if self.replay is not None and path == self.folder.checkpoint:
            kept["replay"] = self.replay.save()
        if self._evaluations is not None:
            kept["evaluations"] = self._evaluations.state()
        elif self.saved and "evaluations" in self.saved:
            kept["evaluations"] = self.saved["evaluations"]
        return kept | {
            "algorithm": self.algorithm,
            "env": name_of(self._config.env),
            "learner": self._saveable.state(),
            "counters": dataclasses.asdict(self.tally.counters),
            "recent": [list(episode) for episode in self.tally.recent],
            "random": torch.get_rng_state(),
            # As tensors, which load without running code.
            "actors": [torch.from_numpy(np.frombuffer(one, np.uint8).copy()) for one in paused],
            "times_resumed": self.times_resumed,
        }

    # --- evaluations ------------------------------------------------------------------------------

    def _evaluation_seed(self, env_steps: int) -> int:
        return seed_from(self._config.seed, 0, 0, env_steps)  # four words, so no actor's

    def _begin_evaluation(self) -> None:
        """Start an evaluation of the current policy, if one is due."""
        evaluations = self._evaluations if self._may_evaluate else None
        if evaluations is None or self._saveable is None or not evaluations.is_due(self.env_steps):
            return
        self.tally.counters.seconds = self.seconds()
        content = self._checkpoint_content(self.folder.best)
        if content is not None:
            evaluations.begin(self.env_steps, content, self._saveable.model, self.spaces)

    def _look_at_evaluation(self, timeout_s: float = 0.0) -> None:
        """Count an evaluation, if one ends within the timeout."""
        if self._evaluations is None or self._recorder is None:
            return
        if (measured := self._evaluations.look(timeout_s)) is not None:
            self._recorder.evaluated(measured)
            self._hooks.evaluation(measured.evaluation)

    def _end_evaluations(self) -> None:
        """Wait for the running evaluation and for one that is due, unless asked to stop."""
        evaluations, started, has_said = self._evaluations, time.monotonic(), False
        while evaluations is not None and not self._process.asked_to_stop:
            self._begin_evaluation()
            if not evaluations.is_under_way:
                return
            waited_s = time.monotonic() - started
            if waited_s > evaluating.END_S:
                self.say(f"the last evaluation has not ended in {waited_s:.0f} s: it is skipped")
                return
            if waited_s > SAY_AFTER_S and not has_said:
                self.say("waiting for the last evaluation; Ctrl-C skips it")
                has_said = True
            self._look_at_evaluation(POLL_S)

    def _finish(self, error: BaseException | None) -> None:
        self.crashes.flush()
        now = self.seconds()
        try:
            if error is None:
                self._end_evaluations()
        finally:
            if self._recorder is not None:
                self._recorder.finish(now, has_learner=self._saveable is not None)
        new_steps = self.env_steps - self._steps_before
        ended = summary = self._ended
        if error is not None:  # the caller prints its text
            kind = type(error).__name__
            ended, summary = f"{kind}: {error}", f"ended by {kind}"
        self.result = Result.of(self.folder.path, ended, self.tally, new_steps)
        if self._recorder is not None:
            self._recorder.say_summary(summary)
            self._hooks.end(self.result)


def _array_of(numbers: Any) -> Any:
    """Return a tensor of any device as an array, and everything else as it is."""
    if not isinstance(numbers, torch.Tensor):
        return numbers
    on_cpu = numbers.detach().cpu()
    return (on_cpu.float() if on_cpu.dtype is torch.bfloat16 else on_cpu).numpy()


class Process:
    """Process-wide state that a run changes: saved when this is made, and restored at the end."""

    def __init__(self) -> None:
        self._asked = ""
        self._is_in_main = threading.current_thread() is threading.main_thread()
        self._threads = torch.get_num_threads()
        self._random = torch.get_rng_state()
        self._handlers: dict[int, Any] = {}

    @property
    def asked_to_stop(self) -> str:
        """Why the run is asked to stop, or an empty string."""
        if not (self._asked or self._is_in_main) and main_is_interrupted():
            self._asked = "stopped by SIGINT"
        return self._asked

    def listen(self) -> None:
        """Install the signal handlers; in the main thread only, where Python allows it."""
        if self._is_in_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restore the saved state."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = f"stopped by {signal.Signals(number).name}"


def main_is_interrupted() -> bool:
    """Whether a KeyboardInterrupt propagates through the main thread, or has ended it.

    Meanwhile the main thread may wait for others: in a `finally`, or leaving a ThreadPoolExecutor.
    """
    main = threading.main_thread()
    if not main.is_alive():
        return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    handled: Any = sys._current_exceptions().get(main.ident or 0)
    # Python 3.11 returns the sys.exc_info() tuple of each thread.
    error = handled[1] if isinstance(handled, tuple) else handled
    return isinstance(error, KeyboardInterrupt)
