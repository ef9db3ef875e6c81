"""Fault injection from a seed: kills, stops, cuts, delays, floods, interrupts; checks the promises.

python -m tests.chaos                     a hundredth of each trial, at least once: ten minutes
python -m tests.chaos --full              as often as published: hours
python -m tests.chaos "kill actor" decoder -n 50 --seed 7
python -m tests.chaos --hours 8           all trials in turn, for 8 hours

Exits with 1 if a promise was broken, and keeps the folder of that trial, with journals and logs.
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
    followers,
    fuzz,
    jobs,
    liars,
    nesting,
    rejoining,
    relays,
    versions,
    weeks,
)
from tests.chaos.finding import Finding, Trial

TRIALS: dict[str, Trial] = {
    **acts.TRIALS,
    **relays.TRIALS,
    **detection.TRIALS,
    **rejoining.TRIALS,
    **fuzz.TRIALS,
    **weeks.TRIALS,
    **liars.TRIALS,
    **nesting.TRIALS,
    **endurance.TRIALS,
    **jobs.TRIALS,
    **environments.TRIALS,
    **versions.TRIALS,
    **followers.TRIALS,
}
SHOWN = 20


def main() -> None:
    """Run the trials of the command line; print one row per trial."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help=", ".join(TRIALS))
    parser.add_argument("-n", type=int, help="how often; by default a hundredth of the published")
    parser.add_argument("--full", action="store_true", help="as often as published")
    parser.add_argument("--hours", type=float, help="repeat all trials for this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="append the figures to this file, a line each")
    options = parser.parse_args()
    for name in options.trials:
        if name not in TRIALS:
            parser.error(f"there is no trial {name!r}; there are {', '.join(TRIALS)}")
    deadline = time.monotonic() + 3600 * (options.hours or 0)
    all_kept = True
    for turn in itertools.count():
        for name in options.trials or TRIALS:
            published = TRIALS[name].n
            n = options.n or (published if options.full else max(1, published // 100))
            finding = _run(name, n, options.seed + turn)
            all_kept &= not finding.wrong
            if options.json:
                record = {"trial": name, "seed": options.seed + turn, **finding._asdict()}
                with options.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        if time.monotonic() >= deadline:
            break
    sys.exit(not all_kept)


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
