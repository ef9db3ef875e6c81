"""Stable-Baselines3's ReplayBuffer, which stores each observation and the next one."""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from tools.bench.stopwatch import Effort, main, report, seconds
from tools.bench_replay.experience import (
    ACTIONS,
    BATCH,
    BESIDE_IMAGES,
    BESIDE_VECTORS,
    STACK,
    WIDTH,
    steps_of,
    time_draws,
    vectors_of,
)


def buffer(rows: int, space: spaces.Box) -> ReplayBuffer:
    return ReplayBuffer(rows, space, spaces.Discrete(ACTIONS), n_envs=WIDTH)


def add(to: ReplayBuffer, obs: NDArray[Any], action: NDArray[Any], reward: NDArray[Any]) -> None:
    done = np.zeros(WIDTH, np.bool_)
    infos: list[dict[str, Any]] = [{} for _ in range(WIDTH)]
    for at in range(len(action)):
        to.add(obs[at], obs[at + 1], action[at][:, None], reward[at], done, infos)


def beside_84(effort: Effort) -> None:
    rows = BESIDE_IMAGES.of(effort)
    images = buffer(rows, spaces.Box(0, 255, (STACK, 84, 84), np.uint8))
    for steps in steps_of(rows, 84):
        add(images, steps.stacks, steps.action, steps.reward)
    time_draws("beside_84_per_s", lambda: images.sample(BATCH), effort)


def append_84(effort: Effort) -> None:
    images = buffer(5_000, spaces.Box(0, 255, (STACK, 84, 84), np.uint8))
    parts = [(s.stacks, s.action, s.reward) for s in steps_of(60 * 4 * WIDTH, 84, at_once=4)]
    for part in parts[:30]:  # until it is full
        add(images, *part)

    def run() -> None:
        for part in parts[30:]:
            add(images, *part)

    report(append_84_per_s=sum(action.size for _, action, _ in parts[30:]) / seconds(run))


def beside_vector(effort: Effort) -> None:
    rows = BESIDE_VECTORS.of(effort)
    vectors = buffer(rows, spaces.Box(-9, 9, (4,), np.float32))
    add(vectors, **vectors_of(rows))
    time_draws("beside_vector_per_s", lambda: vectors.sample(BATCH), effort)


if __name__ == "__main__":
    main({"beside_84": beside_84, "append_84": append_84, "beside_vector": beside_vector})
