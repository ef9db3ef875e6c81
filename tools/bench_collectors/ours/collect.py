"""VectorEnv with random actions, and its rollouts kept, as a collector keeps them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from remotely_rl import VectorEnv
from tools.bench.stopwatch import report
from tools.bench_collectors.sizes import ENVIRONMENTS, FRAMES_PER_BATCH, FULL, QUICK, WORKERS
from tools.bench_rl.window import Asked, asked

# How many take turns.  Of two, none waits for the processes of the other.
VECTORS = {"sync_": 1, "async_": 2}


@dataclass
class Collecting:
    """An environment vector that steps, and where its rows are kept."""

    envs: VectorEnv
    rows: int
    kept: Any = field(init=False)

    def __post_init__(self) -> None:
        n = self.envs.num_envs
        obs, _ = self.envs.reset(seed=0)
        self.kept = np.empty((self.rows, *obs.shape), obs.dtype)
        self.rewards, self.ended = np.empty((self.rows, n)), np.empty((self.rows, n), bool)
        self._step()

    def take(self, row: int) -> None:
        """Take what the step returns, and keep it while the next goes on."""
        obs, self.rewards[row], terminated, truncated, _ = self.envs.step_wait()
        self._step()  # `obs` stays until the step after it
        self.kept[row] = obs
        self.ended[row] = terminated | truncated

    def _step(self) -> None:
        self.envs.step_async(self.envs.action_space.sample())


def main() -> None:
    turn = asked()
    for prefix, count in VECTORS.items():
        measure(turn, prefix, count)


def measure(turn: Asked, prefix: str, count: int) -> None:
    rows, each = FRAMES_PER_BATCH // turn.size, turn.size // count
    name = ENVIRONMENTS[turn.what]
    made = [
        VectorEnv(name, each, envs_per_actor=turn.size // WORKERS, copy=False) for _ in range(count)
    ]
    vectors = [Collecting(envs, rows) for envs in made]
    meter = (QUICK if turn.is_quick else FULL).meter()
    while meter.runs_on(FRAMES_PER_BATCH):
        for row in range(rows):
            for vector in vectors:
                vector.take(row)
    report(**{f"{prefix}{turn.figure}": meter.per_s})
    for envs in made:
        envs.step_wait()
        envs.close()


if __name__ == "__main__":
    main()
