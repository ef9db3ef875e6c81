"""How fast remotely is, beside the floor below it and the peers around it.

    python -m tools.bench                      all that is installed here, three rounds
    python -m tools.bench --quick              under a minute, without the slow peers
    python -m tools.bench --only arrays bare ours
    python -m tools.bench --write --png docs/img/benchmarks.png --json run.json

What is measured and what it is to reach is in bars.py; who measures it, and in which order, in
turns.py.  `make bench-peers` installs the peers.  Run it on a machine that does nothing else:
a ratio of two figures of one run can be claimed, a figure alone is that machine's.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from tools.bench import page, table, turns
from tools.bench.figures import Figures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*turns.PARTS, *turns.SYSTEMS]
    parser.add_argument("--quick", action="store_true", help="one short round without slow peers")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], choices=names,
                        help=f"of these parts and systems alone: {', '.join(names)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="by default 3, with --quick 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show that run; measure nothing")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it there")
    parser.add_argument("--write", action="store_true", help="put it into docs/benchmarks.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the turn ends with us

    if options.read:
        told = json.loads(options.read.read_text())
        run, figures, failed = told["run"], Figures.from_json(told["figures"]), False
    else:
        rounds = options.rounds or (1 if options.quick else 3)
        run = page.described(_command(options, rounds), rounds)
        figures, failed = measure(options.only, options.quick, rounds)
    titles = {name: system.title for name, system in turns.SYSTEMS.items()}
    print("\n".join(f"{word:9} {text}" for word, text in run.items()), end="\n\n")
    print(table.text(table.bars(figures, titles)))
    if options.json:
        options.json.write_text(json.dumps({"run": run, "figures": figures.to_json()}, indent=1))
    if options.png:
        from tools.bench import picture  # noqa: PLC0415 - matplotlib takes a second to import

        picture.draw(figures, titles, f"{run['machine']}; {run['n']}; {run['date']}", options.png)
    if options.write:
        page.PAGE.write_text(page.filled(page.PAGE.read_text(), run, figures))
    return 1 if failed else 0


def measure(only: list[str], quick: bool, rounds: int) -> tuple[Figures, bool]:
    """Let everybody take turns; return the figures, and whether a turn of ours failed."""
    parts = [name for name in only if name in turns.PARTS] or [
        name for name in turns.PARTS if not (quick and name in turns.NOT_QUICK)
    ]
    systems = [name for name in only if name in turns.SYSTEMS] or [
        name for name, system in turns.SYSTEMS.items() if system.is_quick or not quick
    ]
    installed = turns.versions()
    if absent := [name for name in systems if name not in installed]:
        print(f"not installed: {', '.join(absent)} ('make bench-peers')", file=sys.stderr)
    figures, failed = Figures(), False
    for number in range(rounds):
        for turn in turns.in_order(installed.keys() & set(systems), parts, number):
            begin = time.monotonic()
            try:
                for figure, value in turns.take(turn, quick).items():
                    figures.add(turn.system, figure, number, value)
            except turns.TurnFailed as error:
                print(error, file=sys.stderr)
                failed |= turn.system == "ours"
            took = f"{time.monotonic() - begin:.1f} s"
            where = f"round {number + 1} of {rounds}"
            print(f"{where}: {turn.part:10}{turn.system:8}{took:>7}", file=sys.stderr, flush=True)
    return figures, failed


def _command(options: argparse.Namespace, rounds: int) -> str:
    words = ["python -m tools.bench", "--quick" * options.quick, f"--rounds {rounds}"]
    words.append(" ".join(["--only", *options.only] if options.only else []))
    return f"`{' '.join(filter(None, words))}`"


if __name__ == "__main__":
    sys.exit(main())
