"""Norms of weights, gradients and steps by layer: Adam and RMSProp, batches of 64 to 1,024.

    python -m tools.studies.norms                      # CartPole

A categorical DQN learns from each step equally often with any batch: with 1,024 it makes a
sixteenth of the updates.  Adam has a constant rate; RMSProp has a constant one, or one that grows
with the batch.  Gradients are not clipped.  The table has the first layer, the last and all.
"""

import functools
import itertools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from remotely_rl import dqn
from remotely_rl.algorithms.dqn import QLearner
from remotely_rl.runs.replaying import Steps, Update
from tools import tables
from tools.studies import results
from tools.studies.from_replay import ATARI, CARTPOLE, FromReplay, play

LOOK_EVERY = 2_000
GAMES = 30  # of training, in a mean return
BATCHES = (64, 256, 1_024)
C51: dict[str, Any] = {"atoms": 51, "double": False, "dueling": False, "max_grad_norm": 0.0}
# (settings, layers by a part of their names, steps)
TASKS: dict[str, tuple[dict[str, Any], dict[str, str], int]] = {
    "CartPole": (
        {**CARTPOLE, **C51, "value_bound": 100.0, "replay_ratio": 16.0},
        {"first": "policy_body.0.weight", "last": "policy.weight"}, 40_000,
    ),
    "Qbert": (
        {**ATARI, **C51, "env": "ALE/Qbert-v5"},
        {"first": "body.0.weight", "last": "policy.weight"}, 10_000_000,
    ),
}  # fmt: skip
ALL = "all"


class RMSPropLearner(QLearner):
    """DQN's learner, with the optimizer of its paper."""

    @functools.cached_property
    def optimizer(self) -> Any:
        rate = self.learning_rate.start
        return torch.optim.RMSprop(self.model.parameters(), lr=rate, alpha=0.95, eps=1e-6)


class Way(NamedTuple):
    """An optimizer, and its rate at a batch."""

    optimizer: str
    kind: type[QLearner]
    rate: float  # for a batch of 64
    grows: bool  # with the batch

    def at(self, batch: int) -> float:
        return self.rate * (batch / BATCHES[0] if self.grows else 1)


WAYS = (
    Way("adam", QLearner, 5e-4, False),
    Way("rmsprop", RMSPropLearner, 2.5e-4, False),
    Way("rmsprop, linear", RMSPropLearner, 2.5e-4, True),
)


class Row(NamedTuple):
    """A measurement of a layer.  Norms are means over the updates since the last one."""

    optimizer: str
    batch: int
    seed: int
    env_steps: int
    updates: int
    returned: float  # mean of the last games of training
    layer: str
    weight: float
    gradient: float
    step: float


class Watched(FromReplay):
    """A learner that stores the norms of weights, gradient and step of each update, by layer."""

    def __init__(self, config: dqn.Config, kind: type[QLearner], layers: dict[str, str]):
        super().__init__(config, kind)
        named = dict(self.learner.model.named_parameters())
        self._layers = {
            layer: [one for name, one in named.items() if part in name]
            for layer, part in {**layers, ALL: ""}.items()
        }
        self.norms: dict[str, list[tuple[float, float, float]]] = defaultdict(list)

    def update(self, steps: Steps, env_steps: int) -> Update:
        before = {layer: [p.detach().clone() for p in of] for layer, of in self._layers.items()}
        made = super().update(steps, env_steps)
        for layer, of in self._layers.items():
            moved = [p.detach() - old for p, old in zip(of, before[layer], strict=True)]
            seen = [p.grad for p in of if p.grad is not None]
            self.norms[layer].append((norm(of), norm(seen), norm(moved)))
        return made


def norm(tensors: Sequence[torch.Tensor]) -> float:
    """Return the L2 norm of several tensors as one vector."""
    return float(torch.stack([one.detach().square().sum() for one in tensors]).sum().sqrt())


def run(
    settings: dict[str, Any], layers: dict[str, str], way: Way, batch: int, seed: int, steps: int
) -> list[Row]:
    """Train for `steps` steps."""
    rate = way.at(batch)
    config = dqn.Config(
        **settings, batch_size=batch, learning_rate=rate, learning_rate_end=rate, seed=seed
    )
    watched = Watched(config, way.kind, layers)
    rows: list[Row] = []
    look = LOOK_EVERY
    for now, scores in play([watched], steps):
        if now >= look and watched.norms:
            look += LOOK_EVERY
            returned = statistics.mean(scores[-GAMES:])
            for layer, seen in watched.norms.items():
                means = [statistics.mean(of) for of in zip(*seen, strict=True)]
                rows.append(Row(
                    way.optimizer, batch, seed, now, watched.learner.version, returned, layer,
                    *means,
                ))  # fmt: skip
            watched.norms.clear()
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return updates, mean return and medians of norms in the second half, in Markdown."""
    lines = []
    ordered = sorted(rows, key=lambda row: (row.optimizer, row.batch, row.layer))
    for key, of in itertools.groupby(ordered, key=lambda row: (row[0], row[1], row.layer)):
        seen = list(of)
        half = max(row.env_steps for row in seen) / 2
        late = [row for row in seen if row.env_steps > half]
        lines.append([
            key[0], f"{key[1]:,}", key[2], f"{max(row.updates for row in seen):,}",
            f"{statistics.mean(row.returned for row in late):.0f}",
            *(f"{statistics.median(getattr(row, name) for row in late):.3g}"
              for name in ("weight", "gradient", "step")),
        ])  # fmt: skip
    head = ["optimizer", "batch", "layer", "updates", "return", "weights", "gradient", "step"]
    return tables.table(head, lines)


def draw(rows: Sequence[Row], png: Path) -> None:
    """Draw norms over steps: a row of panels per layer, a panel per norm."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    names = ("weight", "gradient", "step")
    figure, axes = results.panels(len(names), len(layers))
    styles = {way.optimizer: style for way, style in zip(WAYS, ("-", "--", ":"), strict=True)}
    for axis, (layer, name) in zip(axes, itertools.product(layers, names), strict=True):
        for optimizer, (number, batch) in itertools.product(styles, enumerate(BATCHES)):
            of = [row for row in rows if (row[0], row[1], row.layer) == (optimizer, batch, layer)]
            if not of:
                continue
            seeds = [row for row in of if row.seed == of[0].seed]
            axis.plot(
                [row.env_steps for row in seeds], [getattr(row, name) for row in seeds],
                styles[optimizer], color=f"C{number}", lw=1, label=f"{optimizer}, {batch:,}",
            )  # fmt: skip
        axis.set(yscale="log", title=f"{layer}: {name}", xlabel="steps")
    axes[0].legend(fontsize=6)
    figure.savefig(png, dpi=110)


def main() -> None:
    parser = results.command("norms", __doc__, [1])
    parser.add_argument("--task", default="CartPole", choices=TASKS)
    parser.add_argument("--steps", type=int, help="of a run; by default the task's")
    asked = parser.parse_args()
    settings, layers, steps = TASKS[asked.task]
    runs = {
        (way.optimizer, batch, seed): functools.partial(
            run, settings, layers, way, batch, seed, asked.steps or steps
        )
        for seed, way, batch in itertools.product(asked.seeds, WAYS, BATCHES)
        if not (way.grows and batch == BATCHES[0])  # the same as the constant rate
    }
    results.study(f"norms-{asked.task.lower()}", Row, runs, draw, table)


if __name__ == "__main__":
    main()
