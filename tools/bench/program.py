"""The command of a benchmark: its options, rounds and output."""

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tools import command_line
from tools.bench import page, table, turns
from tools.bench.benchmark import OWN, Benchmark, Limits
from tools.bench.figures import Figures

REPEATS = 1000  # at most, values of a figure in one turn


def main(to: page.Section, doc: str | None) -> int:
    """Run the benchmark; return the exit status.  --write fills `to`."""
    bench = to.bench
    parser = command_line.parser(bench.command, doc)
    names = [*bench.parts, *bench.systems]
    parser.add_argument("--quick", action="store_true", help="one short round without slow peers")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        default=[],
        choices=names,
        help=f"only these parts and systems: {', '.join(names)}",
    )
    parser.add_argument("--rounds", type=int, help=f"by default {bench.rounds}, with --quick 1")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        metavar="M",
        help="end after M minutes, without the remaining turns",
    )
    if bench.devices:
        parser.add_argument("--device", choices=bench.devices, default=bench.devices[0])
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every value to FILE after each turn"
    )
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="show the run in FILE; measure nothing"
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the run to FILE")
    parser.add_argument(
        "--write", action="store_true", help=f"write the table to its page, {to.path.name}"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the turn ends with us

    if options.read:
        kept = json.loads(options.read.read_text())
        run, figures, failed = kept["run"], Figures.from_json(kept["figures"]), False
    else:
        rounds = options.rounds or (1 if options.quick else bench.rounds)
        if bench.devices and options.device == "cuda" and not page.gpus():
            parser.error("nvidia-smi finds no GPU: use --device cpu, or a machine with one")
        run = page.described(bench, _command(bench, options, rounds), rounds)
        figures = Figures()

        def keep() -> None:
            if options.json:
                _write(options.json, run, figures)

        failed = measure(bench, options, rounds, figures, keep)
    print("\n".join(f"{word:9} {text}" for word, text in run.items()), end="\n\n")
    print(table.text(table.bars(bench.rows, figures, bench.titles)))
    print("\nSettings of each:")
    print("\n".join(f"  {one.title}: {one.note}" for one in bench.systems.values() if one.note))
    if options.json:
        _write(options.json, run, figures)
    if options.png:
        from tools.bench import picture  # noqa: PLC0415 - matplotlib takes a second to import

        picture.draw(bench, figures, f"{run['machine']}; {run['n']}; {run['date']}", options.png)
    if options.write:
        to.path.write_text(to.filled(to.path.read_text(), run, figures))
    return 1 if failed else 0


def measure(
    bench: Benchmark,
    options: argparse.Namespace,
    rounds: int,
    figures: Figures,
    keep: Callable[[], object] = lambda: None,
) -> bool:
    """Run all turns; return whether one of this environment's Python failed.

    It calls `keep` after each, and reads the options `only`, `quick`, `minutes` and `device`.
    """
    ends = time.monotonic() + 60 * options.minutes
    parts = [name for name in options.only if name in bench.parts] or [
        name for name in bench.parts if not (options.quick and name in bench.not_quick)
    ]
    systems = [name for name in options.only if name in bench.systems] or [
        name for name, system in bench.systems.items() if system.is_quick or not options.quick
    ]
    installed = turns.versions(bench.systems)
    absent = [
        (s, part) for s in systems for part in parts if s in {*bench.parts[part]} - {*installed}
    ]
    for system, part in absent:
        figures.miss(system, part, "not installed")
    if names := dict.fromkeys(system for system, _ in absent):
        print(f"not installed: {', '.join(names)} ('{bench.install}')", file=sys.stderr)
    failed = False
    for number in range(rounds):
        for turn in turns.in_order(bench, installed.keys() & set(systems), parts, number):
            begin = time.monotonic()
            limits = bench.limits.get(turn.part, Limits())
            limit_s = min(limits.most_s, ends - begin)
            what = f"round {number + 1} of {rounds}: {turn.part:15} {turn.system:14}"
            if limit_s < limits.least_s or limit_s <= 0:
                figures.miss(turn.system, turn.part, "no time was left")
                print(f"{what} no time left", file=sys.stderr, flush=True)
                continue
            words = (
                ["--device", options.device, "--limit", f"{limit_s:.0f}"] if bench.devices else []
            )
            quiet_s = turns.QUIET_S if options.minutes == math.inf else 0.0
            try:
                report = turns.take(turn, options.quick, limit_s, quiet_s, words)
            except turns.TurnFailed as error:
                print(error, file=sys.stderr)
                figures.miss(turn.system, turn.part, "it failed")
                failed |= turn.python == OWN
                report = error.report
            for figure, values in report.values.items():
                for repeat, value in values.items():
                    figures.add(turn.system, figure, REPEATS * number + repeat, value)
            for figure, why in report.why_not.items():
                figures.miss(turn.system, figure, why)
            took = f"{time.monotonic() - begin:.1f} s"
            print(f"{what} {took:>7}", file=sys.stderr, flush=True)
            keep()
    return failed


def _write(file: Path, run: page.Run, figures: Figures) -> None:
    """Replace the file atomically."""
    text = json.dumps({"run": run, "figures": figures.to_json()}, indent=1)
    unfinished = file.with_name(f".{file.name}")
    unfinished.write_text(text)
    unfinished.replace(file)


def _command(bench: Benchmark, options: argparse.Namespace, rounds: int) -> str:
    words = [bench.command, "--quick" * options.quick, f"--rounds {rounds}"]
    words.append(f"--minutes {options.minutes:g}" if options.minutes < math.inf else "")
    words.append(f"--device {options.device}" if bench.devices else "")
    words.append(" ".join(["--only", *options.only] if options.only else []))
    return f"`{' '.join(filter(None, words))}`"
