"""The minimum of a call with arrays: one copy into existing memory.

Arrays that are copied repeatedly stay in the CPU's cache if they fit.  The figures named `_memory`
are of copies from memory, of more arrays than a cache holds.
"""

import itertools
import statistics

import numpy as np

from tools.bench import stopwatch
from tools.bench.stopwatch import Array, Effort, report

MORE_THAN_A_CACHE = 256_000_000  # bytes


def copies(effort: Effort) -> None:
    """Report the time of a copy of each array of the echoes."""
    for size, count in stopwatch.ECHOES.items():
        array = stopwatch.random_bytes(count)
        many = [array.copy() for _ in range(max(1, MORE_THAN_A_CACHE // count))]
        report(
            **{
                f"copy_{size}_s": _copy_s([array], effort),
                f"copy_{size}_memory_s": _copy_s(many, effort) / len(many),
            }
        )


def parameters(effort: Effort) -> None:
    arrays = list(stopwatch.parameters().values())
    sets = MORE_THAN_A_CACHE // sum(array.nbytes for array in arrays)
    many = [array.copy() for _ in range(sets) for array in arrays]
    report(
        copy_parameters_s=_copy_s(arrays, effort),
        copy_parameters_memory_s=_copy_s(many, effort) / sets,
    )


def trajectory(effort: Effort) -> None:
    arrays = stopwatch.trajectory()
    seconds = _copy_s(list(arrays.values()), effort)
    report(copy_bytes_per_s=stopwatch.size_of(arrays) / seconds)


def _copy_s(arrays: list[Array], effort: Effort) -> float:
    """Return the seconds to copy each of the arrays once."""
    pairs = [(array.copy(), array) for array in arrays]
    count = max(1, effort.echo_bytes // stopwatch.size_of(dict(enumerate(arrays))))

    def copy() -> None:
        for target, array in itertools.chain.from_iterable(itertools.repeat(pairs, count)):
            np.copyto(target, array)

    copy()
    return statistics.median(stopwatch.seconds(copy) / count for _ in range(effort.repeats))


if __name__ == "__main__":
    stopwatch.main({"arrays": copies, "broadcast": parameters, "streams": trajectory})
