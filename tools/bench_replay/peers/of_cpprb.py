"""cpprb's ReplayBuffer, with its compression of stacks and of next observations."""

import numpy as np
from cpprb import ReplayBuffer

from tools.bench.stopwatch import Effort, main
from tools.bench_replay.experience import BATCH, BESIDE_IMAGES, STACK, WIDTH, steps_of, time_draws


def beside_84(effort: Effort) -> None:
    rows = BESIDE_IMAGES.of(effort)
    buffer = ReplayBuffer(
        rows,
        {
            "obs": {"shape": (84, 84, STACK), "dtype": np.uint8},
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {},
        },
        next_of="obs",
        stack_compress="obs",
    )
    # One environment after the other, because it compresses consecutive rows.
    for steps in steps_of(rows, 84, at_once=100):
        stacks = np.moveaxis(steps.stacks, 2, -1)
        for env in range(WIDTH):
            column = stacks[:, env]
            buffer.add(
                obs=column[:-1],
                next_obs=column[1:],
                act=steps.action[:, env],
                rew=steps.reward[:, env],
                done=np.zeros(len(steps.action)),
            )
            buffer.on_episode_end()
    time_draws("beside_84_per_s", lambda: buffer.sample(BATCH), effort)


if __name__ == "__main__":
    main({"beside_84": beside_84})
