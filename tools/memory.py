"""Every template that takes an LSTM, on problems that take a memory: when does it get there.

    python -m tools.memory                           # all, five seeds each: an hour
    python -m tools.memory --only ppo --seeds 1 2

The runs are those of tests/remotely_rl/test_learning.py: the defaults and `lstm=64`, in one
process, so that a seed takes as many steps whatever else the machine does.  A run is added to
runs/memory.jsonl, and what is there is not run again; a table of all comes at the end, with
`--write` into docs/results.md.
"""

import argparse
import functools
import itertools
import os
import statistics

from tests.remotely_rl import memory_toys
from tools import runs, tables
from tools.bench.benchmark import ROOT
from tools.bench.page import replaced
from tools.runs import Finish

PAGE = ROOT / "docs" / "results.md"
FILE = runs.FOLDER / "memory.jsonl"
PROBLEMS = {env.__name__: env for env in memory_toys.TARGETS}


def run(algorithm: str, env: str, seed: int) -> Finish:
    """Trains once."""
    train = functools.partial(memory_toys.train, algorithm, PROBLEMS[env], seed)
    return runs.finish(env, algorithm, seed, train)


def table(finishes: list[Finish]) -> str:
    """Medians and ranges over the seeds, in Markdown."""
    rows = []
    for kind, target in memory_toys.TARGETS.items():
        for algorithm in memory_toys.TEMPLATES:
            seeds = [
                one for one in finishes if (one.env, one.algorithm) == (kind.__name__, algorithm)
            ]
            if seeds:
                steps = [one.steps for one in seeds]
                rows.append([
                    f"{kind.__name__} {target:g}",
                    algorithm,
                    f"{sum(one.reached for one in seeds)} of {len(seeds)}",
                    f"{statistics.median(steps):,.0f}",
                    f"{min(steps):,}-{max(steps):,}",
                ])  # fmt: skip
    return tables.table(["to reach", "template", "seeds", "steps: median", "range"], rows)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = memory_toys.TEMPLATES
    parser.add_argument("--only", nargs="*", default=list(known), choices=list(known))
    parser.add_argument("--envs", nargs="*", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--write", action="store_true", help="fill docs/results.md")
    asked = parser.parse_args()
    os.environ["REMOTELY_LOCAL"] = "1"
    done = {one[:3] for one in runs.read(FILE, Finish)}
    for seed, env, algorithm in itertools.product(asked.seeds, asked.envs, asked.only):
        if (env, algorithm, seed) not in done:
            finish = run(algorithm, env, seed)
            runs.add(FILE, finish)
            print(finish, flush=True)
    found = table(runs.read(FILE, Finish))
    print(found)
    if asked.write:
        text = replaced(PAGE.read_text(), "<!-- memory begins -->", "<!-- memory ends -->", found)
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
