"""What the user sees of a run: a live table on a terminal, or a line for each interval."""

import math
import sys
from collections.abc import Collection
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from remotely_rl.config import Common, target_kl_of
from remotely_rl.runs.metrics import Row

# What an algorithm may have to tell of its learning: column, name, digits.
LEARNING = (
    ("train/policy_loss", "policy loss", 4),
    ("train/value_loss", "value loss", 4),
    ("train/entropy", "entropy", 3),
    ("train/temperature", "temperature", 4),
    ("train/approx_kl", "KL", 4),
    ("train/clip_fraction", "clipped", 2),
    ("train/explained_variance", "explained variance", 2),
    ("train/epsilon", "epsilon", 3),
    ("train/q_mean", "mean Q", 3),
    ("train/td_error", "TD error", 4),
    ("train/beta", "beta", 2),
    ("rollout/replay_fill", "replay full", 2),
)
IN_A_LINE = ("train/entropy", "train/epsilon", "train/q_mean")


class Progress:
    """Shows the rows of a run as they come."""

    def __init__(self, title: str, limits: Common, stream: TextIO | None = None):
        """A live table if `stream` (stdout) is a terminal, else plain lines."""
        self._title = title
        self._limits = limits
        self._console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def show(self, row: Row) -> None:
        """Shows the newest row."""
        if self._live:
            self._live.update(table(self._title, row, self._limits), refresh=True)
        else:
            self.say(line(row, self._limits))

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(text, markup=False)

    def close(self) -> None:
        """Leaves the last table standing."""
        if self._live:
            self._live.stop()
            self._live = None


def left(row: Row, limits: Common) -> float:
    """Seconds until the limit of steps or of minutes that comes first; NaN without either."""
    ends = []
    if limits.total_steps and row["time/steps_per_second"] > 0:
        ends.append(
            max(0.0, limits.total_steps - row["time/env_steps"]) / row["time/steps_per_second"]
        )
    if limits.minutes:
        ends.append(max(0.0, limits.minutes * 60 - row["time/seconds"]))
    return min(ends, default=math.nan)


def line(row: Row, limits: Common) -> str:
    """One row in one line."""
    ends = left(row, limits)
    return (
        f"{clock(row['time/seconds'])}  {row['time/env_steps']:>11,.0f} steps"
        f"  {row['time/steps_per_second']:>6,.0f}/s"
        f"  return {number(row['rollout/return_mean'])} (max {number(row['rollout/return_max'])},"
        f" {row['rollout/episodes']:.0f} games)"
        f"{''.join(f'  {told}' for told in learning(row, IN_A_LINE))}"
        f"  rate {rate(row)}"
        f"  staleness {number(row['train/staleness_min'], 0)}"
        f"/{number(row['train/staleness_mean'], 1)}/{number(row['train/staleness_max'], 0)}"
        f"  {split(row)}"
        f"{'' if math.isnan(ends) else f'  left {clock(ends)}'}"
    )


def table(title: str, row: Row, limits: Common) -> Table:
    """One row as a table for the terminal."""
    ends = left(row, limits)
    grid = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    least = "" if math.isnan(ends) else f"   at most {clock(ends)} left"
    grid.add_row("time", f"{clock(row['time/seconds'])}{least}")
    grid.add_row(
        "steps", f"{row['time/env_steps']:,.0f}   {row['time/steps_per_second']:,.0f} a second"
    )
    grid.add_row("spent on", split(row))
    grid.add_row(
        "return",
        f"mean {number(row['rollout/return_mean'])}   max {number(row['rollout/return_max'])}"
        f"   {row['rollout/episodes']:.0f} games"
        f" of {number(row['rollout/episode_length_mean'], 0)} steps",
    )
    grid.add_row("learning", "   ".join(learning(row)) or "-")
    steered = ", steered by target_kl" if target_kl_of(limits) else ""
    grid.add_row("learning rate", f"{rate(row)}{steered}")
    grid.add_row(
        "staleness",
        f"min {number(row['train/staleness_min'], 0)}"
        f"   mean {number(row['train/staleness_mean'], 1)}"
        f"   max {number(row['train/staleness_max'], 0)}   {row['time/updates']:,.0f} updates",
    )
    return grid


def learning(row: Row, columns: Collection[str] | None = None) -> list[str]:
    """What a row has of LEARNING, or of these columns, each as "entropy 0.693"."""
    return [
        f"{name} {number(row[column], digits)}"
        for column, name, digits in LEARNING
        if columns is None or column in columns
        if not math.isnan(row.get(column, math.nan))
    ]


def split(row: Row) -> str:
    """How the time of learner and actors divides into phases, in percent."""
    phases = ("environment", "inference", "learning", "waiting", "idle")
    total = sum(row[f"time/{phase}_s"] for phase in phases)
    if total <= 0:
        return ""
    return " ".join(f"{phase} {100 * row[f'time/{phase}_s'] / total:.0f}%" for phase in phases)


def number(x: float, digits: int = 2) -> str:
    """A number, or a dash where there is none yet."""
    return "-" if math.isnan(x) else f"{x:.{digits}f}"


def rate(row: Row) -> str:
    """The learning rate, or a dash where there is none yet."""
    return "-" if math.isnan(row["train/learning_rate"]) else f"{row['train/learning_rate']:.2g}"


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
