"""CartPole with rewards in other units: every algorithm should learn as with rewards of 1.

    python -m tools.reward_units --only ppo dqn      # by default all, one after the other

The settings are those of `tools/classic.py`.  A run ends at a mean of 475 (in units) or after
--steps.  The table has the best mean of 30 training returns, with sampled actions.
"""

import dataclasses
import importlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import TransformReward

from tools import classic, command_line, tables

UNITS = (1.0, 1e-6, 1e6)
# The other setting in units of rewards: returns reach 50 with a gamma of 0.98.
ATOMS = {"value_bound": 50.0}
LIKE_DQN = ("c51", "qr_dqn", "rainbow")
ON_CARTPOLE = (name for name in classic.ALGORITHMS if (name, "CartPole-v1") not in classic.UNFIT)
ALGORITHMS = tuple(dict.fromkeys((*ON_CARTPOLE, *LIKE_DQN)))


def run(algorithm: str, unit: float, steps: int, seed: int) -> tuple[float, int]:
    """Train once; return the best mean, in units, and the steps."""
    base = classic.config_of("dqn" if algorithm in LIKE_DQN else algorithm, "CartPole-v1", seed)
    module = importlib.import_module(f"remotely_rl.algorithms.{algorithm}")
    given = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    changed: dict[str, Any] = {
        "env": lambda: TransformReward(gymnasium.make("CartPole-v1"), lambda r: float(r) * unit),
        "target": 475 * unit,
        "total_steps": steps,
        "minutes": 0.0,  # no limit
    }
    if algorithm in LIKE_DQN:
        defaults = module.Config()
        changed |= {name: getattr(defaults, name) for name in ("atoms", "quantiles", "noisy")}
        changed |= {name: bound * unit for name, bound in ATOMS.items()}
    with tempfile.TemporaryDirectory() as folder:
        result = module.train(module.Config(**given | changed), run=Path(folder) / "run")
    return result.best_return / unit, result.env_steps


def main() -> None:
    parser = command_line.parser("python -m tools.reward_units", __doc__)
    parser.add_argument("--only", nargs="*", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--steps", type=int, default=150_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rows: dict[str, list[str]] = {algorithm: [algorithm] for algorithm in asked.only}
    for algorithm, unit in itertools.product(asked.only, UNITS):
        best, steps = run(algorithm, unit, asked.steps, asked.seed)
        rows[algorithm].append(f"{best:.0f}, {steps:,} steps")
    print(tables.table(["algorithm", *(f"x {unit:g}" for unit in UNITS)], list(rows.values())))


if __name__ == "__main__":
    main()
