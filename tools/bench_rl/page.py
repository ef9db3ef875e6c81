"""The section of docs/results.md that `--write` fills."""

from tools.bench.benchmark import ROOT
from tools.bench.page import Section
from tools.bench_rl.systems import BENCH

SECTION = Section(
    BENCH,
    ROOT / "docs" / "results.md",
    "bench-rl",
    "Steps of the agent a second, median of the rounds and their range. A ratio is that of one"
    ' round; the median of the rounds\' ratios is judged. "Others" are medians. The last rows are'
    " what the composed limit is made of.",
)
