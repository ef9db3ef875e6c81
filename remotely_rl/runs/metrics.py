"""The metrics of a run: a `Tally` collects them, and a `Writer` writes its rows.

A `Tally` collects the metrics of an interval and closes it into a row; a `Writer` appends each row
to metrics.csv and TensorBoard.  Neither has a clock: callers pass the time.

Steps are the agent's (in Atari, 4 frames each).  Returns are raw sums of rewards over whole
episodes, of the policy in training.  `rollout/return_mean` is the mean over the last 100 episodes,
or all if there are fewer; `rollout/return_interval` is the mean over the interval.  Seconds of
`environment`, `inference` and `learning` are sums over all processes; `time/waiting_s` is the
learner's wait for trajectories, `time/idle_s` the actors' wait for calls.  `train/rewards_clipped`
is the share of rewards that the learner clipped, `train/temperature` the weight of a nat of entropy
in SAC.  `episode/NAME` is the mean of an environment's own metric (environments/episodes.py), over
those of the last 100 episodes that have it.
"""

import csv
import io
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from remotely_rl import durable
from remotely_rl.errors import TrainingError
from remotely_rl.runs.media import Media

if TYPE_CHECKING:  # the dashboard reads rows without torch
    from torch.utils.tensorboard import SummaryWriter

    from remotely_rl.environments import Episode

RETURN_WINDOW = 100
MAX_METRICS = 32  # of environments' own: a new name at each step would fill the disk
# The mean return over this many episodes decides on the target and on the best checkpoint: over
# fewer it is noisy, over more it lags by a minute.
SHORT_WINDOW = 30

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

# A row: a number for each column, NaN if there is none.
Row = dict[str, float]


@dataclass
class Counters:
    """Totals since the run began.  Saved with every checkpoint."""

    seconds: float = 0.0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    best_return: float = -math.inf
    best_by: str = ""  # the metric that best.pt is chosen by, unless it is the return
    best_metric: float = -math.inf  # the best so far, negated if less of it is better


@dataclass
class Tally:
    """Collects the metrics of an interval; `close` makes a row and starts the next interval.

    `close` calls the `gauges` for more columns.
    """

    counters: Counters = field(default_factory=Counters)
    recent: "deque[Episode]" = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW))
    gauges: list[Callable[[], Row]] = field(default_factory=list)
    _sums: dict[str, float] = field(default_factory=dict)
    _learnt: dict[str, list[float]] = field(default_factory=dict)
    _staleness: list[int] = field(default_factory=list)
    _new: "list[Episode]" = field(default_factory=list)
    _interval_start: Counters = field(default_factory=Counters)
    _evaluated: Row = field(default_factory=dict)  # columns of a finished evaluation
    _episode_metrics: "EpisodeMetrics" = field(default_factory=lambda: EpisodeMetrics())

    def __post_init__(self) -> None:
        self._interval_start = replace(self.counters)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Tally":
        """Return the tally of a checkpoint."""
        from remotely_rl.environments import Episode  # noqa: PLC0415 - as above

        tally = cls(Counters(**saved["counters"]))
        episodes = (Episode(*fields) for fields in saved["recent"])
        tally.recent.extend(tally._episode_metrics.of(episode) for episode in episodes)
        return tally

    def sampled(self, steps: int, ended: "Sequence[Episode]", seconds: dict[str, float]) -> None:
        """Count an actor's steps, finished episodes and seconds by phase."""
        self.counters.env_steps += steps
        ended = [self._episode_metrics.of(episode) for episode in ended]
        self.counters.episodes += len(ended)
        self.recent.extend(ended)
        self._new.extend(ended)
        for phase, spent in seconds.items():
            self.spent(phase, spent)

    def evaluated(self, columns: Row, own: Mapping[str, float]) -> None:
        """Count an evaluation: its columns for the next row, and the environments' own metrics."""
        own = self._episode_metrics.kept(own)
        self._evaluated = {f"evaluation/{name}": number for name, number in own.items()} | columns

    def warnings(self) -> list[str]:
        """Return warnings about the environments' own metrics, each once."""
        return self._episode_metrics.pop_warnings()

    def spent(self, phase: str, seconds: float) -> None:
        """Count time in a phase: environment, inference, learning, waiting or idle."""
        self._sums[phase] = self._sums.get(phase, 0.0) + seconds

    def learnt(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Count an update: its metrics and the staleness of each trajectory in it."""
        self.counters.updates += 1
        for name, number in metrics.items():
            self._learnt.setdefault(name, []).append(number)
        self._staleness.extend(staleness)

    @property
    def has_update(self) -> bool:
        """Whether there was an update in the interval."""
        return self.counters.updates > self._interval_start.updates

    @property
    def has_news(self) -> bool:
        """Whether the interval has an update, an evaluation, or steps before the first update."""
        steps = self.counters.env_steps - self._interval_start.env_steps
        is_first = not self.counters.updates and steps > 0
        return self.has_update or self.has_evaluation or is_first

    @property
    def has_evaluation(self) -> bool:
        """Whether an evaluation has ended in the interval."""
        return bool(self._evaluated)

    def short_return_mean(self) -> float:
        """Return the mean of the last 30 returns, NaN while there are fewer."""
        last = [episode.score for episode in self.recent][-SHORT_WINDOW:]
        return _mean(last) if len(last) == SHORT_WINDOW else math.nan

    def return_mean(self) -> float:
        """Return the mean of the last 100 returns, NaN before the first."""
        return _mean([episode.score for episode in self.recent])

    def close(self, seconds: float) -> Row:
        """End the interval, `seconds` of training after the run began, and return its row."""
        from remotely_rl.environments import episodes  # noqa: PLC0415 - as above

        counters = self.counters
        counters.seconds = seconds
        elapsed = max(seconds - self._interval_start.seconds, 1e-9)
        steps = counters.env_steps - self._interval_start.env_steps
        # An evaluation causes a row when it ends, perhaps without any step since the last row.
        has_speed = steps > 0 or not self._evaluated
        row = dict.fromkeys(COLUMNS, math.nan)
        row |= {
            "time/seconds": seconds,
            "time/env_steps": counters.env_steps,
            "time/updates": counters.updates,
            "time/steps_per_second": steps / elapsed if has_speed else math.nan,
            "rollout/episodes": counters.episodes,
            "rollout/return_mean": self.return_mean(),
            "rollout/return_max": max((e.score for e in self.recent), default=math.nan),
            "rollout/return_interval": _mean([episode.score for episode in self._new]),
            "rollout/episode_length_mean": _mean([episode.length for episode in self.recent]),
        }

        row |= {f"episode/{name}": mean for name, mean in episodes.means(self.recent).items()}
        for phase in ("environment", "inference", "learning", "waiting", "idle"):
            row[f"time/{phase}_s"] = self._sums.get(phase, 0.0)
        for name, numbers in self._learnt.items():
            row[name] = _mean(numbers)
        if self._staleness:
            row["train/staleness_min"] = min(self._staleness)
            row["train/staleness_mean"] = _mean(self._staleness)
            row["train/staleness_max"] = max(self._staleness)
        self._sums, self._learnt, self._staleness, self._new = {}, {}, [], []
        for gauge in self.gauges:
            row |= gauge()
        row |= self._evaluated
        self._evaluated = {}
        self._interval_start = replace(counters)
        return row


class EpisodeMetrics:
    """A filter of environments' own metrics: finite numbers under the first 32 names are kept."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._warned: set[str] = set()  # names; "" stands for those beyond the limit
        self._warnings: list[str] = []

    def of(self, episode: "Episode") -> "Episode":
        """Return the episode with the metrics that become columns."""
        return episode._replace(metrics=self.kept(episode.metrics)) if episode.metrics else episode

    def kept(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that become columns."""
        return {name: x for name, x in metrics.items() if self._is_column(name, x)}

    def pop_warnings(self) -> list[str]:
        """Return the warnings since the last call."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def _is_column(self, name: str, number: float) -> bool:
        if len(self._names) == MAX_METRICS and name not in self._names:
            self._warn(
                "",
                f"episodes have more than {MAX_METRICS} metrics: {name!r} and later ones are left"
                " out",
            )
            return False
        self._names.add(name)
        if math.isnan(number):
            self._warn(
                name,
                f"the metric {name!r} of an episode is not a finite number: such episodes do not"
                f" count in episode/{name}",
            )
        return not math.isnan(number)

    def _warn(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            self._warnings.append(text)


# The metrics by which TensorBoard compares runs, besides their settings.
COMPARED = ("rollout/return_mean", "evaluation/return_mean", "time/env_steps", "time/seconds")


class Writer:
    """metrics.csv and TensorBoard event files in the run folder, flushed after every row.

    A new metric gets a column, after the others, in the first row that has it.
    """

    def __init__(self, folder: Path, resumed_at_s: float | None = None):
        """Drop rows after `resumed_at_s`, which the checkpoint does not include."""
        self._path = folder / "metrics.csv"
        kept = [] if resumed_at_s is None else read(self._path)
        kept = [row for row in kept if row["time/seconds"] <= (resumed_at_s or 0.0) + 1e-3]
        self._columns = _columns(kept)
        self._replace(self._columns, kept)
        self._file = self._path.open("ab")
        purge = int(kept[-1]["time/env_steps"]) + 1 if kept else None
        self._folder = str(folder / "tensorboard")
        self._board = _board(self._folder, purge)
        self._media = Media(folder, purge or 0)

    def write(self, row: Row) -> None:
        """Append one row to both."""
        if not row.keys() <= set(self._columns):
            self._widen(row)
        self._file.write(_line(_cells(self._columns, row)))
        self._file.flush()
        step = int(row["time/env_steps"])
        try:
            for name, number in row.items():
                if not math.isnan(number):
                    self._board.add_scalar(name, number, step)
            self._board.flush()
        except OSError:
            # TensorBoard's thread ends if the disk is full; a new file may work later.
            self._board = _board(self._folder)
            raise

    def image(self, name: str, image: NDArray[Any], step: int) -> None:
        """Write an image for TensorBoard and the dashboard.

        Raises TrainingError unless it is one.
        """
        picture = np.asarray(image)
        if picture.ndim == 2:
            picture = picture[:, :, None]
        if (
            picture.ndim != 3
            or picture.dtype.kind not in "uif"
            or picture.shape[2] not in (1, 3, 4)
        ):
            raise TrainingError(
                f"the image {name} has shape {list(np.shape(image))} and dtype {picture.dtype}:"
                " give [height, width] or [height, width, 3], bytes or floats from 0 to 1"
            )
        board: Any = self._board
        board.add_image(name, picture, step, dataformats="HWC")
        self._media.image(name, picture, step)

    def histogram(self, name: str, numbers: NDArray[Any], step: int) -> None:
        """Write a histogram for TensorBoard and the dashboard.

        Raises TrainingError for no finite number.
        """
        try:
            values = np.asarray(numbers, np.float64).reshape(-1)
        except (TypeError, ValueError):
            values = np.empty(0)
        values = values[np.isfinite(values)]
        if not values.size:
            raise TrainingError(f"the histogram {name} has no finite numbers: {numbers!r:.200}")
        board: Any = self._board
        board.add_histogram(name, values, step)
        self._media.histogram(name, values, step)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Write the run's settings for TensorBoard, which shows them beside its last metrics."""
        from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415 - as in _board

        plain = {
            name: value if isinstance(value, (bool, int, float, str)) else str(value)
            for name, value in settings.items()
        }
        writer: Any = self._board.file_writer
        for summary in hparams(plain, dict.fromkeys(COMPARED, 0.0)):  # type: ignore[no-untyped-call]
            writer.add_summary(summary)

    def close(self) -> None:
        """Close both."""
        self._file.close()
        self._board.close()

    def _widen(self, row: Row) -> None:
        """Add the new columns of a row to metrics.csv."""
        rows = read(self._path)
        columns = _columns([*rows, row])
        self._replace(columns, rows)
        self._file.close()
        self._file, self._columns = self._path.open("ab"), columns

    def _replace(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Write these rows to metrics.csv, atomically if there are any."""
        text = _text(columns, rows)
        if not rows:
            self._path.write_bytes(text)  # at the start of most runs; a durable write is slower
        elif self._path.read_bytes() != text:
            durable.write(self._path, [text])


def _board(folder: str, purge_step: int | None = None) -> "SummaryWriter":
    # Imported late: it takes 0.2 s, and actors import this module but do not need it.
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

    return SummaryWriter(folder, purge_step=purge_step)


def read(path: Path) -> list[Row]:
    """Read the rows of a metrics.csv, empty cells as NaN; a missing file has no rows."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: float(cell) if cell else math.nan for name, cell in row.items()}
            for row in csv.DictReader(file)
            if None not in row.values()  # a line cut short by a crash
        ]


def merit(best_by: str, row: Row) -> float:
    """Return a row's number for `Common.best_by`, negated for `-NAME`; -inf if it has none."""
    number = row.get(best_by.removeprefix("-"), math.nan)
    if math.isnan(number):
        return -math.inf
    return -number if best_by.startswith("-") else float(number)


def _columns(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the columns of all runs, and those that only these rows have."""
    return tuple(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))


def _text(columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    return b"".join(map(_line, [columns, *(_cells(columns, row) for row in rows)]))


def _line(cells: Sequence[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


def _cells(columns: Sequence[str], row: Row) -> list[str]:
    return [_cell(row.get(name, math.nan)) for name in columns]


def _cell(number: float) -> str:
    if math.isnan(number):
        return ""
    return str(int(number)) if float(number).is_integer() else f"{number:.6g}"


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else math.nan
