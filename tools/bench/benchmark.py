"""A benchmark: its systems, parts and rows, and what they are to reach.

`tools.bench` (calls and arrays) and `tools.bench_rl` (training) are two; both are run by
program.py, turn by turn (turns.py).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tools.bench.rows import Row

ROOT = Path(__file__).resolve().parent.parent.parent
OWN = Path(sys.executable)
LIMIT_S = 240.0  # of one turn


class System(NamedTuple):
    title: str
    python: Path
    package: str  # whose version tells which it is
    is_quick: bool = True  # also with --quick
    is_limit: bool = False  # a floor or a ceiling rather than a peer
    note: str = ""  # what was run


class Limits(NamedTuple):
    """Seconds that a turn of a part may take, and those that it needs at least to be begun."""

    most_s: float = LIMIT_S
    least_s: float = 0.0


class Benchmark(NamedTuple):
    command: str
    folder: Path  # of the scripts that `parts` names
    systems: dict[str, System]
    parts: dict[str, dict[str, str]]  # by part and system a script, run by path and told the part
    rows: tuple[Row, ...]
    install: str  # how those who are not here are installed
    code: tuple[str, ...]  # folders whose changes since the commit are told of
    not_quick: frozenset[str] = frozenset()  # parts that --quick leaves out unless they are named
    is_logarithmic: bool = True  # the picture
    rounds: int = 3
    limits: Mapping[str, Limits] = {}  # of parts, where they are not the usual ones
    devices: tuple[str, ...] = ()  # what the scripts take for --device, and --limit beside it

    @property
    def titles(self) -> dict[str, str]:
        """The systems' names, in the order in which they are shown."""
        return {name: system.title for name, system in self.systems.items()}


def python_of(environment: str) -> Path:
    """Return the interpreter of an environment of this repository, be it there or not.

    It is not resolved: its path is what makes an interpreter that of its environment.
    """
    return ROOT / environment / "bin" / "python"
