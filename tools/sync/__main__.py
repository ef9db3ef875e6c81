"""The command of the measurements (see the package's docstring)."""

import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from remotely_rl.sync.simulation.simulator import Row
from tools import command_line, runs, sync
from tools.sync import overhead, page, paper, race, scale
from tools.sync.paper import Run

Simulate = Callable[[Run], tuple[Run, list[Row]]]
FIGURES: dict[str, tuple[Callable[[], list[Run]], Simulate]] = {
    "combinations": (paper.combinations, paper.simulate),
    "clients": (paper.clients, paper.simulate),
    "gates": (paper.gates, paper.simulate),
    "scale": (scale.runs, scale.simulate),
}


def simulated(simulations: list[Run], simulate: Simulate, processes: int, file: Path) -> None:
    """Run all, each in a new process, and write a CSV."""
    done: list[tuple[Run, list[Row]]] = []
    with ProcessPoolExecutor(processes) as pool:
        for run, rows in pool.map(simulate, simulations):
            done.append((run, rows))
            last = rows[-1]
            print(
                f"{run.panel}, {run.spec}: loss {last.metrics['loss']:.4f}, accuracy"
                f" {last.metrics['accuracy']:.4f}",
                file=sys.stderr,
                flush=True,
            )
    page.write(file, done)


def raced(name: str, quick: bool, seeds: int) -> str:
    """Race every rule, interleaved by seed, except for runs in the file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "race.jsonl") if quick else race.RACES[name].file
        known = runs.read(file, race.Finish)
        for seed in range(1, (1 if quick else seeds) + 1):
            for course in race.COURSES[:1] if quick else race.COURSES:
                if seed > course.task.seeds:
                    continue
                for spec in race.specs(course.workers):
                    if spec.partition(":")[0] not in race.RACES[name].rules:
                        continue
                    if not any(one.is_of(course, spec, seed) for one in known):
                        finish = race.run(spec, course, seed, 0.2 if quick else course.task.minutes)
                        runs.add(file, finish)
                        print(finish, file=sys.stderr, flush=True)
        return race.table(runs.read(file, race.Finish))


def main() -> None:
    parser = command_line.parser("python -m tools.sync", sync.__doc__)
    parser.add_argument("what", choices=[*FIGURES, *race.RACES, "overhead"])
    parser.add_argument("--quick", action="store_true", help="a minute, as a test")
    parser.add_argument("--write", action="store_true", help="fill docs/lab/sync.md")
    parser.add_argument("--replot", action="store_true", help="only show the runs in runs/")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="for simulations")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds of a race")
    asked = parser.parse_args()
    if asked.quick and asked.write:
        parser.error("--quick is only a test and cannot be written")
    if asked.replot and asked.what == "overhead":
        parser.error("overhead has no stored runs")
    if asked.what in FIGURES:
        images = page.IMAGES if asked.write else Path(tempfile.mkdtemp(prefix="sync-"))
        kept = asked.write or asked.replot
        file = (runs.FOLDER if kept else images) / f"sync-{asked.what}.csv"
        if not asked.replot:
            make, simulate = FIGURES[asked.what]
            simulations = paper.quick(make()) if asked.quick else make()
            simulated(simulations, simulate, asked.processes, file)
        curves = page.read(file)
        page.draw(curves, images / f"sync-{asked.what}.png")
        table = page.table(curves)
        print(f"the rows are in {file}, the chart is in {images}", file=sys.stderr)
    elif asked.what in race.RACES:
        table = raced(asked.what, asked.quick, 0 if asked.replot else asked.seeds)
    else:
        table = overhead.table(overhead.measure(*((1.0, 1) if asked.quick else (10.0, 3))))
    print(table)
    if asked.write:
        page.fill(asked.what, table, measured=not asked.replot)


if __name__ == "__main__":
    main()
