"""The section of docs/replay.md that `--write` fills."""

from tools.bench.benchmark import ROOT
from tools.bench.page import Section
from tools.bench_replay.systems import BENCH

SECTION = Section(
    BENCH,
    ROOT / "docs" / "replay.md",
    "bench-replay",
    "Draws of 256 rows a second, median of the rounds and their range. A ratio is that of one"
    ' round; the median of the rounds\' ratios is judged. "Others" are medians.',
)
