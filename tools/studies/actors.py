"""PPO by the number of actors: the rows of a round, and so the steps to the target, stay similar.

    python -m tools.studies.actors             # CartPole, 2 to 15 actors of 16, three seeds

The policy is evaluated every 4,096 steps, as in `simulators`, because returns of training lag
behind it more with more environments.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

import remotely
from remotely_rl import ppo
from remotely_rl.acting.actor import Actor
from remotely_rl.acting.evaluation import measure
from remotely_rl.acting.policy import Trained
from remotely_rl.experience.trajectory import stack
from remotely_rl.runs.training import make_learner
from tools import tables
from tools.studies import results

LOOK_EVERY = 4096
GAMES, LAST = 25, 100  # of an evaluation; of the mean that must reach the target
TARGET = 475.0
ACTORS = (2, 4, 8, 15)
STEPS = 400_000  # at most
ENVS = 16  # of an actor


class Row(NamedTuple):
    """An evaluation of a run."""

    actors: int
    seed: int
    rollout_steps: int
    env_steps: int
    updates: int
    looked: float  # mean of this evaluation
    returned: float  # mean of the last 100


def run(actors: int, seed: int) -> list[Row]:
    """Train until the target is held, or for STEPS."""
    torch.set_num_threads(1)
    config = ppo.Config(
        env=CartPoleVectorEnv, actors=actors, envs_per_actor=ENVS, gamma=0.98, entropy_coef=0.0,
        entropy_coef_end=0.0, anneal_steps=STEPS, seed=seed,
    )  # fmt: skip
    learner = make_learner(config)
    seeds = range(seed * 1000, seed * 1000 + actors)
    made = [remotely.local(Actor, config, learner.model, one) for one in seeds]
    rows: list[Row] = []
    scores: list[float] = []
    steps = 0
    while steps < STEPS:
        rollouts = []
        for actor in made:
            actor.set_param(learner.parameters())
            rollouts.append(actor.sample())
        steps += sum(rollout.steps for rollout in rollouts)
        together = stack([rollout.trajectory for rollout in rollouts])
        ppo.update(learner, together, config.progress(steps))
        if steps >= LOOK_EVERY * (len(rows) + 1):
            trained = Trained(config, learner.model)
            scores += measure(trained, GAMES, greedy=False, envs=GAMES).scores
            looked, returned = (mean(scores[-n:]) for n in (GAMES, LAST))
            each = together.steps
            rows.append(Row(actors, seed, each, steps, learner.version, looked, returned))
            if len(scores) >= LAST and returned >= TARGET:
                break
    for actor in made:
        actor.close()
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the steps until the target was held, in Markdown."""
    lines: list[list[str]] = []
    of_fewest = math.nan
    for actors, of_all in itertools.groupby(sorted(rows), key=lambda row: row.actors):
        runs = [list(of) for _, of in itertools.groupby(of_all, key=lambda row: row.seed)]
        held = [of[-1].env_steps if of[-1].returned >= TARGET else math.inf for of in runs]
        of_fewest = of_fewest if lines else median(held)
        each = runs[0][0].rollout_steps
        lines.append([
            str(actors), str(each), f"{actors * ENVS * each:,}",
            ", ".join(f"{steps:,.0f}" for steps in held), f"{median(held):,.0f}",
            f"{median(held) / of_fewest:.2f}",
        ])  # fmt: skip
    head = ["actors", "steps", "rows", "steps to hold 475, by seed", "median", "median / least"]
    return tables.table(head, lines)


def draw(rows: Sequence[Row], png: Path) -> None:
    """Draw returns over steps."""
    figure, (axis,) = results.panels(1)
    for number, actors in enumerate(dict.fromkeys(row.actors for row in sorted(rows))):
        of_all = [row for row in rows if row.actors == actors]
        for first, seed in enumerate(dict.fromkeys(row.seed for row in of_all)):
            of = [row for row in of_all if row.seed == seed]
            axis.plot(
                [row.env_steps for row in of], [row.looked for row in of], lw=0.9,
                color=f"C{number}", label=None if first else f"{actors} actors",
            )  # fmt: skip
    axis.set(xlabel="steps", ylabel=f"mean return of {GAMES} games")
    axis.legend(fontsize=7)
    figure.savefig(png, dpi=110)


def main() -> None:
    parser = results.command("actors", __doc__, [1, 2, 3])
    parser.add_argument("--actors", nargs="*", type=int, default=list(ACTORS))
    asked = parser.parse_args()
    runs = {
        (actors, seed): functools.partial(run, actors, seed)
        for seed, actors in itertools.product(asked.seeds, asked.actors)
    }
    results.study("actors-cartpole", Row, runs, draw, table)


if __name__ == "__main__":
    main()
