"""The section of docs/environments.md that `--write` fills."""

from tools.bench import table
from tools.bench.benchmark import ROOT
from tools.bench.figures import Figures
from tools.bench.page import Run, replaced, run_table
from tools.bench_vector.systems import BENCH, SYSTEMS
from tools.tables import table as markdown

PAGE = ROOT / "docs" / "environments.md"
BEGINS, ENDS = "<!-- bench-vector begins -->", "<!-- bench-vector ends -->"

HOW = (
    "Steps of environments a second, median of the rounds and their range. A ratio is that of one"
    " round; the median of the rounds' ratios is judged."
)


def filled(page: str, run: Run, figures: Figures) -> str:
    """Return the page with the section made of a run."""
    who = [name for name in SYSTEMS if any(figures.of(name, row.figure) for row in BENCH.rows)]
    parts = (
        run_table(run),
        HOW,
        markdown(table.HEAD, table.bars(BENCH.rows, figures, BENCH.titles)),
        "What each was told:",
        markdown(["", ""], [[SYSTEMS[name].title, SYSTEMS[name].note] for name in who]),
    )
    return replaced(page, BEGINS, ENDS, "\n" + "\n\n".join(parts) + "\n")
