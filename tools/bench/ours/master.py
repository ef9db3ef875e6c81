"""The master with simulated clusters (tools/bench/master.py)."""

from tools.bench import master as played
from tools.bench import stopwatch
from tools.bench.stopwatch import Effort, report

FEW, MANY = (10, 200), (1000, 20_000)  # workers, actors


def master(_: Effort) -> None:
    few, many = played.figures(*FEW), played.figures(*MANY)
    report(
        placement_of_10_s=few["a placement"] / 1e6,
        placement_of_1000_s=many["a placement"] / 1e6,
        master_of_1000_share=played.at_rest_percent(many, MANY[0]) / 100,
    )


if __name__ == "__main__":
    stopwatch.main({"registry": master})
