"""Semi-async between synchronous and asynchronous, by a simulated clock.

Descent on images with 10 to 1,000 clients of even and uneven speed, of which one in four is five
times slower.  All rules get the same number of images; they differ in the waiting and in the
dropped gradients.  Each rule and number of clients has its own rate, because a good rate for one is
bad for another: from a guess, steps of a grid go down and then up as long as the final loss falls.
"""

import dataclasses
import math
import statistics

from remotely_rl.sync.simulation.simulator import Row
from remotely_rl.sync.simulation.study import Study
from tools.sync import paper
from tools.sync.paper import LAST, Run

BASE = Study(
    iterations=30_000,
    batch=16,
    hidden=100,
    every=500,
    compute_s=0.2,
    jitter=0.2,
    latency_s=0.001,
    bandwidth=1e9,
    server_s=0.0001,
)
SIZES = (10, 100, 1000)
GRID = 10**0.5  # the ratio of two rates


def runs() -> list[Run]:
    """Return every rule at every size, with and without stragglers, at its guess of a rate."""
    made = []
    for clients in SIZES:
        for stragglers in (0, clients // 4):
            study = dataclasses.replace(BASE, clients=clients, stragglers=stragglers)
            panel = f"{clients} clients" + (f", {stragglers} five times slower" * bool(stragglers))
            made += [
                Run(panel, spec, dataclasses.replace(study, rate=rate))
                for spec, rate in specs(clients).items()
            ]
    return made


def specs(clients: int) -> dict[str, float]:
    """Return the rules with settings for a number of clients, and guesses of their rates."""
    semi = {
        f"semi_async:n={max(1, clients // part)},counted={2 * part},weak={3 * part}": 0.3 / part
        for part in (2, 5)
    }
    return {
        "synchronous": 0.3,
        f"backup_workers:backups={clients // 4}": 0.3,
        **semi,
        "asynchronous": 0.3 / clients,
        "sasgd": 0.1,
        "fasgd": 0.01,
    }


def simulate(run: Run) -> tuple[Run, list[Row]]:
    """Run at the rate of the grid with the lowest final loss; the spec has the rate."""

    def at(step: int) -> tuple[Run, list[Row]]:
        rate = float(f"{run.study.rate * GRID**step:.1g}")
        tried = run._replace(spec=f"{run.spec}{',' if ':' in run.spec else ':'}rate={rate:g}")
        return paper.simulate(tried)

    best = at(0)
    for way in (-1, 1):
        step = way
        while loss_at_end((better := at(step))[1]) < loss_at_end(best[1]):
            best = better
            step += way
        if step != way:
            break  # a lower rate was better, so a higher one is worse
    return best


def loss_at_end(rows: list[Row]) -> float:
    """Return the mean of the last evaluations, infinite if it is not finite."""
    loss = statistics.mean(row.metrics["loss"] for row in rows[-LAST:])
    return loss if math.isfinite(loss) else math.inf
