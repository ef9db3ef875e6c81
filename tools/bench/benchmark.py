"""A benchmark: its systems, parts and rows with their targets.

Examples are `tools.bench` (calls and arrays) and `tools.bench_rl` (training).  program.py runs them
in turns (turns.py).
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tools.bench.rows import Row

ROOT = Path(__file__).resolve().parent.parent.parent
OWN = Path(sys.executable)
LIMIT_S = 240.0  # for a turn


class System(NamedTuple):
    title: str
    python: Path
    package: str  # its version is the system's
    is_quick: bool = True  # also with --quick
    is_limit: bool = False  # a bound of the machine instead of a peer
    note: str = ""  # its settings


class Limits(NamedTuple):
    """The most seconds of a part's turn, and the least that must be left to begin it."""

    most_s: float = LIMIT_S
    least_s: float = 0.0


class Benchmark(NamedTuple):
    command: str
    folder: Path  # of the scripts in `parts`
    systems: dict[str, System]
    parts: dict[str, dict[str, str]]  # part -> system -> script, which gets the part as argument
    rows: tuple[Row, ...]
    install: str  # the command that installs the peers
    code: tuple[str, ...]  # folders whose uncommitted changes are reported
    not_quick: frozenset[str] = frozenset()  # parts that --quick omits unless named
    is_logarithmic: bool = True  # the picture
    rounds: int = 3
    limits: Mapping[str, Limits] = {}  # of parts with other than the default limits
    devices: tuple[str, ...] = ()  # values of the scripts' --device; they also take --limit

    @property
    def titles(self) -> dict[str, str]:
        """The systems' titles in their order."""
        return {name: system.title for name, system in self.systems.items()}


def python_of(environment: str) -> Path:
    """Return the interpreter of a virtual environment of this repository, which may not exist.

    It is not resolved, because the path selects the environment.
    """
    return ROOT / environment / "bin" / "python"
