"""The experience in all replays, and the timing of draws, with numpy only."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.bench.stopwatch import Effort, per_call, report, seconds

BATCH, STACK, WIDTH, ACTIONS = 256, 4, 64, 6
TIMING_S = 0.3  # about the length of a timing of many draws


class Size(NamedTuple):
    """The rows of a replay, in a full run and in a quick one."""

    full: int
    quick: int

    def of(self, effort: Effort) -> int:
        return self.full if effort.repeats > 3 else self.quick


ALONE = {84: Size(500_000, 20_000), 42: Size(1_000_000, 20_000)}
BESIDE_IMAGES, BESIDE_VECTORS = Size(30_000, 10_000), Size(100_000, 10_000)


class Steps(NamedTuple):
    """T steps of `WIDTH` environments without ends of episodes."""

    frames: NDArray[np.uint8]  # [T + STACK, WIDTH, side, side], with STACK - 1 earlier ones
    action: NDArray[np.int64]  # [T, WIDTH]
    reward: NDArray[np.float32]  # [T, WIDTH]

    @property
    def stacks(self) -> NDArray[np.uint8]:
        """The observations, [T + 1, WIDTH, STACK, side, side]."""
        windows = np.lib.stride_tricks.sliding_window_view(self.frames, STACK, axis=0)
        return np.ascontiguousarray(np.moveaxis(windows, -1, 2))


def steps_of(rows: int, side: int, at_once: int = 20) -> Iterator[Steps]:
    """Yield random consecutive steps, at least `rows` rows in total."""
    random = np.random.default_rng(0)
    before = random.integers(0, 256, (STACK, WIDTH, side, side), np.uint8)
    for _ in range(0, rows, at_once * WIDTH):
        new = random.integers(0, 256, (at_once, WIDTH, side, side), np.uint8)
        frames = np.concatenate([before, new])
        before = frames[-STACK:]
        yield Steps(
            frames,
            random.integers(0, ACTIONS, (at_once, WIDTH)),
            random.standard_normal((at_once, WIDTH), np.float32),
        )


def vectors_of(rows: int) -> dict[str, NDArray[Any]]:
    """Return random steps of observations of 4 numbers, [T + 1 or T, WIDTH, ...]."""
    random = np.random.default_rng(0)
    count = -(-rows // WIDTH)
    return {
        "obs": random.standard_normal((count + 1, WIDTH, 4), np.float32),
        "action": random.integers(0, ACTIONS, (count, WIDTH)),
        "reward": random.standard_normal((count, WIDTH), np.float32),
    }


def time_draws(figure: str, draw: Callable[[], object], effort: Effort) -> None:
    """Report the draws per second."""

    def run(times: int) -> None:
        for _ in range(times):
            draw()

    run(2)
    count = max(1, min(2_000, int(TIMING_S / seconds(draw))))
    report(**{figure: 1 / per_call(run, count, effort.repeats)})
