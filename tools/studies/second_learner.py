"""A second learner that only has the first one's experience, with another size of batch.

    python -m tools.studies.second_learner                       # CartPole, both ways

Both begin with the same weights and learn equally often from each step, with their own batches.  If
the second learns as well as when it plays, its batch does not limit it; otherwise it could not
learn from the other's experience.  Both are evaluated every 4,000 steps.
"""

import functools
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from remotely_rl import dqn
from remotely_rl.acting.evaluation import measure
from remotely_rl.acting.policy import Trained
from tools import tables
from tools.studies import results
from tools.studies.from_replay import ATARI, CARTPOLE, FromReplay, play

LOOK_EVERY = 4_000
GAMES = 30
PAIRS = ((64, 2_048), (2_048, 64), (256, 256))
# (settings, steps)
TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "CartPole": ({**CARTPOLE, "replay_ratio": 32.0, "learning_rate": 5e-4}, 60_000),
    "Breakout": ({**ATARI, "env": "ALE/Breakout-v5"}, 10_000_000),
}


class Row(NamedTuple):
    """An evaluation of both learners."""

    first: int  # batch
    second: int
    seed: int
    env_steps: int
    first_updates: int
    second_updates: int
    first_return: float  # mean of whole games
    second_return: float


def config_of(settings: dict[str, Any], batch: int, seed: int) -> dqn.Config:
    """Return the settings with this batch and a constant rate."""
    rate = settings.get("learning_rate", dqn.Config.learning_rate)
    return dqn.Config(**settings, batch_size=batch, learning_rate_end=rate, seed=seed)


def run(settings: dict[str, Any], pair: tuple[int, int], seed: int, steps: int) -> list[Row]:
    """Train both for `steps` steps."""
    learners = [FromReplay(config_of(settings, batch, seed)) for batch in pair]
    rows: list[Row] = []
    for now, _ in play(learners, steps):
        if now >= LOOK_EVERY * (len(rows) + 1):
            updates = [one.learner.version for one in learners]
            rows.append(Row(*pair, seed, now, *updates, *map(evaluated, learners)))
    return rows


def evaluated(one: FromReplay) -> float:
    """Return the mean return of whole games by the newest values, with few random actions."""
    trained = Trained(one.learner.config, one.learner.model)
    return measure(trained, GAMES, greedy=False, envs=GAMES).mean


def table(rows: Sequence[Row]) -> str:
    """Return each learner's best evaluation and mean of the last five by seed, in Markdown."""
    lines = []
    by_pair = sorted(rows, key=lambda row: row[:4])
    for (first, second), of_pair in itertools.groupby(by_pair, key=lambda row: row[:2]):
        runs = [list(of) for _, of in itertools.groupby(of_pair, key=lambda row: row.seed)]
        for which, batch, role in ((0, first, "plays"), (1, second, f"sees {first}'s")):
            of_seeds = [[(row[6 + which]) for row in of] for of in runs]
            lines.append([
                f"{first:,} / {second:,}", f"{batch:,}, {role}", str(len(runs)),
                f"{statistics.median(of[-1][4 + which] for of in runs):,.0f}",
                ", ".join(f"{max(seen):.0f}" for seen in of_seeds),
                ", ".join(f"{statistics.mean(seen[-5:]):.0f}" for seen in of_seeds),
            ])  # fmt: skip
    head = ["batches", "learner", "seeds", "updates", "best, by seed", "mean of the last five"]
    return tables.table(head, lines)


def draw(rows: Sequence[Row], png: Path) -> None:
    """Draw returns over steps, a panel per pair."""
    pairs = list(dict.fromkeys(row[:2] for row in rows))
    figure, axes = results.panels(len(pairs))
    for axis, pair in zip(axes, pairs, strict=True):
        for number, seed in enumerate(dict.fromkeys(row.seed for row in rows)):
            of = [row for row in rows if (*row[:2], row.seed) == (*pair, seed)]
            for which, role in enumerate(("plays", "sees only that")):
                axis.plot(
                    [row.env_steps for row in of], [row[6 + which] for row in of], lw=0.9,
                    color=f"C{which}", label=None if number else f"{pair[which]:,}: {role}",
                )  # fmt: skip
        axis.set(xlabel="steps", title=f"batches of {pair[0]:,} and {pair[1]:,}")
        axis.legend(fontsize=7)
    axes[0].set_ylabel(f"mean return of {GAMES} games")
    figure.savefig(png, dpi=110)


def main() -> None:
    parser = results.command("second_learner", __doc__, [1, 2])
    parser.add_argument("--task", default="CartPole", choices=TASKS)
    parser.add_argument("--steps", type=int, help="of a run; by default the task's")
    asked = parser.parse_args()
    settings, steps = TASKS[asked.task]
    runs = {
        (*pair, seed): functools.partial(run, settings, pair, seed, asked.steps or steps)
        for seed, pair in itertools.product(asked.seeds, PAIRS)
    }
    results.study(f"second-learner-{asked.task.lower()}", Row, runs, draw, table)


if __name__ == "__main__":
    main()
