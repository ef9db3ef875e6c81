"""remotely_rl's replay."""

import functools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import remotely
from remotely_rl import trees
from remotely_rl.experience.replay import Draw, Replay
from remotely_rl.experience.trajectory import Trajectory
from tools.bench.stopwatch import Effort, main, report, seconds
from tools.bench_replay.experience import (
    ALONE,
    BATCH,
    BESIDE_IMAGES,
    BESIDE_VECTORS,
    WIDTH,
    Steps,
    steps_of,
    time_draws,
    vectors_of,
)


def trajectory(obs: Any, action: Any, reward: Any) -> Trajectory:
    rows = action.shape
    return Trajectory(
        obs=obs,
        action=action,
        log_prob=np.zeros(rows, np.float32),
        reward=reward,
        terminated=np.zeros(rows, np.bool_),
        truncated=np.zeros(rows, np.bool_),
        valid=np.ones(rows, np.bool_),
        begins=np.zeros((rows[0] + 1, WIDTH), np.bool_),
        value=np.zeros((rows[0] + 1, WIDTH), np.float32),
        state=np.zeros((WIDTH, 0), np.float32),
        version=np.zeros(WIDTH, np.int64),
    )


def of_steps(steps: Steps) -> Trajectory:
    return trajectory(steps.stacks, steps.action, steps.reward)


def filled_with_images(rows: int, side: int, **settings: Any) -> Replay:
    parts = steps_of(rows, side)
    first = of_steps(next(parts))
    replay = Replay(rows, WIDTH, first, **settings)
    replay.append(first)
    for part in parts:
        replay.append(of_steps(part))
    return replay


def as_tensors(draw: Draw) -> Any:
    return trees.map_tree(torch.from_numpy, tuple(draw))


def time_uniform(replay: Replay, figure: str, effort: Effort) -> None:
    time_draws(figure, lambda: as_tensors(replay.draw(BATCH)), effort)


def time_prioritised(replay: Replay, figure: str, effort: Effort) -> None:
    def learn() -> None:
        draw = replay.draw(BATCH)
        as_tensors(draw)
        replay.update(draw.rows, np.abs(draw.reward))

    time_draws(figure, learn, effort)


def alone(side: int, effort: Effort) -> None:
    rows = ALONE[side].of(effort)
    make = functools.partial(filled_with_images, rows, side)
    time_uniform(make(), f"uniform_{side}_per_s", effort)  # one at a time is in memory
    time_prioritised(make(alpha=0.5), f"prioritised_{side}_per_s", effort)
    # The arrays of a million rows are allocated, and not written.
    replay = Replay(1_000_000, WIDTH, of_steps(next(steps_of(1, side))), alpha=0.5)
    report(**{f"million_{side}_bytes": replay.bytes_per_row * 1e6})


def beside_84(effort: Effort) -> None:
    rows = BESIDE_IMAGES.of(effort)
    make = functools.partial(filled_with_images, rows, 84, n_step=1)
    time_prioritised(make(alpha=0.5), "beside_prioritised_84_per_s", effort)
    time_uniform(make(), "beside_84_per_s", effort)


@remotely.remote_class
class Player:
    """An actor that sends its trajectories through shared memory."""

    def __init__(self, count: int) -> None:
        self._parts = trajectories(count)

    def play(self, turn: int) -> Trajectory:
        return self._parts[turn]


def trajectories(count: int) -> list[Trajectory]:
    return [of_steps(steps) for steps in steps_of(count * 4 * WIDTH, 84, at_once=4)]


def time_appends(replay: Replay, parts: list[Trajectory], figure: str) -> None:
    def run() -> None:
        for part in parts:
            replay.append(part)

    report(**{figure: sum(part.action.size for part in parts) / seconds(run)})


def append_84(effort: Effort) -> None:
    """Append trajectories of this process, and those that an actor has sent."""
    own = trajectories(60)
    replay = Replay(5_000, WIDTH, own[0], alpha=0.5)
    for part in own[:30]:  # until it is full
        replay.append(part)
    time_appends(replay, own[30:], "append_84_per_s")
    player = Player(60)
    received = [player.play(turn) for turn in range(60)]
    time_appends(replay, received[30:], "append_sent_84_per_s")
    remotely.shutdown()


def beside_vector(effort: Effort) -> None:
    rows = BESIDE_VECTORS.of(effort)
    whole = trajectory(**vectors_of(rows))

    def make(**settings: Any) -> Replay:
        replay = Replay(rows, WIDTH, whole, n_step=1, **settings)
        replay.append(whole)
        return replay

    time_uniform(make(), "beside_vector_per_s", effort)
    time_prioritised(make(alpha=0.5), "beside_prioritised_vector_per_s", effort)


def files(effort: Effort) -> None:
    replay = filled_with_images(ALONE[42].of(effort), 42, alpha=0.5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.perf_counter()
        replay.save(folder)
        took_s = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in folder.iterdir())
        report(save_bytes_per_s=size / took_s)
        report(load_bytes_per_s=size / seconds(lambda: replay.load(folder)))


if __name__ == "__main__":
    main(
        {
            "alone_84": functools.partial(alone, 84),
            "alone_42": functools.partial(alone, 42),
            "files": files,
            "beside_84": beside_84,
            "append_84": append_84,
            "beside_vector": beside_vector,
        }
    )
