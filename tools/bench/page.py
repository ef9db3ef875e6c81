"""What a run was made on, and the tables of docs/benchmarks.md."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from tools.bench import table, turns
from tools.bench.figures import Figures
from tools.tables import table as markdown

PAGE = turns.ROOT / "docs" / "benchmarks.md"
Run = Mapping[str, str]  # what was run, on what


def described(command: str, rounds: int) -> dict[str, str]:
    """Return the run's machine, versions, date and command, a sentence each."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    named = [f"{turns.SYSTEMS[name].package} {v}" for name, v in turns.versions().items() if v]
    return {
        "machine": f"{os.cpu_count()} cores of {_processor()}, {memory_bytes / 2**30:.0f} GiB, "
        f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}",
        "versions": ", ".join(named),
        "commit": _commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": command,
        "n": f"{rounds} rounds" if rounds > 1 else "1 round",
    }


def filled(page: str, run: Run, figures: Figures) -> str:
    """Return the page with the text between each pair of marks replaced."""
    titles = {name: system.title for name, system in turns.SYSTEMS.items()}
    head, lines = table.measured(figures, titles)
    texts = {
        "run": markdown(["", ""], [[word, text] for word, text in run.items()]),
        "bars": markdown(table.HEAD, table.bars(figures, titles)),
        "systems": markdown(head, lines),
    }
    for name, text in texts.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = mark.subn("\\g<1>" + text.replace("\\", r"\\") + "\n\\g<2>", page)
        assert count == 1, f"docs/benchmarks.md has {count} places for {name!r}"
    return page


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def _commit() -> str:
    changed = " and changes" if _git("status", "--porcelain", "--", "remotely") else ""
    return _git("rev-parse", "--short", "HEAD") + changed


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=turns.ROOT, capture_output=True, text=True)
    return done.stdout.strip()
