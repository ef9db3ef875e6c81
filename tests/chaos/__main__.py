"""Kills, stops, cuts, delays, floods and interrupts, from a seed, and a check of what was promised.

python -m tests.chaos                     a hundredth of everything, once at least: ten minutes
python -m tests.chaos --full              the published numbers: hours
python -m tests.chaos "kill actor" decoder -n 50 --seed 7
python -m tests.chaos --hours 8           everything in turn, for so long

Exits with 1 if a promise was broken; the folder of that trial, with journals and logs, is kept.
"""

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import (
    acts,
    detection,
    endurance,
    environments,
    fuzz,
    jobs,
    liars,
    rejoining,
    relays,
)
from tests.chaos.finding import Finding, Trial

TRIALS: dict[str, Trial] = {
    **acts.TRIALS,
    **relays.TRIALS,
    **detection.TRIALS,
    **rejoining.TRIALS,
    **fuzz.TRIALS,
    **liars.TRIALS,
    **endurance.TRIALS,
    **jobs.TRIALS,
    **environments.TRIALS,
}
SHOWN = 20


def main() -> None:
    """Do what the command line says; print a row a trial."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=", ".join(TRIALS))
    parser.add_argument("-n", type=int, help="how often; by default a hundredth of the published")
    parser.add_argument("--full", action="store_true", help="as often as published")
    parser.add_argument("--hours", type=float, help="again and again, for so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line each")
    asked = parser.parse_args()
    for name in asked.trials:
        if name not in TRIALS:
            parser.error(f"there is no trial {name!r}; there are {', '.join(TRIALS)}")
    until = time.monotonic() + 3600 * (asked.hours or 0)
    well = True
    for turn in itertools.count():
        for name in asked.trials or TRIALS:
            published = TRIALS[name].n
            n = asked.n or (published if asked.full else max(1, published // 100))
            finding = _run(name, n, asked.seed + turn)
            well &= not finding.wrong
            if asked.json:
                record = {"trial": name, "seed": asked.seed + turn, **finding._asdict()}
                with asked.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        if time.monotonic() >= until:
            break
    sys.exit(not well)


def _run(name: str, n: int, seed: int) -> Finding:
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    finding = TRIALS[name].run(n, seed, folder)
    told = f"{finding.told}; {len(finding.wrong)} wrong"
    print(f"{name}: n={n:,} seed={seed} in {finding.seconds:.0f} s: {told}", flush=True)
    for line in finding.wrong[:SHOWN]:
        print(f"    {line}")
    if finding.wrong:
        print(f"    see {folder}", flush=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return finding


if __name__ == "__main__":
    main()
