"""Semi-async between synchronous and asynchronous, by a simulated clock.

Descent on pictures with 10 to 1,000 clients of even and uneven speed: one in four takes five
times as long.  All rules see as many pictures a second; what differs is who waits and what is
thrown away.
"""

import dataclasses

from remotely_rl.sync.study import Study
from tools.sync.paper import Run

BASE = Study(
    batch=16, hidden=100, every=500, compute_s=0.01, jitter=0.2, latency_s=0.001,
    bandwidth=1e9, server_s=0.0001,
)  # fmt: skip
SIZES = (10, 100, 1000)
RATES = {10: 20_000, 100: 20_000, 1000: 40_000}


def runs() -> list[Run]:
    """Every rule at every size, with and without stragglers."""
    made = []
    for clients in SIZES:
        for stragglers in (0, clients // 4):
            study = dataclasses.replace(
                BASE, clients=clients, iterations=RATES[clients], stragglers=stragglers
            )
            panel = f"{clients} clients" + (f", {stragglers} five times slower" * bool(stragglers))
            made += [Run(panel, word, study) for word in words(clients)]
    return made


def words(clients: int) -> list[str]:
    """The rules, with settings that fit so many clients."""
    semi = [
        f"semi_async:n={max(1, clients // part)},counted={2 * part},weak={3 * part},rate={rate}"
        for part, rate in ((2, 0.4), (5, 0.3))
    ]
    return [
        "synchronous:rate=0.5",
        f"backup_workers:backups={clients // 4},rate=0.5",
        *semi,
        "asynchronous:rate=0.02",
        "sasgd:rate=0.1",
        "fasgd:rate=0.005",
    ]
