"""The metrics of a run: a `Tally` counts, and a `Writer` writes its rows.

A `Tally` adds up what happens in an interval and closes it into a row; a `Writer` appends each
row to metrics.csv and TensorBoard.  Neither looks at a clock: callers pass the time.

Steps are those of the agent (in Atari, 4 frames each).  Returns are raw sums of rewards over
whole episodes, by the policy in training.  `rollout/return_mean` is the mean over the last 100
episodes, or all if there are fewer; `rollout/return_interval` is that of the interval alone.
Seconds of `environment`, `inference` and `learning` are sums over all processes;
`time/waiting_s` is the learner's wait for trajectories, `time/idle_s` the actors' for calls.
`train/rewards_clipped` is the share of rewards that the learner clipped, `train/temperature` what
a nat of entropy counts in SAC.
"""

import csv
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remotely_rl.environments import Episode
from remotely_rl.runs import earlier_names
from remotely_rl.runs.earlier_names import renamed

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

RETURN_WINDOW = 100
# Episodes whose mean return decides on reaching the target and on the best checkpoint: a mean
# of fewer says little, a mean of more lags behind by a minute.
JUDGED_BY = 30

COLUMNS = (
    "time/seconds",
    "time/env_steps",
    "time/updates",
    "time/steps_per_second",
    "rollout/episodes",
    "rollout/return_mean",
    "rollout/return_max",
    "rollout/episode_length_mean",
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
    "train/staleness_mean",
    "train/staleness_max",
    "time/environment_s",
    "time/inference_s",
    "time/learning_s",
    "time/waiting_s",
    "time/idle_s",
    "train/staleness_min",
    "rollout/return_interval",
    "train/learning_rate",
    "train/approx_kl",
    "train/grad_norm",
    "train/rewards_clipped",
    "train/temperature",
)

# A row: one number for each column, NaN where there is none.
Row = dict[str, float]


@dataclass
class Counters:
    """Totals since the run began.  Saved with every checkpoint."""

    seconds: float = 0.0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    best_return: float = -math.inf


@dataclass
class Tally:
    """Adds up what happens; `close` makes a row and starts the next interval."""

    counters: Counters = field(default_factory=Counters)
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW))
    _sums: dict[str, float] = field(default_factory=dict)
    _learnt: dict[str, list[float]] = field(default_factory=dict)
    _staleness: list[int] = field(default_factory=list)
    _new: list[Episode] = field(default_factory=list)
    _steps_before: int = 0
    _seconds_before: float = 0.0

    def __post_init__(self) -> None:
        self._steps_before = self.counters.env_steps
        self._seconds_before = self.counters.seconds

    def sampled(self, steps: int, episodes: Sequence[Episode], seconds: dict[str, float]) -> None:
        """Counts an actor's steps, finished episodes and seconds by phase."""
        self.counters.env_steps += steps
        self.counters.episodes += len(episodes)
        self.recent.extend(episodes)
        self._new.extend(episodes)
        for phase, spent in seconds.items():
            self.spent(phase, spent)

    def spent(self, phase: str, seconds: float) -> None:
        """Counts time in a phase: environment, inference, learning, waiting or idle."""
        self._sums[phase] = self._sums.get(phase, 0.0) + seconds

    def learnt(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Counts an update: its metrics and the staleness of each trajectory in it."""
        self.counters.updates += 1
        for name, number in metrics.items():
            self._learnt.setdefault(name, []).append(number)
        self._staleness.extend(staleness)

    def judged(self) -> float:
        """The mean of the last 30 returns, NaN while there are fewer."""
        last = [episode.score for episode in self.recent][-JUDGED_BY:]
        return _mean(last) if len(last) == JUDGED_BY else math.nan

    def return_mean(self) -> float:
        """The mean of the last 100 returns, NaN before the first."""
        return _mean([episode.score for episode in self.recent])

    def close(self, seconds: float) -> Row:
        """Ends the interval `seconds` after the run began, without the time between resumes."""
        counters = self.counters
        counters.seconds = seconds
        elapsed = max(seconds - self._seconds_before, 1e-9)
        row = dict.fromkeys(COLUMNS, math.nan)
        row |= {
            "time/seconds": seconds,
            "time/env_steps": counters.env_steps,
            "time/updates": counters.updates,
            "time/steps_per_second": (counters.env_steps - self._steps_before) / elapsed,
            "rollout/episodes": counters.episodes,
            "rollout/return_mean": self.return_mean(),
            "rollout/return_max": max((e.score for e in self.recent), default=math.nan),
            "rollout/return_interval": _mean([episode.score for episode in self._new]),
            "rollout/episode_length_mean": _mean([episode.length for episode in self.recent]),
        }
        for phase in ("environment", "inference", "learning", "waiting", "idle"):
            row[f"time/{phase}_s"] = self._sums.get(phase, 0.0)
        for name, numbers in self._learnt.items():
            row[name] = _mean(numbers)
        if self._staleness:
            row["train/staleness_min"] = min(self._staleness)
            row["train/staleness_mean"] = _mean(self._staleness)
            row["train/staleness_max"] = max(self._staleness)
        self._sums, self._learnt, self._staleness, self._new = {}, {}, [], []
        self._steps_before, self._seconds_before = counters.env_steps, seconds
        return row


class Writer:
    """metrics.csv and TensorBoard event files in the run folder, flushed after every row."""

    def __init__(self, folder: Path, resumed_at_s: float | None = None):
        """Drops rows after `resumed_at_s`: the checkpoint does not include them."""
        path = folder / "metrics.csv"
        kept = [] if resumed_at_s is None else read(path)
        kept = [row for row in kept if row["time/seconds"] <= (resumed_at_s or 0.0) + 1e-3]
        self._file = path.open("w", newline="", encoding="utf-8")
        self._csv = csv.writer(self._file)
        self._csv.writerow(COLUMNS)
        for row in kept:
            self._csv.writerow(_cells(row))
        self._file.flush()
        purge = int(kept[-1]["time/env_steps"]) + 1 if kept else None
        self._folder = str(folder / "tensorboard")
        self._board = _board(self._folder, purge)

    def write(self, row: Row) -> None:
        """Appends one row to both."""
        self._csv.writerow(_cells(row))
        self._file.flush()
        step = int(row["time/env_steps"])
        try:
            for name, number in row.items():
                if not math.isnan(number):
                    self._board.add_scalar(name, number, step)
            self._board.flush()
        except OSError:
            # TensorBoard's thread ends when the disk is full; a new file may work later.
            self._board = _board(self._folder)
            raise

    def close(self) -> None:
        """Closes both."""
        self._file.close()
        self._board.close()


def _board(folder: str, purge_step: int | None = None) -> "SummaryWriter":
    # Imported late: it takes 0.2 s, and actors, which import this module, do not need it.
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

    return SummaryWriter(folder, purge_step=purge_step)


def read(path: Path) -> list[Row]:
    """Reads the rows of a metrics.csv, empty cells as NaN; a missing file has no rows."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: float(cell) if cell else math.nan for name, cell in named.items()}
            for row in csv.DictReader(file)
            if None not in row.values()  # a line cut short by a crash
            for named in [renamed(row, earlier_names.COLUMNS)]
        ]


def _cells(row: Row) -> list[str]:
    return [_cell(row.get(name, math.nan)) for name in COLUMNS]  # an older run has fewer


def _cell(number: float) -> str:
    if math.isnan(number):
        return ""
    return str(int(number)) if float(number).is_integer() else f"{number:.6g}"


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else math.nan
