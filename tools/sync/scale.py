"""Semi-async between synchronous and asynchronous, by a simulated clock.

Descent on pictures with 10 to 1,000 clients of even and uneven speed: one in four takes five
times as long.  All rules are given the same number of pictures; what differs is who waits and
what is thrown away.  A rate that suits one rule or number of clients ruins another, so each
has its own: steps of a grid are taken from a guess, down and then up, for as long as the loss
at the end falls.
"""

import dataclasses
import math
import statistics

from remotely_rl.sync.simulation.simulator import Row
from remotely_rl.sync.simulation.study import Study
from tools.sync import paper
from tools.sync.paper import LAST, Run

BASE = Study(
    iterations=30_000, batch=16, hidden=100, every=500, compute_s=0.2, jitter=0.2,
    latency_s=0.001, bandwidth=1e9, server_s=0.0001,
)  # fmt: skip
SIZES = (10, 100, 1000)
GRID = 10**0.5  # between a rate and the next


def runs() -> list[Run]:
    """Every rule at every size, with and without stragglers, at its guess of a rate."""
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
    """The rules, with settings that fit so many clients, and where to begin with their rates."""
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
    """A run at the rate of the grid with which it ends lowest; the rate is in its spec."""

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
            break  # it fell on the way down, so up is worse
    return best


def loss_at_end(rows: list[Row]) -> float:
    """The mean of the last looks; infinite if it is no number."""
    loss = statistics.mean(row.metrics["loss"] for row in rows[-LAST:])
    return loss if math.isfinite(loss) else math.inf
