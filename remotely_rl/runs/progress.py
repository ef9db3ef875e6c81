"""The output of a run: its model at the start, then a live table, or a line for each interval.

model: 3 convolutions, 512; LSTM 64; 1,868,967 parameters; sees images of 4 channels, 84x84
"""

import math
import sys
from collections.abc import Collection
from typing import Any, Protocol, TextIO

import gymnasium
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import nn

from remotely_rl import trees
from remotely_rl.config import Common, target_kl_of
from remotely_rl.environments.observations import ACTION_MASK, OBSERVATION, Leaf
from remotely_rl.networks import QNetwork, SoftActorCritic, precision
from remotely_rl.networks.encoders import is_image
from remotely_rl.networks.masked import MaskedPolicy
from remotely_rl.networks.per_agent import PerAgent
from remotely_rl.runs.metrics import Row
from remotely_rl.runs.notebook import Cell
from remotely_rl.trees import Tree

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

# Sides of what could be an image: below, convolutions have nothing to step over.
SIDE = 20


class Progress:
    """Shows the rows of a run as they come."""

    def __init__(self, title: str, limits: Common, stream: TextIO | None = None):
        """A live table if `stream` (stdout) is a terminal or a notebook's, else plain lines."""
        self._title = title
        self._limits = limits
        self._evaluation: Row = {}  # the last one: few rows have any
        self._live: Live | Cell | None = None
        is_notebook = stream is None and Console().is_jupyter
        self._console = Console(
            file=stream or sys.stdout, highlight=False, soft_wrap=True,
            # There, rich would make each line a piece of HTML.
            force_jupyter=False, force_terminal=False if is_notebook else None,
        )  # fmt: skip
        if is_notebook:
            self._live = Cell()
        elif self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()

    def show(self, row: Row) -> None:
        """Shows the newest row."""
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
        f"  {speed(row):>6}/s"
        f"  return {number(row['rollout/return_mean'])} (max {number(row['rollout/return_max'])},"
        f" {row['rollout/episodes']:.0f} games{success(row, 'episode', ', ')})"
        f"{'  evaluation ' + evaluation(row) if has(row, 'evaluation/return_mean') else ''}"
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
    grid.add_row("steps", f"{row['time/env_steps']:,.0f}   {speed(row)} a second")
    grid.add_row("spent on", split(row))
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
    """What a row has of an evaluation."""
    spread = (
        f" (std {number(row['evaluation/return_std'])})"
        if has(row, "evaluation/return_std")
        else ""
    )
    return f"{number(row['evaluation/return_mean'])}{spread}{success(row, 'evaluation', ', ')}"


def success(row: Row, of: str, sign: str = "   ") -> str:
    """The share of successes among episodes, if these tell."""
    column = f"{of}/success"
    return f"{sign}success {number(row[column])}" if has(row, column) else ""


def has(row: Row, column: str) -> bool:
    """Whether a row has a number there."""
    return not math.isnan(row.get(column, math.nan))


def learning(row: Row, columns: Collection[str] | None = None) -> list[str]:
    """What a row has of LEARNING, or of these columns, each as "entropy 0.693"."""
    return [
        f"{name} {number(row[column], digits)}"
        for column, name, digits in LEARNING
        if columns is None or column in columns
        if has(row, column)
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


def speed(row: Row) -> str:
    """Steps a second, or a dash in a row of an evaluation alone."""
    steps = row["time/steps_per_second"]
    return "-" if math.isnan(steps) else f"{steps:,.0f}"


def rate(row: Row) -> str:
    """The learning rate, or a dash where there is none yet."""
    return "-" if math.isnan(row["train/learning_rate"]) else f"{row['train/learning_rate']:.2g}"


def clock(seconds: float) -> str:
    """h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


# --- the model ------------------------------------------------------------------------------------


class Seen(Protocol):
    """What the summary needs of an environment."""

    @property
    def space(self) -> gymnasium.Space[Any]: ...
    @property
    def spec(self) -> Tree: ...


def summary(model: nn.Module, envs: Seen) -> list[str]:
    """The summary, and a warning if there are images that no convolution sees."""
    size = sum(parameter.numel() for parameter in model.parameters())
    each = next((len(one.models) for one in model.modules() if isinstance(one, PerAgent)), 0)
    of_each = f", for each of {each} agents" if each else ""
    said = [f"model: {make_of(model)}{of_each}; {size:,} parameters; sees {seen(envs)}"]
    is_ours = _is_ours(model)
    if is_ours and has_image(envs.space) and not _convolves(model):
        said.append(
            "no convolutions see the images in it: for these, observe images [height, width,"
            " channels], or pass a model of your own (model=, --model)"
        )
    return said


def make_of(model: nn.Module) -> str:
    """The layers of a network of the library, without the value's own; a name for others."""
    model = _within(model)
    if not _is_ours(model):
        return type(model).__name__
    parts = [(name, part) for name, part in model.named_modules() if not name.startswith("value")]
    convolutions = sum(isinstance(part, precision.CONVOLUTIONS) for _, part in parts)
    widths = [part.out_features for name, part in parts
              if isinstance(part, nn.Linear) and name != "policy"]  # fmt: skip
    memories = [part.hidden_size for _, part in parts if isinstance(part, nn.LSTM)]
    layers = [f"{convolutions} convolutions"] if convolutions else ["MLP"]
    words = [", ".join([*layers, *map(str, widths)]), *(f"LSTM {units}" for units in memories)]
    if any(name.startswith("value_") for name, _ in model.named_children()):
        words.append("as much for the value")
    return "; ".join(words)


def seen(envs: Seen) -> str:
    """The observations, as the model receives them."""
    spec, masked = envs.spec, ""
    if isinstance(spec, dict) and ACTION_MASK in spec:
        spec, masked = spec[OBSERVATION], "; illegal actions are masked"
    if isinstance(spec, Leaf):
        return seen_leaf(spec, envs.space.shape or ()) + masked
    parts = [f"{trees.named(path)} {seen_leaf(leaf)}" for path, leaf in trees.items(spec)]
    return f"a {type(envs.space).__name__} of {', '.join(parts)}{masked}"


def seen_leaf(leaf: Leaf, original: tuple[int, ...] | None = None) -> str:
    """One array of an observation; `original` is its shape in the environment."""
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
    """Whether a space contains what looks like an image."""
    if isinstance(space, gymnasium.spaces.Dict):
        return any(has_image(part) for part in space.spaces.values())
    if isinstance(space, gymnasium.spaces.Tuple):
        return any(has_image(part) for part in space.spaces)
    sides = [side for side in space.shape or () if side >= SIDE]
    return isinstance(space, gymnasium.spaces.Box) and len(sides) >= 2


def _within(model: nn.Module) -> nn.Module:
    """The network that others are wrapped around: it may be the user's."""
    while isinstance(model, (MaskedPolicy, QNetwork, SoftActorCritic, PerAgent)):
        match model:
            case SoftActorCritic():
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
