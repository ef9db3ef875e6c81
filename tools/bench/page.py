"""The description of a run, and the section of a page with its results."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tools.bench import table, turns
from tools.bench.benchmark import ROOT, Benchmark
from tools.bench.figures import Figures
from tools.tables import table as markdown

Run = Mapping[str, str]  # the description of a run


def described(bench: Benchmark, command: str, rounds: int) -> dict[str, str]:
    """Return the run's machine, versions, date and command."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = turns.versions(bench.systems)
    named = {f"{bench.systems[name].package} {v}": None for name, v in versions.items() if v}
    return {
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory_bytes / 2**30:.0f} GiB, "
        f"{''.join(f'{gpu}, ' for gpu in gpus())}"
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}",
        "load": f"{os.getloadavg()[0]:.1f} before the first turn",
        "versions": ", ".join(named),
        "commit": commit(bench.code),
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "n": f"{rounds} rounds" if rounds > 1 else "1 round",
    }


class Section(NamedTuple):
    """A part of a page between two marks, which `--write` replaces."""

    bench: Benchmark
    path: Path
    name: str
    how: str  # the meaning of the figures

    @property
    def marks(self) -> tuple[str, str]:
        """The marks before and after the section."""
        return f"<!-- {self.name} begins -->", f"<!-- {self.name} ends -->"

    def filled(self, page: str, run: Run, figures: Figures) -> str:
        """Return the page with the section of a run."""
        lines = table.bars(self.bench.rows, figures, self.bench.titles)
        shown = [line for line in lines if line[1] or line[5]]  # with a target or other figures
        parts = run_line(run), self.how, markdown(table.HEAD, shown)
        return replaced(page, *self.marks, "\n" + "\n\n".join(parts) + "\n")


def run_line(run: Run) -> str:
    return "; ".join(f"{word}: {text}" for word, text in run.items()) + "."


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """Return the page with the text between two marks, which it has once, replaced."""
    mark = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    page, count = mark.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page)
    assert count == 1, f"the page has {count} places for {begin}"
    return page


def gpus() -> list[str]:
    """Return the names of this machine's NVIDIA GPUs."""
    return _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()


def commit(code: tuple[str, ...]) -> str:
    """Return the commit of this tree, if it is a checkout."""
    if not (head := _said("git", "rev-parse", "--short", "HEAD")):
        return "not known: this tree is no checkout"
    changed = " and changes" if _said("git", "status", "--porcelain", "--", *code) else ""
    return head + changed


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def _said(*command: str) -> str:
    """Return a command's output; empty if it fails or does not exist."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
