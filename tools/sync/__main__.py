"""See the package's docstring."""

import argparse
import dataclasses
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from remotely_rl.sync import problems, study
from remotely_rl.sync.simulator import Row
from tools.sync import overhead, page, paper, race, scale
from tools.sync.paper import Run

IMAGES = Path(__file__).parent.parent.parent / "docs" / "img"
QUICK = 50  # times fewer pushes


def simulate(run: Run) -> tuple[Run, list[Row], float]:
    """One simulation, in a process of its own."""
    began = time.monotonic()
    rows = study.run(run.word, run.study, problems.load())
    return run, rows, time.monotonic() - began


def simulated(runs: list[Run], quick: bool, processes: int) -> None:
    """Runs all; writes a CSV and a PNG a figure, and prints the last rows as a table."""
    if quick:
        runs = [
            run._replace(
                study=dataclasses.replace(
                    run.study,
                    iterations=run.study.iterations // QUICK,
                    every=max(1, run.study.every // QUICK),
                )
            )
            for run in runs
        ]
    done: list[tuple[Run, list[Row]]] = []
    with ProcessPoolExecutor(processes) as pool:
        for run, rows, seconds in pool.map(simulate, runs):
            done.append((run, rows))
            last = rows[-1]
            print(
                f"{run.panel}, {run.word}: loss {last.seen['loss']:.4f}, accuracy"
                f" {last.seen['accuracy']:.4f} ({seconds:.0f} s)",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    page.write(done, IMAGES)
    print(page.table(done))


def raced(quick: bool) -> None:
    """Races every rule, interleaved by seed."""
    finishes: dict[tuple[str, str], list[race.Finish]] = {}
    for seed in [1] if quick else race.SEEDS:
        for course in race.COURSES[:1] if quick else race.COURSES:
            for word in race.words(course.workers):
                finish = race.run(word, course, seed, 0.2 if quick else race.MINUTES)
                finishes.setdefault((course.name, word), []).append(finish)
                print(f"{course.name}, seed {seed}, {word}: {finish}", file=sys.stderr, flush=True)
    print(race.table(finishes))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.sync", description=__doc__)
    parser.add_argument("what", choices=["paper", "scale", "race", "overhead"])
    parser.add_argument("--quick", action="store_true", help="a minute, to see that it works")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="of simulations")
    asked = parser.parse_args()
    if asked.what == "paper":
        simulated(paper.runs(), asked.quick, asked.processes)
    elif asked.what == "scale":
        simulated(scale.runs(), asked.quick, asked.processes)
    elif asked.what == "race":
        raced(asked.quick)
    else:
        print(overhead.table(overhead.measure(1.0, 1) if asked.quick else overhead.measure(10.0)))


if __name__ == "__main__":
    main()
