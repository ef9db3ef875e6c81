"""Mutation tests of the pure files: every fault in one must fail a test.

    python -m tools.mutation                                     all files
    python -m tools.mutation 'remotely.protocol.wire.*'          one file

mutmut makes the faults and runs the tests; `[tool.mutmut]` in pyproject.toml has the files and the
tests.  This tool counts the outcomes by file and shows each survivor, unless `tests/survivors.toml`
has the reason why no test can see it.  The exit code is 1 if less than 90 % of a file's faults are
killed, or for a survivor without a reason.

mutmut keeps the outcomes in `mutants/` until a function changes: remove that folder if tests have.
"""

import json
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tools import command_line, tables

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
REASONS = ROOT / "tests" / "survivors.toml"
AT_LEAST = 0.9  # share of a file's mutants that must be killed
MUTMUT = Path(sys.executable).parent / "mutmut"
# mutmut's exit codes for a mutant that was killed, by a failure or a timeout.
KILLED = {1, 3, -24, 24, 36, 152, 255, -11, -9}
UNTRIED = {None, 34}


class Survivor(NamedTuple):
    """A fault that no test saw: the line before and after."""

    file: str
    was: str
    becomes: str


def run(names: list[str], processes: int) -> None:
    """Make the mutants and run their tests.  Raises SystemExit if the tests fail without one."""
    command: list[str | Path] = [MUTMUT, "run", "--max-children", str(processes), *names]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        tail = done.stdout.decode(errors="replace").replace("\r", "\n")[-3000:]
        raise SystemExit(f"mutmut failed:\n{tail}")


def outcomes() -> dict[str, dict[str, int | None]]:
    """Return the exit code of each mutant's tests, by file."""
    found = {}
    for meta in sorted(MUTANTS.rglob("*.py.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        if tried := {name: code for name, code in codes.items() if code not in UNTRIED}:
            found[str(meta.relative_to(MUTANTS)).removesuffix(".meta")] = tried
    return found


def survivor(file: str, name: str) -> Survivor:
    """Return the change of a mutant."""
    shown = subprocess.run([MUTMUT, "show", name], cwd=ROOT, capture_output=True, text=True)
    lines = shown.stdout.splitlines()
    was, becomes = (
        "\n".join(line[1:].strip() for line in lines if line[:1] == sign and line[:3] != 3 * sign)
        for sign in "-+"
    )
    return Survivor(file, was, becomes)


def reasons() -> dict[Survivor, str]:
    """Return the reasons for survivors: the same behaviour, or one that nothing promises."""
    if not REASONS.exists():
        return {}
    written = tomllib.loads(REASONS.read_text()).get("survivor", [])
    return {Survivor(one["file"], one["was"], one["becomes"]): one["why"] for one in written}


def main() -> None:
    parser = command_line.parser("python -m tools.mutation", __doc__)
    parser.add_argument("names", nargs="*", help="patterns of mutants")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--known", action="store_true", help="show the last outcome without a run")
    asked = parser.parse_args()
    if not asked.known:
        run(asked.names, asked.processes)
    known, rows, unexplained, poor = reasons(), [], [], []
    total: Counter[str] = Counter()
    for file, codes in outcomes().items():
        left = [survivor(file, name) for name, code in codes.items() if code not in KILLED]
        new = [one for one in left if one not in known]
        unexplained += new
        killed = len(codes) - len(left)
        rows.append(
            [
                f"`{file}`",
                str(len(codes)),
                f"{killed / len(codes):.0%}",
                str(len(left) - len(new)),
                str(len(new)),
            ]
        )
        total.update(mutants=len(codes), killed=killed)
        if killed < AT_LEAST * len(codes):
            poor.append(file)
    print(tables.table(["file", "mutants", "killed", "survivors explained", "and not"], rows))
    print(f"{total['killed']} of {total['mutants']} killed")
    for one in unexplained:
        print(f"\n{one.file}\n- {one.was}\n+ {one.becomes}")
    sys.exit(1 if unexplained or poor else 0)


if __name__ == "__main__":
    main()
