"""The recorder of a run: rows of metrics, checkpoints, the curve, and lines for the user.

A row is due every `log_interval_s`, at the first update after a game has ended, so that the curve
of a short run has a beginning, after every twentieth of `total_steps`, so that it has a middle, and
at the end of an evaluation.  `checkpoint.pt` is written every
`checkpoint_interval_s`.  `best.pt` is the policy of the best evaluation; without evaluations it is
written if the mean return of the last games is the best so far, checked with each row and at the
end; with `best_by`, if that column of a row, or of an evaluation, is.

If the disk is full or temporarily gone, the recorder says so once and training continues.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remotely_rl.config import Common
from remotely_rl.runs import curve, evaluating, metrics, run_folder
from remotely_rl.runs.evaluating import MeasuredPolicy
from remotely_rl.runs.metrics import Tally
from remotely_rl.runs.process import STOPPED_BY
from remotely_rl.runs.progress import RunProgress
from remotely_rl.runs.run_folder import RunFolder

ROWS_BY_STEPS = 20  # of a run with `total_steps`, however short it is


class Recorder:
    """Counts updates and writes what is due.  It has no clock: `now` is in seconds of the run."""

    def __init__(
        self,
        folder: RunFolder,
        title: str,
        config: Common,
        tally: Tally,
        content: Callable[[Path], dict[str, Any] | None],
        progress: RunProgress | None = None,
        on_row: Callable[[metrics.Row], None] = lambda row: None,
    ):
        """`content(path)` returns the content of the checkpoint at this path, or None for none.

        Drops metrics later than `tally`, which the checkpoint of a resumed run does not include.
        """
        self._folder = folder
        self._title = title
        self._config = config
        self._tally = tally
        self._content = content
        self._on_row = on_row  # may add columns
        self._clipping = ClippingReport(config.clips_rewards_at)
        started = tally.counters.seconds
        if tally.counters.best_by != (by := config.best_by or ""):
            tally.counters.best_by, tally.counters.best_metric = by, -math.inf
        self._writer = metrics.Writer(folder.path, resumed_at_s=started)
        with contextlib.suppress(OSError):  # reported at the first row
            self._writer.describe(run_folder.fields_of(config))
        self._progress = progress or RunProgress(f"{title}, in {folder.path}", config)
        self.say = self._progress.say  # prints a line that stays above the live table
        self._unwritten: set[Path] = set()  # files whose last write failed
        self._row_due = started + config.log_interval_s
        self._row_due_steps = tally.counters.env_steps + self._row_steps
        self._has_curve = tally.counters.episodes > 0  # a resumed run has rows
        # Steps and updates in checkpoint.pt; None if there is none yet.
        self._saved: tuple[int, int] | None = self._reached if any(self._reached) else None
        self._checkpoint_due = started + config.checkpoint_interval_s

    @property
    def saved_steps(self) -> int:
        """The steps in checkpoint.pt; 0 if there is none yet."""
        return self._saved[0] if self._saved is not None else 0

    @property
    def _reached(self) -> tuple[int, int]:
        return self._tally.counters.env_steps, self._tally.counters.updates

    @property
    def _row_steps(self) -> float:
        """The number of steps after which a row is due."""
        total = self._config.total_steps
        return math.ceil(total / ROWS_BY_STEPS) if total else math.inf

    def count_update(self, metrics: dict[str, float], staleness: Sequence[int]) -> None:
        """Count an update."""
        self._tally.learnt(metrics, staleness)
        self._clipping.count(metrics)

    def log_image(self, name: str, image: Any) -> None:
        """Write an image for TensorBoard, at the present number of steps."""
        with self._disk(self._folder.metrics):
            self._writer.image(name, image, self._tally.counters.env_steps)

    def log_histogram(self, name: str, numbers: Any) -> None:
        """Write a histogram for TensorBoard, at the present number of steps."""
        with self._disk(self._folder.metrics):
            self._writer.histogram(name, numbers, self._tally.counters.env_steps)

    def evaluated(self, measured: MeasuredPolicy) -> None:
        """Count an evaluation, and keep its policy if it is the best so far."""
        evaluation, checkpoint = measured
        self._tally.evaluated(evaluating.columns_of(evaluation), evaluation.metrics)
        if checkpoint is not None:
            with self._disk(self._folder.best):
                run_folder.save_checkpoint(self._folder.best, checkpoint)

    def write_due(self, now: float) -> None:
        """Write a row and a checkpoint, each if due."""
        self.write_due_row(now)
        if now >= self._checkpoint_due:
            self._save(self._folder.checkpoint, now)
            self._checkpoint_due = now + self._config.checkpoint_interval_s

    def write_due_row(self, now: float) -> None:
        """Write a row, if due."""
        begins_curve = not self._has_curve and self._tally.recent and self._tally.has_update
        steps = self._tally.counters.env_steps
        by_steps = steps >= self._row_due_steps and self._tally.has_update
        if begins_curve or self._tally.has_evaluation or by_steps or now >= self._row_due:
            self._row_due = now + self._config.log_interval_s
            self._row_due_steps = steps + self._row_steps
            self._write_row(now)

    def finish(self, now: float, has_learner: bool) -> None:
        """Write the last row and checkpoint, if there is a learner, and draw the curve.

        An empty row is not written.  A checkpoint of the same steps is not replaced: it may hold
        environments that can no longer be saved.  `say` still works afterwards.
        """
        self._tally.counters.seconds = now
        try:
            if has_learner:
                try:
                    if self._tally.has_news:
                        self._write_row(now)
                finally:  # a hook may raise
                    self._judge(now)
                    if self._saved != self._reached:
                        self._save(self._folder.checkpoint, now)
                by = self._config.best_by
                if by is not None and not self._folder.best.exists():
                    self.say(f"no row has a number {by.removeprefix('-')}: there is no best.pt")
            with self._disk(self._folder.curve):
                curve.draw(self._folder.metrics, self._folder.curve, self._title)
        finally:
            with self._disk(self._folder.metrics):
                self._writer.close()
            self._progress.close()

    def say_summary(self, ended: str) -> None:
        """Tell the user how the run ended."""
        if clipped := self._clipping.summary():
            self.say(clipped)
        path = self._folder.path
        more = f"; --resume {path} continues it" if ended.startswith(STOPPED_BY) else ""
        self.say(f"{ended}; the run is in {path}{more}")

    def _write_row(self, now: float) -> None:
        self._has_curve = self._has_curve or bool(self._tally.recent)
        row = self._tally.close(now)
        self._on_row(row)
        with self._disk(self._folder.metrics):
            self._writer.write(row)
        self._progress.show(row)
        for warning in self._tally.warnings():
            self.say(warning)
        if clipped := self._clipping.news():
            self.say(clipped)
        self._judge(now, row)

    def _judge(self, now: float, row: metrics.Row | None = None) -> None:
        """Save the policy if it is the best so far; evaluations have policies of their own."""
        counters, by = self._tally.counters, self._config.best_by
        is_best = self._tally.short_return_mean() > counters.best_return
        if is_best:
            counters.best_return = self._tally.short_return_mean()
        if by is not None:
            is_best = row is not None and metrics.merit(by, row) > counters.best_metric
            if row is not None and is_best:
                counters.best_metric = metrics.merit(by, row)
        if is_best and not evaluating.choose_best(self._config):
            self._save(self._folder.best, now)

    def _save(self, path: Path, now: float) -> None:
        self._tally.counters.seconds = now
        content = self._content(path)
        if content is None:
            return
        with self._disk(path):
            run_folder.save_checkpoint(path, content)
        if path == self._folder.checkpoint and path not in self._unwritten:
            self._saved = self._reached

    @contextmanager
    def _disk(self, path: Path) -> Iterator[None]:
        """Tell the user once about writes that fail, and let training continue."""
        try:
            yield
        except OSError as error:
            if not self._unwritten:
                self.say(
                    f"cannot write to {self._folder.path}: {error.strerror or error}; training"
                    " continues"
                )
            self._unwritten.add(path)
        else:
            before = bool(self._unwritten)
            self._unwritten.discard(path)
            if path == self._folder.checkpoint:
                # best.pt has the same size, and may not be due again for long.
                self._unwritten.discard(self._folder.best)
            if before and not self._unwritten:
                self.say(f"{self._folder.path} can be written to again")


class ClippingReport:
    """The share of rewards that the updates of a run clipped, as a line for the user.

    A clipped reward keeps little more than its sign.  If its size matters, the agent learns a
    different task from the one it is scored by, and returns may fall while all losses look fine.
    So a run reports clipping when it first happens, and again at its end.
    """

    def __init__(self, bound: float):
        self._bound = bound
        self._sum = 0.0
        self._updates = 0
        self._is_reported = False

    def count(self, metrics: dict[str, float]) -> None:
        """Count an update with these metrics."""
        if "train/rewards_clipped" in metrics:
            self._sum += metrics["train/rewards_clipped"]
            self._updates += 1

    def news(self) -> str:
        """Return the line when rewards were clipped for the first time, else an empty string."""
        if self._is_reported:
            return ""
        self._is_reported = self._sum > 0
        return self.summary()

    def summary(self) -> str:
        """Return the line, or an empty string if no reward was clipped."""
        if not self._sum:
            return ""
        percent = f"{100 * self._sum / self._updates:.2g}"
        return (
            f"{percent} % of rewards were clipped to {self._bound:g} for the learner; reported"
            " returns are not clipped.  Set reward_clip=0 to learn from the size of rewards"
        )
