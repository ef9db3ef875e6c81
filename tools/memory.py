"""Every algorithm with an LSTM, on problems that need a memory: the steps to the target.

    python -m tools.memory                           # all, five seeds each: an hour
    python -m tools.memory --only ppo --seeds 1 2

The runs are those of tests/remotely_rl/test_learning.py: the defaults and `lstm=64`, in one
process, so a seed takes the same steps on any machine.  A run is added to runs/memory.jsonl, and
runs in that file are not repeated.  A table of all is printed at the end, and written to
docs/lab/results.md with `--write`.
"""

import functools
import os
import statistics

from tests.remotely_rl import memory_toys
from tools import runs, tables
from tools.bench.benchmark import ROOT
from tools.runs import Finish

PROBLEMS = {env.__name__: env for env in memory_toys.TARGETS}


def run(algorithm: str, env: str, seed: int) -> Finish:
    """Train once."""
    train = functools.partial(memory_toys.train, algorithm, PROBLEMS[env], seed)
    return runs.finish(env, algorithm, seed, train)


def table(finishes: list[Finish]) -> str:
    """Return medians and ranges of steps over the seeds, and successes, in Markdown."""
    cells = {}
    for kind, target in memory_toys.TARGETS.items():
        for algorithm in memory_toys.ALGORITHMS:
            seeds = [
                one for one in finishes if (one.env, one.algorithm) == (kind.__name__, algorithm)
            ]
            if seeds:
                steps = [one.steps / 1000 for one in seeds]
                cells[f"{kind.__name__}, {target:g}", f"`{algorithm}`"] = (
                    f"{statistics.median(steps):,.0f}k ({min(steps):,.0f}-{max(steps):,.0f}), "
                    f"{sum(one.reached for one in seeds)} of {len(seeds)}"
                )
    return tables.pivoted(cells)


if __name__ == "__main__":
    os.environ["REMOTELY_LOCAL"] = "1"
    page, known = ROOT / "docs" / "lab" / "results.md", memory_toys.ALGORITHMS
    runs.command("memory", __doc__, page, [*known], [*PROBLEMS], (1, 2, 3, 4, 5), run, table)
