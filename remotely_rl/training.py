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
                numbers = update(learner, trajectory, session.env_steps)
            session.learnt(numbers, staleness=[0])
    return session.result

Ctrl-C (or SIGTERM) makes `over` true; the loop ends where it stands, and the checkpoint
and the curve are kept.  A second Ctrl-C interrupts at once.  The same is kept if the loop
raises, for the learner is whole between updates; but if what it holds is lost, the checkpoint
before is kept.  A disk that is full is told of, and the run goes on.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

import gymnasium
import numpy as np
import torch
from torch import nn

import remotely
from remotely_rl import (
    about,
    checkpoint,
    curve,
    environments,
    failures,
    metrics,
    models,
    run_folder,
    sampler,
    threads,
)
from remotely_rl.acting import Actor, Rollout
from remotely_rl.clipping import Clipped
from remotely_rl.config import Common, Shared
from remotely_rl.environments import Episode, name_of
from remotely_rl.errors import LearnerLost, TrainingError, nearest
from remotely_rl.learner import Learner
from remotely_rl.metrics import Counters, Tally
from remotely_rl.process import MAKING, Process, one_thread
from remotely_rl.progress import Progress
from remotely_rl.sampler import Rounds, Samplers, Stream
from remotely_rl.sharing import Report, SegmentWork, SharedLearner
from remotely_rl.sync.server import ParameterServer, Pushed, Worker
from remotely_rl.trajectory import Trajectory, stack

PROBE_STEPS = 512
PROBES = 12  # attempts at that
LOOK_EVERY_S = 0.5  # at the clock, and whether Ctrl-C was pressed, while actors are waited for

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


class Session:
    """See the module's docstring.  Made by `begin`."""

    result: Result
    learner: Learner
    opening: Sequence[str] = ()  # what is said at the start

    def __init__(
        self,
        algorithm: str,
        config: Common,
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
        self._writer = metrics.Writer(folder.path, counters.seconds if saved else None)
        self._title = f"{algorithm} on {name_of(config.env)}"
        self._progress = progress or Progress(f"{self._title}, in {folder.path}", config)
        self._began = clock() - counters.seconds
        self._row_due = counters.seconds + config.interval_s
        self._checkpoint_due = counters.seconds + config.checkpoint_s
        self._who_learns: Saved | None = None
        self._actors: Rounds | Stream[Any] | ParameterServer | None = None
        self._clipped = Clipped(config.clips_rewards_at)
        self._gathered: list[Trajectory] = []
        self._unwritten: set[Path] = set()  # files that the disk had no room for, or the like

    def __enter__(self) -> "Session":
        self._process.listen()
        for text in (f"{self._title}: {self.folder.path}", *self.opening):
            self.say(text)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, LearnerLost):
                self._who_learns = None  # not to be saved
                if self.folder.checkpoint.exists():
                    self.say(f"the last good checkpoint is kept: --resume {self.folder.path}")
                else:
                    self.say("it came before the first checkpoint: there is none to resume from")
            self._finish(f"{kind.__name__}: {error}" if kind else self._ended)
        finally:
            if self._actors is not None:
                self._actors.close()
            self._process.restore()

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
        self._compute_in(threads.in_rounds(size))
        rounds = self.keep(Rounds(self._crew()))
        if self._saved and (why := self._go_on(rounds.crew.actors, self._saved["actors"])):
            self.say(f"{why}: new games begin")
        return rounds

    def _go_on(self, actors: Sequence[Any], paused: Sequence[torch.Tensor]) -> str:
        """Has actors go on where they were paused; returns why they cannot, or nothing."""
        if not paused:
            return "the checkpoint was made amid a round, without the environments"
        if not all(len(one) for one in paused):
            return "the environments could not be saved"
        if len(actors) != len(paused):
            return f"there were {len(paused)} actors, and there are {len(actors)} now"
        went_on = [
            actor.go_on(one.numpy().tobytes()) for actor, one in zip(actors, paused, strict=True)
        ]
        return "" if all(went_on) else "the environments are not those that were saved"

    def stream(self, ahead: int, batch: int, max_staleness: int | None) -> Stream[Rollout]:
        """Actors that run free.  The learner has the cores that they leave, at least one."""
        config = self._config
        self._compute_in(threads.beside(config.actors))
        return self.keep(Stream(self._crew(), ahead, batch, max_staleness))

    def serve(
        self, learner: SharedLearner, make_work: Callable[[int], SegmentWork]
    ) -> ParameterServer:
        """Workers that share a learner's parameters; `make_work(seed)` is done at each."""
        self.restore(learner)
        sampler.connect(self._config.actors)
        torch.set_num_threads(1)  # the workers have the cores

        def hire(number: int) -> Worker:
            return Worker(make_work, self.stream_of(number), number >= learner.config.actors)

        return self.keep(
            ParameterServer(
                learner.rule,
                hire,
                self.say,
                learner.config.accumulate,
                told=learner.follow(self.env_steps),
                over=self.over,
            )
        )

    def take(self, learner: SharedLearner, workers: ParameterServer) -> Pushed | None:
        """Waits for a push, a moment at most; counts what was played for it."""
        told = learner.follow(self.env_steps)
        with self.spending("waiting"):
            pushed = workers.take(timeout_s=LOOK_EVERY_S, told=told)
        if pushed is None:
            self.tick()
            return None
        learner.count_in(pushed)
        report: Report = pushed.report
        self.tally.sampled(report.steps, report.episodes, report.seconds)
        return pushed

    def _compute_in(self, count: int) -> None:
        count = self._config.learner_threads or count
        torch.set_num_threads(count)
        if threads.spins and count > 1 and self.learner.device.type == "cpu":
            self.say(threads.WARNING)

    def keep(self, actors: A) -> A:
        """Hands over actors, which are ended with the session.  Returns them."""
        self._actors = actors
        return actors

    def _crew(self) -> Samplers[Rollout]:
        config, learner = self._config, self.learner
        self.restore(learner)
        model = models.on_cpu(learner.model)

        def hire(number: int) -> Actor:
            return Actor(config, model, self.stream_of(number), number >= (config.actors or 1))

        sampler.connect(config.actors)
        return Samplers(
            hire,
            config.actors or 1,
            learner.parameters(),
            self.say,
            grows=config.actors == 0,
            over=self.over,
        )

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
            rollouts = actors.take(timeout_s=LOOK_EVERY_S)
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
            rollout = actors.take(timeout_s=LOOK_EVERY_S)
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

    def learnt(self, numbers: dict[str, float], staleness: Sequence[int]) -> None:
        """Counts an update in; writes what is due."""
        self.tally.learnt(numbers, staleness)
        self._clipped.count(numbers)
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
        self._ended = self._ended or self._why_stop()
        return bool(self._ended)

    def tick(self) -> None:
        """To be called once a turn: writes what is due."""
        self._write_row_if_due()
        if self.seconds() >= self._checkpoint_due:
            self._save(self.folder.checkpoint)
            self._checkpoint_due = self.seconds() + self._config.checkpoint_s

    def _write_row_if_due(self) -> None:
        now = self.seconds()
        if now >= self._row_due:
            self._row_due = now + self._config.interval_s
            self._write_row(now)

    def say(self, text: str) -> None:
        """Tells the user something, in a line that stays."""
        self._progress.say(text)

    def _why_stop(self) -> str:
        if self._process.asked_to_stop:
            return self._process.asked_to_stop
        config, counters = self._config, self.tally.counters
        if config.steps and counters.env_steps >= config.steps:
            return f"{config.steps:,} steps are done"
        if config.minutes and self.seconds() >= config.minutes * 60:
            return f"{config.minutes:g} minutes are over"
        if config.target is not None and self.tally.judged() >= config.target:
            return f"the mean return of {config.target:g} is reached"
        return ""

    def _write_row(self, now: float) -> None:
        row = self.tally.close(now)
        with self._disk(self.folder.metrics):
            self._writer.write(row)
        self._progress.show(row)
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
        content = {
            "algorithm": self._algorithm,
            "env": name_of(self._config.env),
            "learner": self._who_learns.state(),
            "counters": dataclasses.asdict(self.tally.counters),
            "recent": [list(episode) for episode in self.tally.recent],
            "random": torch.get_rng_state(),
            "actors": self._pause_actors() if path == self.folder.checkpoint else [],
            "times_resumed": self.times_resumed,
        }
        with self._disk(path):
            checkpoint.save(path, content)

    def _pause_actors(self) -> list[torch.Tensor]:
        """What each actor needs to go on; tensors, which are read without running any code."""
        if not isinstance(self._actors, Rounds) or not self._actors.idle:
            return []
        try:
            calls = [
                remotely.submit(actor.pause)  # type: ignore[attr-defined]
                for actor in self._actors.crew.actors
            ]
            paused = [call.result() for call in calls]
        except failures.LOST:  # the next round will tell, and replace it
            return []
        return [torch.from_numpy(np.frombuffer(one, np.uint8).copy()) for one in paused]

    @contextmanager
    def _disk(self, path: Path) -> Iterator[None]:
        """A write that fails is told of, once, and training goes on."""
        try:
            yield
        except OSError as error:
            if not self._unwritten:
                self.say(f"cannot write to {self.folder.path}: {error.strerror or error}; going on")
            self._unwritten.add(path)
        else:
            before = bool(self._unwritten)
            self._unwritten.discard(path)
            if path == self.folder.checkpoint:  # best.pt is as large, and waits for a better return
                self._unwritten.discard(self.folder.best)
            if before and not self._unwritten:
                self.say(f"{self.folder.path} can be written to again")

    def _finish(self, ended: str) -> None:
        counters = self.tally.counters
        counters.seconds = self.seconds()
        try:
            if self._who_learns is not None:
                self._write_row(self.seconds())
                self._save(self.folder.checkpoint)
            with self._disk(self.folder.curve):
                curve.draw(self.folder.metrics, self.folder.curve, self._title)
        finally:
            with self._disk(self.folder.metrics):
                self._writer.close()
            self._progress.close()
        self.result = Result(
            run=self.folder.path,
            ended=ended,
            seconds=counters.seconds,
            env_steps=counters.env_steps,
            updates=counters.updates,
            episodes=counters.episodes,
            return_mean=self.tally.return_mean(),
            best_return=counters.best_return,
        )
        if clipped := self._clipped.in_all():
            self.say(clipped)
        self.say(f"{ended}; the run is in {self.folder.path}")


def begin(
    algorithm: str,
    kind: type[C],
    config: C | None,
    model: models.Maker | None = None,
    run: str | Path | None = None,
    resume: str | Path | None = None,
    prepare: Callable[[C], Common] = lambda config: config,
) -> Session:
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
        config.check_run()
        learner = make_learner(prepare(config), model)
        session = _session(algorithm, config, learner.model, run, resume, process)
    except BaseException:
        process.restore()
        raise
    session.learner = learner
    session.opening = learner.about
    return session


def make_learner(config: Common, model: models.Maker | None = None) -> Learner:
    """Makes the model that fits a config's environment, or a user's own, and its learner.

    The statistics of its input begin with those of a little random play: an update without
    any kills units that never come back.
    """
    with MAKING, one_thread():
        torch.manual_seed(config.seed)
        probe = environments.make(config.env, 1, config.atari)
        network = models.build(
            model, probe.observation_shape, probe.dtype, probe.actions.outputs, config.lstm
        )
        if models.normalises(network):
            models.count_in(network, torch.from_numpy(_seen_at_random(probe, config)))
        learner = Learner(config, network, probe.actions)
        learner.about = about.lines(network, probe)
        probe.close()
        return learner


def _seen_at_random(probe: environments.Environments, config: Common) -> np.ndarray:
    """What a little random play sees.  An environment that raises now and then is tried again."""
    for attempt in range(PROBES):
        try:
            return probe.play_at_random(PROBE_STEPS, config.seed + attempt)
        except Exception as error:
            if not failures.is_failure(error):
                raise
            last = error
    raise TrainingError(
        f"the environment raised in each of {PROBES} attempts to play it at random: "
        f"{failures.readable(last)}"
    ) from last


def _session(
    algorithm: str, config: Common, model: nn.Module, run: str | Path | None,
    resume: str | Path | None, process: Process,
) -> Session:  # fmt: skip
    if resume is None:
        folder = run_folder.create(_path(run), algorithm, config)
        return Session(algorithm, config, folder, process=process)
    if run is not None:
        raise TrainingError("a run goes on in its own folder: give --resume alone, without --run")
    folder, _ = run_folder.reopen(Path(resume), algorithm)
    saved = checkpoint.load(folder.checkpoint)
    if saved["env"] != name_of(config.env):
        raise TrainingError(f"{resume} is a run on {saved['env']}, not on {name_of(config.env)}")
    checkpoint.check_fits(folder.checkpoint, saved["learner"]["model"], model)
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
    for name in kept:
        if name not in known:
            raise TrainingError(f"{algorithm} has no option {name!r}{nearest(name, known)}")
    config = kind(**{**kept, **(given or {})})
    env = config.env
    if env == kept["env"] and ":" not in str(env) and env not in gymnasium.registry:
        raise TrainingError(
            f"{run} was trained on {env}, which Gymnasium does not know; if it is a callable of"
            " your own, give it: env=, or --env FILE.py:NAME"
        )
    return config


def _path(run: str | Path | None) -> Path | None:
    return None if run is None else Path(run)


def share(session: Session, make_work: Callable[[Any, nn.Module, int], SegmentWork]) -> None:
    """Has workers push until the session is over; `make_work(config, model, seed)` is done at
    each.  What follows a push is the rule's business, and so the loop is the same for all."""
    config = session.learner.config
    assert isinstance(config, Shared)
    # On the CPU, whatever the machine has: that is where vectors come and go.
    learner = SharedLearner(config, models.on_cpu(session.learner.model))
    work = functools.partial(make_work, config, models.on_cpu(learner.model))
    if learner.rule.has_own_rate:
        session.say(
            f"{config.sync} is plain descent at its own rate: learning_rate, learning_rate_end and"
            " optimizer are not used"
        )
    workers = session.serve(learner, work)
    while not session.over():
        pushed = session.take(learner, workers)
        if pushed is not None:
            session.learnt(pushed.report.numbers, [pushed.reply.staleness])
