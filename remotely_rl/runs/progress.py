"""The output of a run: a summary of its model, then a live table, or a line per interval.

model: 3 convolutions, 512; LSTM 64; 1,868,967 parameters; sees images of 4 channels, 84x84
"""

import math
import sys
from collections.abc import Collection
from typing import TextIO

import gymnasium
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import nn

from remotely_rl import trees
from remotely_rl.config import Common, target_kl_of
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, ObservationLeaf
from remotely_rl.environments.spaces import Spaces
from remotely_rl.networks import PolicyAndCritics, QNetwork, precision
from remotely_rl.networks.encoders import is_image
from remotely_rl.networks.masked import MaskedPolicy
from remotely_rl.networks.per_agent import PerAgent
from remotely_rl.runs.metrics import Row
from remotely_rl.runs.notebook import Cell

# Metrics of learning, which depend on the algorithm: column, name, digits.
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
LINE_COLUMNS = ("train/entropy", "train/epsilon", "train/q_mean")

# The smallest side of an image: on smaller ones convolutions cannot move.
MIN_IMAGE_SIDE = 20


class RunProgress:
    """Shows the rows of a run as they are written."""

    def __init__(self, title: str, limits: Common, stream: TextIO | None = None):
        """Show a live table if `stream` (default: stdout) is a terminal or a notebook's, else
        lines."""
        self._title = title
        self._limits = limits
        self._evaluation: Row = {}  # the last one, which few rows have
        self._live: Live | Cell | None = None
        is_notebook = stream is None and Console().is_jupyter
        self._console = Console(
            file=stream or sys.stdout,
            highlight=False,
            soft_wrap=True,
            # In a notebook, rich would print each line as HTML.
            force_jupyter=False,
            force_terminal=False if is_notebook else None,
        )
        if is_notebook:
            self._live = Cell()
        elif self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def show(self, row: Row) -> None:
        """Show the newest row."""
        if self._live:
            if has(row, "evaluation/return_mean"):
                self._evaluation = {
                    name: number for name, number in row.items() if name.startswith("evaluation/")
                }
            shown = row | self._evaluation
            self._live.update(table(self._title, shown, self._limits), refresh=True)
        else:
            self.say(line(row, self._limits))

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False)

    def close(self) -> None:
        """Stop, and leave the last table."""
        if self._live:
            self._live.stop()
            self._live = None


def seconds_left(row: Row, limits: Common) -> float:
    """Return the seconds until the first limit of steps or minutes; NaN without a limit."""
    ends = []
    if limits.total_steps and row["time/steps_per_second"] > 0:
        ends.append(
            max(0.0, limits.total_steps - row["time/env_steps"]) / row["time/steps_per_second"]
        )
    if limits.minutes:
        ends.append(max(0.0, limits.minutes * 60 - row["time/seconds"]))
    return min(ends, default=math.nan)


def line(row: Row, limits: Common) -> str:
    """Return a row as one line."""
    ends = seconds_left(row, limits)
    return (
        f"{clock(row['time/seconds'])}  {row['time/env_steps']:>11,.0f} steps"
        f"  {speed(row):>6}/s"
        f"  return {number(row['rollout/return_mean'])} (max {number(row['rollout/return_max'])},"
        f" {row['rollout/episodes']:.0f} games{success(row, 'episode', ', ')})"
        f"{'  evaluation ' + evaluation(row) if has(row, 'evaluation/return_mean') else ''}"
        f"{''.join(f'  {metric}' for metric in learning(row, LINE_COLUMNS))}"
        f"  rate {rate(row)}"
        f"  staleness {number(row['train/staleness_min'], 0)}"
        f"/{number(row['train/staleness_mean'], 1)}/{number(row['train/staleness_max'], 0)}"
        f"  {time_split(row)}"
        f"{'' if math.isnan(ends) else f'  left {clock(ends)}'}"
    )


def table(title: str, row: Row, limits: Common) -> Table:
    """Return a row as a table for the terminal."""
    ends = seconds_left(row, limits)
    grid = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
    remaining = "" if math.isnan(ends) else f"   at most {clock(ends)} left"
    grid.add_row("time", f"{clock(row['time/seconds'])}{remaining}")
    grid.add_row("steps", f"{row['time/env_steps']:,.0f}   {speed(row)} a second")
    grid.add_row("spent on", time_split(row))
    grid.add_row(
        "return",
        f"mean {number(row['rollout/return_mean'])}   max {number(row['rollout/return_max'])}"
        f"   {row['rollout/episodes']:.0f} games"
        f" of {number(row['rollout/episode_length_mean'], 0)} steps{success(row, 'episode')}",
    )
    if has(row, "evaluation/return_mean"):
        grid.add_row(
            "evaluation", f"mean {evaluation(row)}   at {row['evaluation/env_steps']:,.0f} steps"
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


def evaluation(row: Row) -> str:
    """Return the evaluation in a row, as text."""
    spread = (
        f" (std {number(row['evaluation/return_std'])})"
        if has(row, "evaluation/return_std")
        else ""
    )
    return f"{number(row['evaluation/return_mean'])}{spread}{success(row, 'evaluation', ', ')}"


def success(row: Row, of: str, sign: str = "   ") -> str:
    """Return the success rate of episodes as text, or an empty string if there is none."""
    column = f"{of}/success"
    return f"{sign}success {number(row[column])}" if has(row, column) else ""


def has(row: Row, column: str) -> bool:
    """Whether a row has a number in this column."""
    return not math.isnan(row.get(column, math.nan))


def learning(row: Row, columns: Collection[str] | None = None) -> list[str]:
    """Return the metrics of LEARNING in a row, or those of `columns`, as "entropy 0.693"."""
    return [
        f"{name} {number(row[column], digits)}"
        for column, name, digits in LEARNING
        if columns is None or column in columns
        if has(row, column)
    ]


def time_split(row: Row) -> str:
    """Return the shares of learner and actor time by phase, in percent."""
    phases = ("environment", "inference", "learning", "waiting", "idle")
    total = sum(row[f"time/{phase}_s"] for phase in phases)
    if total <= 0:
        return ""
    return " ".join(f"{phase} {100 * row[f'time/{phase}_s'] / total:.0f}%" for phase in phases)


def number(x: float, digits: int = 2) -> str:
    """Return a number as text, or a dash for NaN."""
    return "-" if math.isnan(x) else f"{x:.{digits}f}"


def speed(row: Row) -> str:
    """Return steps per second, or a dash in a row with only an evaluation."""
    steps = row["time/steps_per_second"]
    return "-" if math.isnan(steps) else f"{steps:,.0f}"


def rate(row: Row) -> str:
    """Return the learning rate, or a dash if there is none yet."""
    return "-" if math.isnan(row["train/learning_rate"]) else f"{row['train/learning_rate']:.2g}"


def clock(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


# --- the model ------------------------------------------------------------------------------------


def summary(model: nn.Module, spaces: Spaces) -> list[str]:
    """Return the summary, and a warning if it has images but no convolutions."""
    size = sum(parameter.numel() for parameter in model.parameters())
    agents = next((len(part.models) for part in model.modules() if isinstance(part, PerAgent)), 0)
    per_agent = f", for each of {agents} agents" if agents else ""
    network, seen = describe_network(model), describe_observations(spaces)
    lines = [f"model: {network}{per_agent}; {size:,} parameters; sees {seen}"]
    if _is_ours(model) and has_image(spaces.observation) and not _convolves(model):
        lines.append(
            "the model has no convolutions for the images: to get some, observe images [height,"
            " width, channels], or pass your own model (model=, --model)"
        )
    return lines


def describe_network(model: nn.Module) -> str:
    """Return the layers of a library network, without those of the value only; else its name."""
    model = _within(model)
    if not _is_ours(model):
        return type(model).__name__
    parts = [(name, part) for name, part in model.named_modules() if not name.startswith("value")]
    convolutions = sum(isinstance(part, precision.CONVOLUTIONS) for _, part in parts)
    widths = [
        part.out_features
        for name, part in parts
        if isinstance(part, nn.Linear) and name != "policy"
    ]
    memories = [part.hidden_size for _, part in parts if isinstance(part, nn.LSTM)]
    layers = [f"{convolutions} convolutions"] if convolutions else ["MLP"]
    words = [", ".join([*layers, *map(str, widths)]), *(f"LSTM {units}" for units in memories)]
    if any(name.startswith("value_") for name, _ in model.named_children()):
        words.append("as much for the value")
    return "; ".join(words)


def describe_observations(spaces: Spaces) -> str:
    """Return a description of the observations, as the model receives them."""
    spec, masked = spaces.spec, ""
    if isinstance(spec, dict) and ACTION_MASK in spec:
        spec, masked = spec[OBSERVATION], "; illegal actions are masked"
    if isinstance(spec, ObservationLeaf):
        return describe_leaf(spec, spaces.observation.shape or ()) + masked
    parts = [f"{trees.named(path)} {describe_leaf(leaf)}" for path, leaf in trees.items(spec)]
    return f"a {type(spaces.observation).__name__} of {', '.join(parts)}{masked}"


def describe_leaf(leaf: ObservationLeaf, original: tuple[int, ...] | None = None) -> str:
    """Return a description of one array of an observation; `original` is its unprocessed shape."""
    shape = leaf.shape
    if leaf.counts:
        several = f"{len(leaf.counts)} numbers, each " if shape else ""
        return f"{several}one of {' or '.join(f'{n:,}' for n in sorted(set(leaf.counts)))}"
    if is_image(leaf):
        last = "" if original in (None, shape) else ", which came last"
        channels = f"{shape[0]} channel{'s' if shape[0] > 1 else ''}" if shape[2:] else "1 channel"
        return f"images of {channels}{last}, {shape[-2]}x{shape[-1]}"
    if len(shape) > 1:
        return f"{'x'.join(map(str, shape))}, flattened to {leaf.size:,} numbers"
    return f"{leaf.size:,} number{'s' if leaf.size > 1 else ''}"


def has_image(space: gymnasium.Space[object]) -> bool:
    """Whether a space contains a box that looks like an image."""
    if isinstance(space, gymnasium.spaces.Dict):
        return any(has_image(part) for part in space.spaces.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return any(has_image(part) for part in space.spaces)
    sides = [side for side in space.shape or () if side >= MIN_IMAGE_SIDE]
    return isinstance(space, gymnasium.spaces.Box) and len(sides) >= 2


def _within(model: nn.Module) -> nn.Module:
    """Return the innermost network of the library's wrappers, which may be the user's."""
    while isinstance(model, (MaskedPolicy, QNetwork, PolicyAndCritics, PerAgent)):
        match model:
            case PolicyAndCritics():
                model = model.policy
            case PerAgent():
                model = model.models[0]
            case _:
                model = model.model
    return model


def _is_ours(model: nn.Module) -> bool:
    return type(_within(model)).__module__.startswith("remotely_rl.")


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(part, precision.CONVOLUTIONS) for part in model.modules())
