"""Every algorithm in every kind of space: the steps until it has learnt.

    python -m tools.spaces                         # all, with and without an LSTM: ten minutes
    python -m tools.spaces --only ppo a2c --write  # and fill docs/lab/results.md

The runs are those of tests/remotely_rl/test_spaces.py with seed 1.  A run is added to
runs/spaces.jsonl, and runs in that file are not repeated.
"""

import functools
import os

from remotely_rl import algorithms
from tests.remotely_rl import space_toys
from tests.remotely_rl.space_toys import LSTM
from tools import runs, tables
from tools.bench.benchmark import ROOT
from tools.runs import Finish

KINDS = {env.__name__: env for env in space_toys.TARGETS}
ALGORITHMS = [
    name
    for name in algorithms.ALGORITHMS
    if any(space_toys.takes(name, env) for env in space_toys.TARGETS)
]
# The spaces of each problem.
SPACES = {
    "ImageAndVector": ("Dict of Dict (image) and Box", "Discrete"),
    "Numbers": ("Tuple of Discrete, MultiBinary, MultiDiscrete", "MultiBinary"),
    "OneNumber": ("Discrete", "Discrete"),
    "ArmAndHand": ("Box", "Dict of Tuple (Box) and Discrete"),
    "Masked": ("Box, mask in `info`", "Discrete"),
    "MaskObserved": ("Dict with `action_mask`", "Discrete"),
    "MaskedChoices": ("Box, masks in `info`", "MultiDiscrete"),
}


def named(algorithm: str, units: int) -> str:
    """Return the name in the file of an algorithm with or without an LSTM."""
    return f"{algorithm} lstm={units}" if units else algorithm


def run(named_so: str, env: str, seed: int) -> Finish | None:
    """Train once, an algorithm or `ALGORITHM lstm=UNITS`."""
    algorithm, _, units = named_so.partition(" lstm=")
    problem, size = KINDS[env], int(units or 0)
    if not space_toys.takes(algorithm, problem, size):
        return None
    train = functools.partial(space_toys.train, algorithm, problem, seed, units=size)
    return runs.finish(env, named_so, seed, train)


def table(finishes: list[Finish]) -> str:
    """Return the steps to the target in Markdown."""
    found = {(one.env, one.algorithm): one for one in finishes}
    rows = []
    for kind, spaces in SPACES.items():
        cells = []
        for algorithm in ALGORITHMS:
            steps = []
            for units in (0, LSTM):
                one = found.get((kind, named(algorithm, units)))
                if not space_toys.takes(algorithm, KINDS[kind], units):
                    steps.append("-")
                elif one is None:
                    steps.append("not run")
                else:
                    steps.append(f"{one.steps:,}" if one.reached else "not reached")
            cells.append(" / ".join(steps))
        rows.append([*spaces, *cells])
    return tables.table(["observation", "action", *ALGORITHMS], rows)


if __name__ == "__main__":
    os.environ["REMOTELY_LOCAL"] = "1"
    known = [named(name, units) for units in (0, LSTM) for name in ALGORITHMS]
    page = ROOT / "docs" / "lab" / "results.md"
    runs.command("spaces", __doc__, page, known, [*KINDS], (1,), run, table)
