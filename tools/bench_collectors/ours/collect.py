"""VectorEnv with random actions, and its rollouts kept, as a collector keeps them."""

import numpy as np

from remotely_rl import VectorEnv
from tools.bench.stopwatch import report
from tools.bench_collectors.sizes import ENVIRONMENTS, FRAMES_PER_BATCH, FULL, QUICK, WORKERS
from tools.bench_rl.window import asked


def main() -> None:
    turn = asked()
    envs = VectorEnv(ENVIRONMENTS[turn.what], turn.size, envs_per_actor=turn.size // WORKERS)
    obs, _ = envs.reset(seed=0)
    rows = FRAMES_PER_BATCH // turn.size
    kept = np.empty((rows, *obs.shape), obs.dtype)
    rewards, ended = np.empty((rows, turn.size)), np.empty((rows, turn.size), bool)
    meter = (QUICK if turn.is_quick else FULL).meter()
    while meter.runs_on(FRAMES_PER_BATCH):
        for row in range(rows):
            kept[row] = obs
            obs, rewards[row], terminated, truncated, _ = envs.step(envs.action_space.sample())
            ended[row] = terminated | truncated
    report(**{turn.figure: meter.per_s})
    envs.close()


if __name__ == "__main__":
    main()
