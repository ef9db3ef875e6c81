"""concurrent.futures.ProcessPoolExecutor of four processes."""

from concurrent.futures import ProcessPoolExecutor

from tools.bench import mapping, stopwatch
from tools.bench.stopwatch import Effort


def executor(effort: Effort) -> None:
    with ProcessPoolExecutor(mapping.PROCESSES) as made:
        mapping.measure(made, effort)


if __name__ == "__main__":
    stopwatch.main({"executor": executor})
