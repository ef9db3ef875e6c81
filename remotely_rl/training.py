"""One training run, from folder to curve, whatever the algorithm.

A `Session` counts, writes rows, saves checkpoints, says when to stop and leaves the run
folder whole however it ends.  The algorithm's loop is its own:

    with training.begin("impala", config, run, resume) as session:
        session.restore(learner)
        while not session.over():
            ...
            session.tally.sampled(...)
            session.tally.learnt(...)
            session.tick()
    return session.result

Ctrl-C (or SIGTERM) makes `over` true; the loop ends where it stands, and the checkpoint
and the curve are kept.  A second Ctrl-C interrupts at once.  The same is kept if the loop
raises, for the learner is whole between updates.
"""

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from remotely_rl import checkpoint, curve, metrics, run_folder
from remotely_rl.environments import Episode, Source, name_of
from remotely_rl.errors import TrainingError, nearest
from remotely_rl.metrics import Counters, Tally
from remotely_rl.progress import Progress

# Fewer games than this say little about a mean: no best.pt, no stop at a target.
ENOUGH_EPISODES = 20

C = TypeVar("C")


class Limits(Protocol):
    """What a session reads of an algorithm's Config.  Steps, minutes and target: 0 or None
    for no limit; all count from the beginning of the run, whatever it was resumed from."""

    @property
    def env(self) -> Source: ...
    @property
    def steps(self) -> int: ...
    @property
    def minutes(self) -> float: ...
    @property
    def target(self) -> float | None: ...
    @property
    def interval_s(self) -> float: ...
    @property
    def checkpoint_s(self) -> float: ...


class Learner(Protocol):
    """What a session asks of whoever learns, to save and restore it."""

    @property
    def model(self) -> torch.nn.Module: ...
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

    def __init__(
        self,
        algorithm: str,
        config: Limits,
        folder: run_folder.RunFolder,
        saved: dict[str, Any] | None = None,
        *,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.folder = folder
        self._algorithm = algorithm
        self._config = config
        self._saved = saved
        self._clock = clock
        self._ended = ""
        self._asked_to_stop = ""
        self._handlers: dict[int, Any] = {}
        counters = Counters(**saved["counters"]) if saved else Counters()
        self.tally = Tally(counters)
        if saved:
            self.tally.recent.extend(Episode(*episode) for episode in saved["recent"])
        self.times_resumed = saved["times_resumed"] + 1 if saved else 0
        self._writer = metrics.Writer(folder.path, counters.seconds if saved else None)
        self._title = f"{algorithm} on {name_of(config.env)}"
        self._progress = progress or Progress(f"{self._title}, in {folder.path}")
        self._began = clock() - counters.seconds
        self._row_due = counters.seconds + config.interval_s
        self._checkpoint_due = counters.seconds + config.checkpoint_s
        self._learner: Learner | None = None

    def __enter__(self) -> "Session":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._on_signal)
        self.say(f"{self._title}: {self.folder.path}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._finish(f"{kind.__name__}: {error}" if kind else self._ended)
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def restore(self, learner: Learner) -> None:
        """Hands over who learns; if the run is resumed, puts it back where it was.

        Raises TrainingError if the checkpoint is of another model.
        """
        if self._saved:
            state = self._saved["learner"]
            checkpoint.check_fits(self.folder.checkpoint, state["model"], learner.model)
            learner.load(state)
            torch.set_rng_state(self._saved["random"])
        self._learner = learner

    def seconds(self) -> float:
        """Seconds of training since the beginning of the run, pauses left out."""
        return self._clock() - self._began

    def over(self) -> bool:
        """Whether to stop: a limit is reached, or someone asked for it."""
        self._ended = self._ended or self._why_stop()
        return bool(self._ended)

    def tick(self) -> None:
        """To be called once a turn: writes what is due."""
        now = self.seconds()
        if now >= self._row_due:
            self._row_due = now + self._config.interval_s
            self._write_row(now)
        if now >= self._checkpoint_due:
            self._checkpoint_due = now + self._config.checkpoint_s
            self._save(self.folder.checkpoint)

    def say(self, text: str) -> None:
        """Tells the user something, in a line that stays."""
        self._progress.say(text)

    def _why_stop(self) -> str:
        if self._asked_to_stop:
            return self._asked_to_stop
        config, counters = self._config, self.tally.counters
        if config.steps and counters.env_steps >= config.steps:
            return f"{config.steps:,} steps are done"
        if config.minutes and self.seconds() >= config.minutes * 60:
            return f"{config.minutes:g} minutes are over"
        enough = len(self.tally.recent) >= ENOUGH_EPISODES
        if config.target is not None and enough and self.tally.return_mean() >= config.target:
            return f"the mean return of {config.target:g} is reached"
        return ""

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked_to_stop:
            raise KeyboardInterrupt
        self._asked_to_stop = f"stopped by {signal.Signals(number).name}"

    def _write_row(self, now: float) -> None:
        row = self.tally.close(now)
        self._writer.write(row)
        self._progress.show(row)
        counters = self.tally.counters
        if len(self.tally.recent) >= ENOUGH_EPISODES and row["return_mean"] > counters.best_return:
            counters.best_return = row["return_mean"]
            self._save(self.folder.best)

    def _save(self, path: Path) -> None:
        if self._learner is None:
            return
        self.tally.counters.seconds = self.seconds()
        content = {
            "algorithm": self._algorithm,
            "env": name_of(self._config.env),
            "learner": self._learner.state(),
            "counters": dataclasses.asdict(self.tally.counters),
            "recent": [list(episode) for episode in self.tally.recent],
            "random": torch.get_rng_state(),
            "times_resumed": self.times_resumed,
        }
        checkpoint.save(path, content)

    def _finish(self, ended: str) -> None:
        counters = self.tally.counters
        counters.seconds = self.seconds()
        try:
            if self._learner is not None:
                self._write_row(self.seconds())
                self._save(self.folder.checkpoint)
            curve.draw(self.folder.metrics, self.folder.curve, self._title)
        finally:
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
        self.say(f"{ended}; the run is in {self.folder.path}")


def begin(
    algorithm: str,
    config: Limits,
    run: str | Path | None = None,
    resume: str | Path | None = None,
) -> Session:
    """Makes the session of a new run in folder `run`, or of the run in folder `resume`.

    Raises TrainingError if `run` exists, or `resume` is no run of this algorithm and
    environment or has no checkpoint.
    """
    if resume is None:
        return Session(algorithm, config, run_folder.create(_path(run), algorithm, config))
    if run is not None:
        raise TrainingError("a run goes on in its own folder: give --resume alone, without --run")
    folder, _ = run_folder.reopen(Path(resume), algorithm)
    saved = checkpoint.load(folder.checkpoint)
    if saved["env"] != name_of(config.env):
        raise TrainingError(f"{resume} is a run on {saved['env']}, not on {name_of(config.env)}")
    return Session(algorithm, config, folder, saved)


def config_of(
    kind: type[C], algorithm: str, run: str | Path, given: dict[str, Any] | None = None
) -> C:
    """The config that the run in this folder was made with, but for what is `given`.

    Raises TrainingError if it is no run of this algorithm, or has an option that is unknown.
    """
    _, kept = run_folder.reopen(Path(run), algorithm)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in kept:
        if name not in known:
            raise TrainingError(f"{algorithm} has no option {name!r}{nearest(name, known)}")
    return kind(**{**kept, **(given or {})})


def learner_threads(asked: int, actors: int) -> int:
    """How many torch threads the learner gets: as asked, else the cores that actors leave."""
    return asked or max(1, (os.cpu_count() or 1) - actors)


def _path(run: str | Path | None) -> Path | None:
    return None if run is None else Path(run)
