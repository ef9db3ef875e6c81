"""The experiments of the FASGD paper (Odena 2016), on similar images.

Section 3: (batch, clients) of (1, 128), (4, 32), (8, 16), (32, 4); then 250 to 10,000 clients;
then gates before fetches and before pushes.  The rates are the paper's for all four combinations:
FASGD 0.005, SASGD 0.04.  As in its code, staleness is divided by tau + 1 and weights are from
N(0, 1).
"""

import dataclasses
from typing import NamedTuple

from remotely_rl.sync.simulation import problems, study
from remotely_rl.sync.simulation.simulator import Row
from remotely_rl.sync.simulation.study import Study

FASGD = "fasgd:mode=fred,deviation_start=0,at_zero=plus1,rate=0.005"
SASGD = "sasgd:at_zero=plus1,rate=0.04"
PAPER = Study(iterations=100_000, every=1000, init="normal", hidden=200)
COMBINATIONS = ((1, 128), (4, 32), (8, 16), (32, 4))
MANY = (250, 500, 1000, 10_000)
GATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
QUICK = 50  # the divisor of the pushes with --quick
LAST = 10  # evaluations in a mean: a single one may be 4 % off


class Run(NamedTuple):
    """A simulation: its panel, its rule and its study."""

    panel: str
    spec: str
    study: Study


def simulate(run: Run) -> tuple[Run, list[Row]]:
    """Return the run and its rows."""
    return run, study.run(run.spec, run.study, problems.load())


def clients() -> list[Run]:
    """Return the runs with 250 to 10,000 clients, the long ones first."""
    return [
        Run(
            f"{many} clients",
            spec,
            dataclasses.replace(PAPER, clients=many, batch=128),
        )
        for many in reversed(MANY)
        for spec in (FASGD, SASGD)
    ]


def combinations() -> list[Run]:
    """Return the runs of 128 images at a time, from few clients and from many."""
    return [
        Run(
            f"batch {batch}, {some} clients",
            spec,
            dataclasses.replace(PAPER, clients=some, batch=batch),
        )
        for batch, some in COMBINATIONS
        for spec in (FASGD, SASGD)
    ]


def gates() -> list[Run]:
    """Return the runs in which parameters, or gradients, are not always sent."""
    few = dataclasses.replace(PAPER, clients=16, batch=8)
    return [
        Run(f"gate before {what}", f"{FASGD},gate_{what}={weight}", few)
        for what in ("fetch", "push")
        for weight in GATES
    ]


def quick(runs: list[Run]) -> list[Run]:
    """Return the first two runs, much shorter, as a test."""
    made = []
    for run in runs[:2]:
        iterations = run.study.iterations // QUICK
        short = dataclasses.replace(run.study, iterations=iterations, every=iterations // 2)
        made.append(run._replace(study=short))
    return made
