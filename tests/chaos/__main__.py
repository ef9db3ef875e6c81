"""Kills, stops, cuts and delays, from a seed, under load, and a checker of what was promised.

python -m tests.chaos                     a tenth of every act: about ten minutes
python -m tests.chaos --full              the published numbers: hours
python -m tests.chaos "kill actor" -n 50 --seed 7
python -m tests.chaos --hours 8           every act in turn, for so long

Exits with 1 if a promise was broken; the folder of that act, with journals and logs, is kept.
"""

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.acts import ACTS, Figure, run

ANOMALIES_SHOWN = 20


def main() -> None:
    """Do what the command line says; print a row an act."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("acts", nargs="*", metavar="ACT", help=", ".join(ACTS))
    parser.add_argument("-n", type=int, help="how often; by default a tenth of the published")
    parser.add_argument("--full", action="store_true", help="as often as published")
    parser.add_argument("--hours", type=float, help="again and again, for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line each")
    asked = parser.parse_args()
    for name in asked.acts:
        if name not in ACTS:
            parser.error(f"there is no act {name!r}; there are {', '.join(ACTS)}")
    until = time.monotonic() + 3600 * (asked.hours or 0)
    well = True
    for turn in itertools.count():
        for name in asked.acts or ACTS:
            published = ACTS[name].n
            n = asked.n or (published if asked.full else max(1, published // 10))
            figure = _run(name, n, asked.seed + turn)
            well &= figure.well
            if asked.json:
                with asked.json.open("a") as file:
                    file.write(json.dumps(_record(figure, asked.seed + turn)) + "\n")
        if time.monotonic() >= until:
            break
    sys.exit(not well)


def _run(name: str, n: int, seed: int) -> Figure:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    figure = run(name, n, seed, folder / "stage", lambda text: print(text, file=sys.stderr))
    print(f"{name}: n={n} seed={seed} in {figure.seconds:.0f} s: {figure.verdict}", flush=True)
    for anomaly in figure.verdict.anomalies[:ANOMALIES_SHOWN]:
        print(f"    {anomaly}")
    if figure.left:
        print(f"    left behind: {figure.left}")
    if figure.well:
        shutil.rmtree(folder)
    else:
        print(f"    see {folder}", flush=True)
    return figure


def _record(figure: Figure, seed: int) -> dict[str, object]:
    return {
        "act": figure.act,
        "n": figure.n,
        "seed": seed,
        "seconds": round(figure.seconds, 1),
        "calls": figure.verdict.calls,
        "outcomes": figure.verdict.outcomes,
        "anomalies": figure.verdict.anomalies,
        "left": {name: str(value) for name, value in figure.left.items()},
    }


if __name__ == "__main__":
    main()
