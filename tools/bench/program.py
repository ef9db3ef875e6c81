"""The command of a benchmark: what it can be told, its rounds, and what is made of them."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.bench import page, table, turns
from tools.bench.benchmark import OWN, Benchmark
from tools.bench.figures import Figures


class Page(NamedTuple):
    """Where --write puts a run, and how: `filled(text, run, figures)` is the new text."""

    path: Path
    filled: Callable[[str, page.Run, Figures], str]


def main(bench: Benchmark, told: str | None, to: Page) -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(
        prog=bench.command,
        description=told,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*bench.parts, *bench.systems]
    parser.add_argument("--quick", action="store_true", help="one short round without slow peers")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], choices=names,
                        help=f"of these parts and systems alone: {', '.join(names)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, help="by default 3, with --quick 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value there")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show that run; measure nothing")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it there")
    parser.add_argument("--write", action="store_true", help=f"put it into docs/{to.path.name}")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the turn ends with us

    if options.read:
        kept = json.loads(options.read.read_text())
        run, figures, failed = kept["run"], Figures.from_json(kept["figures"]), False
    else:
        rounds = options.rounds or (1 if options.quick else 3)
        run = page.described(bench, _command(bench, options, rounds), rounds)
        figures, failed = measure(bench, options.only, options.quick, rounds)
    print("\n".join(f"{word:9} {text}" for word, text in run.items()), end="\n\n")
    print(table.text(table.bars(bench.rows, figures, bench.titles)))
    if options.json:
        options.json.write_text(json.dumps({"run": run, "figures": figures.to_json()}, indent=1))
    if options.png:
        from tools.bench import picture  # noqa: PLC0415 - matplotlib takes a second to import

        picture.draw(bench, figures, f"{run['machine']}; {run['n']}; {run['date']}", options.png)
    if options.write:
        to.path.write_text(to.filled(to.path.read_text(), run, figures))
    return 1 if failed else 0


def measure(bench: Benchmark, only: list[str], quick: bool, rounds: int) -> tuple[Figures, bool]:
    """Let everybody take turns; return the figures, and whether a turn of our own code failed."""
    parts = [name for name in only if name in bench.parts] or [
        name for name in bench.parts if not (quick and name in bench.not_quick)
    ]
    systems = [name for name in only if name in bench.systems] or [
        name for name, system in bench.systems.items() if system.is_quick or not quick
    ]
    installed = turns.versions(bench.systems)
    if absent := [name for name in systems if name not in installed]:
        print(f"not installed: {', '.join(absent)} ('{bench.install}')", file=sys.stderr)
    figures, failed = Figures(), False
    for number in range(rounds):
        for turn in turns.in_order(bench, installed.keys() & set(systems), parts, number):
            begin = time.monotonic()
            try:
                for figure, value in turns.take(turn, quick).items():
                    figures.add(turn.system, figure, number, value)
            except turns.TurnFailed as error:
                print(error, file=sys.stderr)
                failed |= turn.python == OWN
            took = f"{time.monotonic() - begin:.1f} s"
            where = f"round {number + 1} of {rounds}"
            print(
                f"{where}: {turn.part:10} {turn.system:14} {took:>7}", file=sys.stderr, flush=True
            )
    return figures, failed


def _command(bench: Benchmark, options: argparse.Namespace, rounds: int) -> str:
    words = [bench.command, "--quick" * options.quick, f"--rounds {rounds}"]
    words.append(" ".join(["--only", *options.only] if options.only else []))
    return f"`{' '.join(filter(None, words))}`"
