"""Plain copies: numpy.take of a draw's bytes, and a copy of files of the same size."""

import functools
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from tools.bench.stopwatch import Effort, main, random_bytes, report, seconds
from tools.bench_replay.experience import ALONE, BATCH, STACK, time_draws


def take(side: int, effort: Effort) -> None:
    stack = STACK * side * side
    array = random_bytes(ALONE[side].of(effort) // STACK * stack).reshape(-1, stack)
    random = np.random.default_rng(0)
    time_draws(
        f"uniform_{side}_per_s",
        lambda: array.take(random.integers(0, len(array), 2 * BATCH), 0),
        effort,
    )


def copy(effort: Effort) -> None:
    size = ALONE[42].of(effort) * 42 * 42
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        source.write_bytes(random_bytes(size).data)
        fd = os.open(source, os.O_RDONLY)
        os.fsync(fd)  # otherwise it would be written during the copy
        os.close(fd)

        def run() -> None:
            shutil.copyfile(source, target)
            fd = os.open(target, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

        report(copy_bytes_per_s=size / seconds(run))


if __name__ == "__main__":
    main(
        {
            "alone_84": functools.partial(take, 84),
            "alone_42": functools.partial(take, 42),
            "files": copy,
        }
    )
