"""Ours, each algorithm by its own `train`."""

from typing import Any

from remotely_rl.algorithms import named
from tools.bench.stopwatch import report
from tools.bench_rl import pace
from tools.bench_rl.window import asked, cores

GAME = "ALE/Pong-v5"
TOO_LONG_MIN = 3.5

# What differs from an algorithm's own defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {"actors": cores(), "trajectory_steps": 16},
    "ppo": {"actors": cores(), "passes": 1, "minibatches": 4},
    "impala": {"actors": cores(), "passes": 1, "minibatches": 1},
    "appo": {"actors": cores(), "passes": 1, "v_trace": False},
    "ga3c": {"actors": 2 * cores(), "passes": 1, "minibatches": 1},
}


def main() -> None:
    turn = asked()
    algorithm = named(turn.what)
    config = algorithm.Config(
        env=GAME,
        image_size=turn.size,
        device="cpu",
        interval_s=pace.ROWS_EVERY_S,
        minutes=TOO_LONG_MIN,
        **SETTINGS[turn.what],
    )
    report(**{turn.figure: pace.measure(algorithm, config, turn.window)})


if __name__ == "__main__":
    main()
