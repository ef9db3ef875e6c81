"""TorchRL's collectors beside VectorEnv: both with two worker processes on a CPU.

    python -m tools.bench collectors                three rounds
    python -m tools.bench collectors --quick        one round of short turns
    python -m tools.bench collectors --write --json run.json

Both take random actions in 8 environments, four in each process one after another, and keep what
they see in batches of 1,024 frames; a frame is a step of one environment.  `make
bench-replay-peers` installs TorchRL.  Run it on an idle machine: ratios of figures of one run are
comparable, single figures are of that machine.
"""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System, python_of
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least

ENVIRONMENTS = {
    "cartpole_8_per_s": "CartPole-v1, 8",
    "pong_8_per_s": "ALE/Pong-v5, frames of 210x160x3, 8",
}

KINDS = {
    "sync_": ("processes in step", "MultiSyncCollector"),
    "async_": ("each by itself", "MultiAsyncCollector"),
}

ROWS = tuple(
    Row(f"{title}, {way}", prefix + figure, (at_least(1, Term("torchrl", collector)),))
    for figure, title in ENVIRONMENTS.items()
    for prefix, (way, collector) in KINDS.items()
)

SYSTEMS = {
    "ours": System(
        "remotely_rl.VectorEnv",
        OWN,
        "remotely-actors",
        note="a vector of 8 environments in two processes, or two vectors of 4 in one each",
    ),
    "torchrl": System(
        "TorchRL",
        python_of(".peers-torchrl"),
        "torchrl",
        note="two collectors, each with a SerialEnv of 4",
    ),
}

BOTH = {"ours": "ours/collect.py", "torchrl": "peers/of_torchrl.py"}

PARTS: dict[str, dict[str, str]] = {"cartpole_8": BOTH, "pong_8": BOTH}

BENCH = Benchmark(
    command="python -m tools.bench collectors",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-replay-peers",
    code=("remotely", "remotely_rl"),
)

SECTION = Section(
    BENCH,
    ROOT / "docs" / "lab" / "benchmarks.md",
    "bench-collectors",
    "Frames a second, median of the rounds and their range. A ratio is that of one round; the"
    " median of the rounds' ratios is judged.",
)
