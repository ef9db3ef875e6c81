"""One training run, from folder to curve, whatever the algorithm.

A `Session` makes the learner and its actors, counts, writes rows, saves checkpoints, says
when to stop and leaves the run folder whole however it ends.  The algorithm's loop is its own:

    with training.begin("a2c", Config, config, model, run, resume) as session:
        learner, actors = session.learner, session.rounds()
        while not session.over():
            if actors.idle:
                actors.begin(learner.parameters())
            trajectory = session.collect(actors)
            if trajectory is None:  # not all of it is there yet: look at the clock
                continue
            with session.spending("learning"):
                metrics = update(learner, trajectory, session.env_steps)
            session.learnt(metrics, staleness=[0])
    return session.result

Ctrl-C (or SIGTERM) makes `over` true; the loop ends where it stands, and the checkpoint
and the curve are kept.  A second Ctrl-C interrupts at once.  The same is kept if the loop
raises, for the learner is whole between updates; but if what it holds is lost, the checkpoint
before is kept.  A disk that is full is told of, and the run goes on.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import gymnasium
import numpy as np
import torch
from torch import nn

from remotely_rl import networks
from remotely_rl.acting.actor import Actor, Rollout
from remotely_rl.acting.crew import POLL_S
from remotely_rl.acting.rounds import Rounds
from remotely_rl.acting.samplers import Samplers
from remotely_rl.acting.stream import Stream
from remotely_rl.config import Common
from remotely_rl.environments import Episode, name_of
from remotely_rl.errors import LearnerLost, TrainingError, nearest
from remotely_rl.experience.trajectory import Trajectory, stack
from remotely_rl.learning import threads
from remotely_rl.learning.learner import Learner, gpu_lost
from remotely_rl.learning.parameter_server import ParameterServer
from remotely_rl.learning.reward_clipping import ClippingReport
from remotely_rl.runs import checkpoint, earlier_names, run_folder
from remotely_rl.runs.making import make_learner
from remotely_rl.runs.metrics import Counters, Tally
from remotely_rl.runs.process import Process
from remotely_rl.runs.progress import Progress
from remotely_rl.runs.recorder import Record

C = TypeVar("C", bound=Common)
A = TypeVar("A", bound=Rounds | Stream[Any] | ParameterServer)


class Saved(Protocol):
    """What a session asks of whoever learns, to save and restore it."""

    @property
    def model(self) -> nn.Module: ...
    def state(self) -> dict[str, Any]: ...
    def load(self, state: dict[str, Any]) -> None: ...


class Result(NamedTuple):
    """How a run ended.  Seconds, steps and the like count from its beginning."""

    run: Path
    ended: str
    seconds: float
    env_steps: int
    updates: int
    episodes: int
    return_mean: float
    best_return: float

    @classmethod
    def of(cls, run: Path, ended: str, tally: Tally) -> "Result":
        """What a tally says at the end."""
        counters = tally.counters
        return cls(
            run,
            ended,
            counters.seconds,
            counters.env_steps,
            counters.updates,
            counters.episodes,
            tally.return_mean(),
            counters.best_return,
        )


class Session(Generic[C]):
    """See the module's docstring.  Made by `begin`."""

    result: Result
    learner: Learner[C]
    opening: Sequence[str] = ()  # what is said at the start

    def __init__(
        self,
        algorithm: str,
        config: C,
        folder: run_folder.RunFolder,
        saved: dict[str, Any] | None = None,
        *,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        process: Process | None = None,
    ):
        self.folder = folder
        self._algorithm = algorithm
        self._config = config
        self._saved = saved
        self._clock = clock
        self._ended = ""
        self._process = process or Process()
        counters = Counters(**saved["counters"]) if saved else Counters()
        self.tally = Tally(counters)
        if saved:
            self.tally.recent.extend(Episode(*episode) for episode in saved["recent"])
        self.times_resumed = saved["times_resumed"] + 1 if saved else 0
        self.record = Record(
            folder,
            f"{algorithm} on {name_of(config.env)}",
            config,
            resumed_at_s=counters.seconds if saved else None,
            progress=progress,
        )
        self._began = clock() - counters.seconds
        self._row_due = counters.seconds + config.log_interval_s
        self._checkpoint_due = counters.seconds + config.checkpoint_interval_s
        self._who_learns: Saved | None = None
        self._actors: Rounds | Stream[Any] | ParameterServer | None = None
        self._clipped = ClippingReport(config.clips_rewards_at)
        self._gathered: list[Trajectory] = []

    def __enter__(self) -> "Session[C]":
        self._process.listen()
        for text in (f"{self.record.title}: {self.folder.path}", *self.opening):
            self.say(text)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        cause = error
        if isinstance(error, torch.AcceleratorError):
            error = gpu_lost(error)
        try:
            if isinstance(error, LearnerLost):
                self._who_learns = None  # not to be saved
                if self.folder.checkpoint.exists():
                    self.say(f"the last good checkpoint is kept: --resume {self.folder.path}")
                else:
                    self.say("it came before the first checkpoint: there is none to resume from")
            self._finish(f"{type(error).__name__}: {error}" if error else self._ended)
        finally:
            if self._actors is not None:
                self._actors.close()
            self._process.restore()
        if error is not None and error is not cause:
            raise error from cause

    # --- who learns, and who samples --------------------------------------------------------------

    def restore(self, learner: Saved) -> None:
        """Hands over who learns; if the run is resumed, puts it back where it was.

        `rounds` and `stream` do so with the session's own learner.
        """
        if self._saved:
            learner.load(self._saved["learner"])
            torch.set_rng_state(self._saved["random"])
            # What a crash lost may have been better than the checkpoint that the run goes on from.
            best = checkpoint.best_return(self.folder.best)
            self.tally.counters.best_return = max(best, self.tally.counters.best_return)
        self._who_learns = learner

    def rounds(self) -> Rounds:
        """Actors that sample in rounds.  The learner has all cores, unless its
        network is small: they rest while it learns.

        If the run is resumed, they go on where they were, if their environments can be saved.
        """
        size = sum(parameter.numel() for parameter in self.learner.model.parameters())
        _compute_in(threads.in_rounds(size), self)
        rounds = self.keep(Rounds(_crew_of(self)))
        if self._saved:
            paused = [one.numpy().tobytes() for one in self._saved["actors"]]
            if why := rounds.resume(paused):
                self.say(f"{why}: new games begin")
        return rounds

    def stream(self, ahead: int, batch: int, max_staleness: int | None) -> Stream[Rollout]:
        """Actors that run free.  The learner has the cores that they leave, at least one."""
        config = self._config
        _compute_in(threads.beside(config.actors), self)
        return self.keep(Stream(_crew_of(self), ahead, batch, max_staleness))

    def keep(self, actors: A) -> A:
        """Hands over actors, which are ended with the session.  Returns them."""
        self._actors = actors
        return actors

    def stream_of(self, number: int) -> int:
        """The seed of the n-th actor.  No two share one: not a replacement's, nor those after a
        resume."""
        words = [self._config.seed, self.times_resumed, number]
        return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1

    # --- counting ---------------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Steps of experience since the beginning of the run."""
        return self.tally.counters.env_steps

    def count(self, rollouts: Sequence[Rollout]) -> Trajectory:
        """Counts rollouts in; returns their trajectories side by side."""
        for rollout in rollouts:
            self.tally.sampled(rollout.steps, rollout.episodes, rollout.seconds)
        return stack([rollout.trajectory for rollout in rollouts])

    def collect(self, actors: Rounds) -> Trajectory | None:
        """Waits for a round, a moment at most; returns its trajectories side by side, or None if
        it is not over, or holds no experience."""
        with self.spending("waiting"):
            rollouts = actors.take(timeout_s=POLL_S)
        if rollouts:
            trajectory = self.count(rollouts)
            if trajectory.valid.any():
                return trajectory
        self._write_row_if_due()  # no checkpoint: amid a round the actors cannot be saved
        return None

    def gather(self, actors: Stream[Rollout], count: int) -> Trajectory | None:
        """Waits for `count` trajectories, a moment at most; returns them side by side, or None.

        Those that came are kept for the next call.
        """
        with self.spending("waiting"):
            rollout = actors.take(timeout_s=POLL_S)
        if rollout is None:
            self.tick()
            return None
        trajectory = self.count([rollout])
        if trajectory.valid.any():
            self._gathered.append(trajectory)
        if len(self._gathered) < count:
            return None
        gathered, self._gathered = self._gathered, []
        return stack(gathered)

    def learnt(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Counts an update in; writes what is due."""
        self.tally.learnt(metrics, staleness)
        self._clipped.count(metrics)
        self.tick()

    @contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Counts the time of a block in, for a phase that `metrics.py` names."""
        start = time.perf_counter()
        yield
        self.tally.spent(phase, time.perf_counter() - start)

    def seconds(self) -> float:
        """Seconds of training since the beginning of the run, pauses left out."""
        return self._clock() - self._began

    def over(self) -> bool:
        """Whether to stop: a limit is reached, or someone asked for it."""
        self._ended = (
            self._ended
            or self._process.asked_to_stop
            or why_over(self._config, self.tally, self.seconds())
        )
        return bool(self._ended)

    def tick(self) -> None:
        """To be called once a turn: writes what is due."""
        self._write_row_if_due()
        if self.seconds() >= self._checkpoint_due:
            self._save(self.folder.checkpoint)
            self._checkpoint_due = self.seconds() + self._config.checkpoint_interval_s

    def _write_row_if_due(self) -> None:
        now = self.seconds()
        if now >= self._row_due:
            self._row_due = now + self._config.log_interval_s
            self._write_row(now)

    def say(self, text: str) -> None:
        """Tells the user something, in a line that stays."""
        self.record.say(text)

    def _write_row(self, now: float) -> None:
        self.record.add(self.tally.close(now))
        if clipped := self._clipped.news():
            self.say(clipped)
        counters = self.tally.counters
        if self.tally.judged() > counters.best_return:
            counters.best_return = self.tally.judged()
            self._save(self.folder.best)

    def _save(self, path: Path) -> None:
        if self._who_learns is None:
            return
        self.tally.counters.seconds = self.seconds()
        paused: list[bytes] = []
        if isinstance(self._actors, Rounds) and path == self.folder.checkpoint:
            paused = self._actors.pause()
        content = {
            "algorithm": self._algorithm,
            "env": name_of(self._config.env),
            "learner": self._who_learns.state(),
            "counters": dataclasses.asdict(self.tally.counters),
            "recent": [list(episode) for episode in self.tally.recent],
            "random": torch.get_rng_state(),
            # Tensors, which are read without running any code.
            "actors": [torch.from_numpy(np.frombuffer(one, np.uint8).copy()) for one in paused],
            "times_resumed": self.times_resumed,
        }
        self.record.save(path, content)

    def _finish(self, ended: str) -> None:
        self.tally.counters.seconds = self.seconds()
        try:
            if self._who_learns is not None:
                self._write_row(self.seconds())
                self._save(self.folder.checkpoint)
            self.record.draw()
        finally:
            self.record.close()
        self.result = Result.of(self.folder.path, ended, self.tally)
        if clipped := self._clipped.summary():
            self.say(clipped)
        self.say(f"{ended}; the run is in {self.folder.path}")


def why_over(config: Common, tally: Tally, seconds: float) -> str:
    """Which limit of a config is reached, or nothing."""
    if config.total_steps and tally.counters.env_steps >= config.total_steps:
        return f"{config.total_steps:,} steps are done"
    if config.minutes and seconds >= config.minutes * 60:
        return f"{config.minutes:g} minutes are over"
    if config.target is not None and tally.judged() >= config.target:
        return f"the mean return of {config.target:g} is reached"
    return ""


def _compute_in(count: int, session: Session[Any]) -> None:
    count = session.learner.config.learner_threads or count
    torch.set_num_threads(count)
    if threads.spins and count > 1 and session.learner.device.type == "cpu":
        session.say(threads.WARNING)


def _crew_of(session: Session[Any]) -> Samplers[Rollout]:
    learner = session.learner
    session.restore(learner)
    config, model = learner.config, networks.copy_to_cpu(learner.model)

    def hire(number: int) -> Actor:
        return Actor(config, model, session.stream_of(number), number >= (config.actors or 1))

    return Samplers(
        hire,
        config.actors or 1,
        learner.parameters(),
        session.say,
        grows=config.actors == 0,
        over=session.over,
    )


def begin(
    algorithm: str,
    kind: type[C],
    config: C | None,
    model: networks.ModelSource | None = None,
    run: str | Path | None = None,
    resume: str | Path | None = None,
    prepare: Callable[[C], C] = lambda config: config,
) -> Session[C]:
    """Makes the session of a new run in folder `run`, or of the run in folder `resume`.

    Makes the learner too.  Raises TrainingError if `run` exists, `resume` is no run of this
    algorithm and environment or has no checkpoint, the model does not fit, and the like.
    The run folder holds the config that was given, the learner what `prepare` makes of it; a
    run that is resumed with another config has that one from then on.
    """
    process = Process()
    try:
        if config is None:
            config = kind() if resume is None else config_of(kind, algorithm, resume)
        if resume is None and run is not None:
            run_folder.check_is_free(Path(run))
        config.check_run()
        learner = make_learner(prepare(config), model)
        config.check_fits(learner.model, learner.actions)
        session = _session(algorithm, config, learner.model, run, resume, process)
    except BaseException:
        process.restore()
        raise
    session.learner = learner
    session.opening = learner.description
    return session


def _session(
    algorithm: str, config: C, model: nn.Module, run: str | Path | None,
    resume: str | Path | None, process: Process,
) -> Session[C]:  # fmt: skip
    if resume is None:
        folder = run_folder.create(_path(run), algorithm, config)
        return Session(algorithm, config, folder, process=process)
    if run is not None:
        raise TrainingError("a run goes on in its own folder: give --resume alone, without --run")
    folder, _ = run_folder.reopen(Path(resume), algorithm)
    saved = checkpoint.load(folder.checkpoint)
    if saved["env"] != name_of(config.env):
        raise TrainingError(f"{resume} is a run on {saved['env']}, not on {name_of(config.env)}")
    state = earlier_names.renamed_state(saved["learner"]["model"], model.state_dict())
    checkpoint.check_fits(folder.checkpoint, state, model)
    saved["learner"]["model"] = state
    run_folder.write(folder, algorithm, config)
    return Session(algorithm, config, folder, saved, process=process)


def config_of(
    kind: type[C], algorithm: str, run: str | Path, given: dict[str, Any] | None = None
) -> C:
    """The config that the run in this folder was made with, but for what is `given`.

    Raises TrainingError if it is no run of this algorithm, has an option that is unknown, or was
    made in an environment of the user's, which has to be given: the folder knows its name alone.
    """
    _, kept = run_folder.reopen(Path(run), algorithm)
    known = [field.name for field in dataclasses.fields(kind)]
    removed = earlier_names.REMOVED.get(algorithm, ())
    kept = {name: value for name, value in kept.items() if name not in removed}
    for name in kept:
        if name not in known:
            raise TrainingError(f"{algorithm} has no option {name!r}{nearest(name, known)}")
    given = given or {}
    config = kind(**{**kept, **given})
    object.__setattr__(config, "overridden", frozenset(given))
    env = config.env
    if env == kept["env"] and ":" not in str(env) and env not in gymnasium.registry:
        raise TrainingError(
            f"{run} was trained on {env}, which Gymnasium does not know; if it is a callable of"
            " your own, give it: env=, or --env FILE.py:NAME"
        )
    return config


def _path(run: str | Path | None) -> Path | None:
    return None if run is None else Path(run)
