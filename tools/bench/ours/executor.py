"""remotely's Executor, with four processes of an embedded cluster."""

import remotely
from tools.bench import mapping, stopwatch
from tools.bench.stopwatch import Effort


def executor(effort: Effort) -> None:
    remotely.connect(cpus=mapping.PROCESSES)
    with remotely.Executor(mapping.PROCESSES) as made:
        mapping.measure(made, effort)


if __name__ == "__main__":
    stopwatch.main({"executor": executor})
