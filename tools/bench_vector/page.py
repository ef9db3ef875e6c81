"""The section of docs/environments.md that `--write` fills."""

from tools.bench.benchmark import ROOT
from tools.bench.page import Section
from tools.bench_vector.systems import BENCH

SECTION = Section(
    BENCH,
    ROOT / "docs" / "environments.md",
    "bench-vector",
    "Steps of environments a second, median of the rounds and their range. A ratio is that of one"
    " round; the median of the rounds' ratios is judged.",
)
