"""One training run, from folder to curve, whatever the algorithm.

A `Session` counts, records (`recorder.py`), says when to stop and leaves the run folder whole
however the run ends.  The algorithm's loop is its own:

    def loop(session: Session[Config]) -> None:
        learner, actors = session.learner, sampling.rounds(session)
        while not session.over():
            if actors.idle:
                actors.begin(learner.parameters())
            trajectory = session.collect(actors)
            if trajectory is None:  # the round is not over: look at the clock
                continue
            with session.spending("learning"):
                metrics = update(learner, trajectory, session.progress)
            session.learnt(metrics, staleness=[0])

Ctrl-C (or SIGTERM) makes `over` true; the loop ends where it is, and the session saves the
checkpoint and the curve.  A second Ctrl-C interrupts at once.  The session saves them too if the
loop raises, because the learner is whole between updates; but if the learner is lost, the last
checkpoint is kept as it is.  If the disk is full, the run says so and continues.

What a run changes in its process, and restores when it ends (`Process`):

    threads of torch    as many as fit the algorithm
    random numbers      torch's global generator starts at the run's seed, for the parts of a
                        model that draw from it: initial weights, dropout
    SIGINT, SIGTERM     ask the run to stop; the second one interrupts it at once

The library itself draws from generators of its own.  So runs in several threads of one process
do not disturb each other, except for dropout, which has no generator.  Python tells of signals in
the main thread alone: runs in other threads stop in good order if a KeyboardInterrupt is on its
way through that thread, or has ended it.

A run with several learners (`ranks.py`) has a session in each, and the same loop.  After each round
they tell each other what was sampled, so that all count alike and are equally far.  The session of
rank 0 is the run's; the others write nothing, and end when it has.

The file is over 700 lines: whatever ends or resumes a run reads and writes the same state, and a
reader of one of these needs the others.
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

TOLD_S = 2.0  # how long the end of a run waits for an evaluation before it says so

C = TypeVar("C", bound=Common)
A = TypeVar("A", bound=Rounds | Stream[Any] | ParameterServer)


class Saveable(Protocol):
    """A learner, wherever it is: what a session saves and restores."""

    @property
    def model(self) -> nn.Module: ...
    def state(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class Kept(Protocol):
    """What a run keeps in its folder beside the checkpoint."""

    @property
    def is_ready(self) -> bool:
        """Whether it holds something to learn from."""
        ...

    def save(self) -> dict[str, Any]:
        """Save it; return what the checkpoint has to say of it."""
        ...


class Round(NamedTuple):
    """What the learners tell each other after a round of their actors."""

    steps: int
    episodes: list[tuple[float, int, dict[str, float]]]
    seconds: dict[str, float]  # by phase
    minibatches: int  # that its experience can be cut into
    is_ready: bool  # to draw from its replay, if there is one
    clock_s: float  # since the run began; that of rank 0 counts


@dataclasses.dataclass
class Apart:
    """How sessions count whose learners share a store: each goes on by itself.

    `steps` are those of each learner's environments since they began, in memory that all share.
    Rank 0 hears of the `rounds` of the others now and then, from `news`; they keep them until then.
    """

    rank: int
    steps: NDArray[np.int64]
    news: Callable[[], Sequence[Round]] = lambda: ()
    rounds: deque[Round] = dataclasses.field(default_factory=deque)


class Result(NamedTuple):
    """How a run ended.  Seconds, steps and the like count from its beginning.

    `return_mean` is of the last 100 episodes, `best_return` the best of 30 as a row was written.
    """

    run: Path
    ended: str
    seconds: float
    env_steps: int
    updates: int
    episodes: int
    return_mean: float
    best_return: float
    # Of the steps those since the run was begun or resumed; None if there was nothing to do.
    new_steps: int | None = None

    @classmethod
    def of(cls, run: Path, ended: str, tally: Tally, new_steps: int | None = None) -> "Result":
        """The result of a run that has counted this."""
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
        """How a notebook shows it: with the curve."""
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
    """A seed that differs wherever one of these numbers does."""
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


def limit_reached(config: Common, tally: Tally, seconds: float) -> str:
    """Which limit of a config is reached, or an empty string."""
    if config.total_steps and tally.counters.env_steps >= config.total_steps:
        return f"{config.total_steps:,} steps are done"
    if config.minutes and seconds >= config.minutes * 60:
        return f"{config.minutes:g} minute{' is' if config.minutes == 1 else 's are'} over"
    if config.target is not None and tally.judged() >= config.target:
        return f"the mean return of {config.target:g} is reached"
    return ""


def _minibatches_in(rollouts: Sequence[Rollout], wanted: int, is_recurrent: bool) -> int:
    """How many minibatches of those wanted a round can be cut into."""
    valid = [rollout.trajectory.valid for rollout in rollouts]
    if is_recurrent:  # cut along the environments
        return min(wanted, sum(one.shape[1] for one in valid) if any(map(np.any, valid)) else 0)
    return min(wanted, sum(int(one.sum()) for one in valid))


class Session(Generic[C]):
    """See the module's docstring.  `training.begin` makes one.

    at its start    restore, keep, at_end, learn_with    what it saves, closes and counts with
    in its loop     take, collect, gather, count         rollouts, waited for in slices and counted
                    spending, learnt, count_update       what an update has taken and found
                    over, tick, progress                 whether to stop; what is due; the schedule
    to hooks        stop, change, set_env_attr           its end, coefficients, environments
    to its user     say, warn                            lines that stay on the terminal
    """

    result: Result
    learner: Learner[C]
    others: AllReduce | None = None  # learners, which do the same; see `learn_with`
    apart: Apart | None = None  # of a learner that shares a store
    opening: Sequence[str] = ()  # lines about the model, said at the start
    replay: Kept | None = None  # of a learner that has one
    threads: Threads | None = None  # of torch, if their number follows the load of the machine

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
        """`follows`, of a session that is not the run's own, says why it is to end, once it is."""
        self.folder = folder
        self.algorithm = algorithm
        self._config = config
        self.saved = saved  # the checkpoint that the run resumes from
        self._clock = clock
        self.tally = Tally.of(saved) if saved else Tally()
        counters = self.tally.counters
        self._began = clock() - counters.seconds
        self._steps_before = counters.env_steps
        self.times_resumed = saved["times_resumed"] + 1 if saved else 0
        self._process = process or Process()
        self._ended = ""  # why the run stops, once it does
        self._may_evaluate = True  # until a hook stops the run
        self._follows = follows
        self._title = f"{algorithm} on {name_of(config.env)}"
        self._hooks = Hooks(self, hooks)
        # None for a learner that is not the first of its run, which records what all have done.
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
        else:  # the terminal of the run shows as an actor's what this process prints
            self.crashes = Crashes(print, config.max_crash_rate)
        self._evaluations: Evaluations | None = None
        if self._recorder is not None and config.evaluate_every:
            known = saved.get("evaluations", {}) if saved else {}
            self._evaluations = Evaluations(config, self.say, self._evaluation_seed, known)
        self._round: list[Round] = []  # the last one, of all learners
        self._unreported: dict[str, float] = {}  # seconds spent since, by phase
        self._saveable: Saveable | None = None
        self._actors: Rounds | Stream[Any] | ParameterServer | None = None
        self._gathered: list[Trajectory] = []
        self._learning = 0.0, 0.0  # seconds of the last block of learning; waited for a core in it
        self._warned: set[str] = set()
        self._at_end = ExitStack()
        self._at_end.callback(self._process.restore)
        if self._evaluations is not None:
            self._at_end.callback(self._evaluations.close)

    def __enter__(self) -> "Session[C]":
        if self._follows is None:  # else it is the process of an actor
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
            ending = f"{type(error).__name__}: {error}" if error else self._ended
            self._finish(ending, raised=error is not None)
        finally:
            self._at_end.close()
        if error is not raised and error is not None:
            raise error from raised

    # --- learner and actors -----------------------------------------------------------------------

    def restore(self, learner: Saveable) -> None:
        """Hands over what to save; if the run is resumed, puts it back where it was."""
        if self.saved:
            learner.load(self.saved["learner"])
            torch.set_rng_state(self.saved["random"])
            # What a crash lost may have been better than the checkpoint that the run resumes from.
            best, evaluated = run_folder.best_of(self.folder.best)
            self.tally.counters.best_return = max(best, self.tally.counters.best_return)
            if self._evaluations is not None:
                self._evaluations.best = max(evaluated, self._evaluations.best)
        self._saveable = learner

    def learn_with(self, others: AllReduce) -> None:
        """From here on this session's learner is one of several."""
        self.others = self.learner.others = others

    def keep(self, actors: A) -> A:
        """Hands over actors, which the session closes when it ends.  Returns them."""
        self._actors = actors
        self._at_end.callback(actors.close)
        return actors

    def at_end(self, end: Callable[[], object]) -> None:
        """Has this called when the session has saved its learner, and closed what came after."""
        self._at_end.callback(end)

    def seed_of(self, number: int) -> int:
        """The seed of the n-th actor.  No two share one: not a replacement's, nor those after a
        resume."""
        return seed_from(self._config.seed, self.times_resumed, number)

    @property
    def model(self) -> nn.Module:
        """The model in training, with what it has learnt so far, whatever the algorithm."""
        return (self._saveable or self.learner).model

    # --- sampling ---------------------------------------------------------------------------------

    def count(self, rollouts: Sequence[Rollout]) -> Trajectory:
        """Counts rollouts in; returns their trajectories side by side."""
        for rollout in rollouts:
            self.tally.sampled(rollout.steps, rollout.episodes, rollout.seconds)
        self._hooks.rollout(rollouts)
        return stack([rollout.trajectory for rollout in rollouts])

    def take(self, actors: Rounds) -> list[Rollout]:
        """Waits for a round, for a moment at most; returns its rollouts, none if it is not over.

        With several learners, a round is over when those of all are.
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
            # No checkpoint: actors cannot be saved during a round.
            self._recorder.write_due_row(self.seconds())
        return rollouts

    def collect(self, actors: Rounds) -> Trajectory | None:
        """Waits for a round, for a moment at most; returns its trajectories side by side, or None
        if it is not over or holds no experience.

        Of several learners all have as many minibatches to learn from, or none learns: an update
        takes the gradients of all.
        """
        rollouts = self.take(actors)
        if not rollouts:
            return None
        trajectory = stack([rollout.trajectory for rollout in rollouts])
        if self.others is not None:
            minibatches = {of_one.minibatches for of_one in self._round}
            return trajectory if len(minibatches) == 1 and min(minibatches) else None
        return trajectory if trajectory.valid.any() else None

    def steps_of(self, rollouts: Sequence[Rollout]) -> int:
        """The steps of a round that `take` has returned, those of all learners."""
        if self.others is not None:
            return sum(of_one.steps for of_one in self._round)
        return sum(rollout.steps for rollout in rollouts)

    @property
    def all_ready(self) -> bool:
        """Whether all learners could draw from their replays when the last round was over."""
        return all(of_one.is_ready for of_one in self._round)

    def _share(self, rollouts: list[Rollout], others: AllReduce) -> list[Rollout]:
        """Counts a round of this learner and the same one of the others; returns this one's.

        Returns none if this session is over before the others are.
        """
        others.look()
        if not rollouts:
            return []
        own = self._round_of(rollouts)
        shared = others.exchange(json.dumps(own).encode(), self.over)
        if shared is None:
            return []
        self._round = [Round(*json.loads(content)) for content in shared]
        for of_one in self._round:
            self._count_round(of_one)
        return rollouts

    def _exchange_news(self, rollouts: Sequence[Rollout], apart: Apart) -> None:
        """Counts a round of this learner where others see it, and what is known of theirs."""
        apart.steps[apart.rank] += sum(rollout.steps for rollout in rollouts)
        if apart.rank and rollouts:
            apart.rounds.append(self._round_of(rollouts))
        for of_one in apart.news():
            self._count_round(of_one)

    def _count_round(self, of_one: Round) -> None:
        episodes = [Episode(*episode) for episode in of_one.episodes]
        self.tally.sampled(of_one.steps, episodes, of_one.seconds)

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
            clock_s=self._clock() - self._began,
        )

    def gather(self, actors: Stream[Rollout], count: int) -> Trajectory | None:
        """Waits for `count` trajectories, for a moment at most; returns them side by side, or None.

        Those that came are kept for the next call.  A trajectory is of the environments of
        an actor: a rollout that was sampled centrally is one for each actor.
        """
        width = count * self._config.rows_per_actor
        if sum(one.width for one in self._gathered) < width:
            with self.spending("waiting"):
                rollout = actors.take(timeout_s=POLL_S)
            if self.apart is not None:
                self._exchange_news([] if rollout is None else [rollout], self.apart)
                self.learner.optimizer.pull()  # what others have learnt meanwhile
            if rollout is None:
                self.tick()
                return None
            trajectory = self.count([rollout])
            if trajectory.valid.any():
                self._gathered.append(trajectory)
        if sum(one.width for one in self._gathered) < width:
            return None
        gathered, self._gathered = stack(self._gathered), []
        if gathered.width > width:  # of a rollout of more actors than an update is to learn from
            self._gathered = [columns(gathered, slice(width, None))]
            gathered = columns(gathered, slice(width))
        return gathered if gathered.valid.any() else None

    # --- counting ---------------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Steps of experience since the beginning of the run."""
        if self.apart is not None:
            return self._steps_before + int(self.apart.steps.sum())
        return self.tally.counters.env_steps

    def seconds(self) -> float:
        """Seconds of training since the beginning of the run, without the time between resumes."""
        return self._clock() - self._began

    @property
    def progress(self) -> float:
        """How much of the schedule of coefficients is over, from 0 to 1."""
        seconds = self._round[0].clock_s if self._round else self.seconds()
        return self._config.progress(self.env_steps, seconds)

    @contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Counts the time of a block in, for a phase that `metrics.py` names."""
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
        """How long threads have waited for a core, where their number follows that."""
        return waited_s() if phase == "learning" and self.threads is not None else 0.0

    def learnt(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Counts an update in; writes what is due."""
        self.count_update(metrics, staleness)
        self.tick()

    def count_update(self, metrics: dict[str, float], staleness: Sequence[int] = ()) -> None:
        """Counts an update in, of several after which the learner is whole."""
        if self._recorder is not None:
            self._recorder.count_update(metrics, staleness)
            self._hooks.update(metrics)
        if self.threads is not None and self.threads.updated(*self._learning):
            torch.set_num_threads(self.threads.count)

    def tick(self) -> None:
        """Writes what is due, and begins an evaluation; call it in each turn of the loop."""
        if self._recorder is not None:
            self._look_at_evaluation()
            self._begin_evaluation()
            self._recorder.write_due(self.seconds())

    def over(self) -> bool:
        """Whether to stop: a limit is reached, or the run is asked to.  The first reason stays."""
        if not self._ended:
            self._ended = (
                self._process.asked_to_stop
                or limit_reached(self._config, self.tally, self.seconds())
                if self._follows is None
                else self._follows()
            )
        return bool(self._ended)

    def stop(self, why: str) -> None:
        """Ends the run in good order, as a limit does: for hooks.  The first reason stays.

        No other evaluation begins; the end of the run waits for one under way.
        """
        self._ended = self._ended or why
        self._may_evaluate = False

    def change(self, **coefficients: float) -> None:
        """Changes coefficients of the updates to come: for hooks.

        They are those of `hooks.COEFFICIENTS` that the algorithm has; a run that is resumed begins
        with those of its config.  Raises TrainingError for another, a value out of its range, or
        several learners.
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
        """Sets an attribute of all environments from the next rollout on: for hooks.

        They have copies of it.  Those that replace others have it too; those of evaluations do not.
        Set it again where a run is resumed.  Raises TrainingError for several learners; the run
        does if environments have no such attribute.
        """
        self._check_is_alone("attributes of environments")
        learner = self.learner
        version, values = learner.env_attributes
        learner.env_attributes = EnvAttributes(version + 1, {**values, name: copy.deepcopy(value)})

    def _check_is_alone(self, what: str) -> None:
        # By the config too: in `on_start` the others are not there yet.
        if learners_of(self._config) > 1 or self.apart is not None:
            raise TrainingError(f"{what} cannot be changed where several learners share a run")

    def say(self, text: str) -> None:
        """Prints a line for the user, once: the first learner says the same for all."""
        if self._recorder is not None:
            self._recorder.say(text)

    def warn(self, topic: str, text: str) -> None:
        """Prints a line for the user, the first on its topic; nothing if it is empty."""
        if text and topic not in self._warned:
            self._warned.add(topic)
            self.say(text)

    def _checkpoint_content(self, path: Path) -> dict[str, Any] | None:
        if self._saveable is None:
            return None
        paused: list[bytes] = []
        # Else other learners are at other moments.
        alone = self.others is None and self.apart is None
        if isinstance(self._actors, Rounds) and path == self.folder.checkpoint and alone:
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
            # Tensors, which are read without running any code.
            "actors": [torch.from_numpy(np.frombuffer(one, np.uint8).copy()) for one in paused],
            "times_resumed": self.times_resumed,
        }

    # --- evaluations ------------------------------------------------------------------------------

    def _evaluation_seed(self, env_steps: int) -> int:
        return seed_from(self._config.seed, 0, 0, env_steps)  # of four words: no actor's

    def _begin_evaluation(self) -> None:
        """Begins an evaluation of the learner as it is, if one is due."""
        evaluations = self._evaluations if self._may_evaluate else None
        if evaluations is None or self._saveable is None or not evaluations.is_due(self.env_steps):
            return
        self.tally.counters.seconds = self.seconds()
        content = self._checkpoint_content(self.folder.best)
        if content is not None:
            evaluations.begin(self.env_steps, content, self._saveable.model)

    def _look_at_evaluation(self, timeout_s: float = 0.0) -> None:
        """Counts an evaluation in, if one has ended by now or within the time."""
        if self._evaluations is None or self._recorder is None:
            return
        if (measured := self._evaluations.look(timeout_s)) is not None:
            self._recorder.evaluated(measured)
            self._hooks.evaluation(measured.evaluation)

    def _end_evaluations(self) -> None:
        """Waits for the evaluation under way, and the one that is due after it; not at a Ctrl-C."""
        evaluations, began, told = self._evaluations, time.monotonic(), False
        while evaluations is not None and not self._process.asked_to_stop:
            self._begin_evaluation()
            if not evaluations.is_under_way:
                return
            waited_s = time.monotonic() - began
            if waited_s > evaluating.END_S:
                self.say(f"the last evaluation has not ended in {waited_s:.0f} s: it is left out")
                return
            if waited_s > TOLD_S and not told:
                self.say("waiting for the last evaluation; Ctrl-C leaves it out")
                told = True
            self._look_at_evaluation(POLL_S)

    def _finish(self, ended: str, raised: bool) -> None:
        self.crashes.flush()
        now = self.seconds()
        try:
            if not raised:
                self._end_evaluations()
        finally:
            if self._recorder is not None:
                self._recorder.finish(now, has_learner=self._saveable is not None)
        new_steps = self.env_steps - self._steps_before
        self.result = Result.of(self.folder.path, ended, self.tally, new_steps)
        if self._recorder is not None:
            self._recorder.say_summary(ended)
            self._hooks.end(self.result)


class Process:
    """Remembers the state of the process when it is made, to restore it."""

    def __init__(self) -> None:
        self._asked = ""
        self._is_in_main = threading.current_thread() is threading.main_thread()
        self._threads = torch.get_num_threads()
        self._random = torch.get_rng_state()
        self._handlers: dict[int, Any] = {}

    @property
    def asked_to_stop(self) -> str:
        """What asks the run to stop, or an empty string."""
        if not (self._asked or self._is_in_main) and main_is_interrupted():
            self._asked = "stopped by SIGINT"
        return self._asked

    def listen(self) -> None:
        """From here on signals ask to stop; only in the main thread, as Python has it."""
        if self._is_in_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restores all of it."""
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
    """Whether the main thread handles a KeyboardInterrupt, or was ended by one.

    It may wait for other threads as it does: in a `finally`, or where a ThreadPoolExecutor ends.
    """
    main = threading.main_thread()
    if not main.is_alive():
        return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    handled: Any = sys._current_exceptions().get(main.ident or 0)
    # Python 3.11 gives what sys.exc_info() returns there.
    error = handled[1] if isinstance(handled, tuple) else handled
    return isinstance(error, KeyboardInterrupt)
