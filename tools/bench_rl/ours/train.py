"""Each algorithm's own `train`; for `busy_ppo_42`, beside a process that takes a core."""

from typing import Any

from remotely_rl.algorithms import named
from tools.bench.stopwatch import report
from tools.bench_rl import pace
from tools.bench_rl.window import asked, busy_process, cores

GAME = "ALE/Pong-v5"
TOO_LONG_MIN = 3.5

REPLAYED: dict[str, Any] = {
    "actors": cores(),
    "learn_from": 2048,
    "replay_rows": 50_000,
    "save_replay": False,
}

# Differences from the defaults.  `dqn_32` computes the same as Stable-Baselines3's DQN.
SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {"actors": cores(), "rollout_steps": 16},
    "ppo": {"actors": cores(), "epochs": 1, "minibatches": 4},
    "impala": {"actors": cores(), "epochs": 1, "minibatches": 1, "target_kl": 0.0},
    "appo": {"actors": cores(), "epochs": 1, "v_trace": False},
    "dqn": REPLAYED,
    "dqn_32": {**REPLAYED, "batch_size": 32, "double": False, "dueling": False, "n_step": 1},
    "dqn_32_double": {**REPLAYED, "batch_size": 32},
    "ga3c": {"actors": 2 * cores(), "epochs": 1, "minibatches": 1, "target_kl": 0.0},
}
BUSY = "busy_"


def main() -> None:
    turn = asked()
    what = turn.what.removeprefix(BUSY)
    algorithm = named(what.partition("_")[0])
    config = algorithm.Config(
        env=GAME,
        image_size=turn.size,
        device="cpu",
        log_interval_s=pace.ROWS_EVERY_S,
        minutes=TOO_LONG_MIN,
        **SETTINGS[what],
    )
    with busy_process(turn.what.startswith(BUSY)):
        (per_s,) = pace.measure(algorithm, config, turn.window)
        report(**{turn.figure: per_s})


if __name__ == "__main__":
    main()
