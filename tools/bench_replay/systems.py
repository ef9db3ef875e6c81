"""The benchmark of replays, compared with Stable-Baselines3, torchrl, cpprb and plain copies.

    python -m tools.bench replay                    all installed peers, three rounds
    python -m tools.bench replay --quick            one round of smaller replays
    python -m tools.bench replay --only uniform_84
    python -m tools.bench replay --write --json run.json

All hold the same random experience, and return 256 rows as torch tensors.  `make
bench-replay-peers` installs the peers.  It needs 6 GiB of memory and an idle machine.

`uniform_84_per_s` is draws per second of 256 rows of 84x84 images in stacks of 4.  A draw by
priority includes its weights and the update of its priorities.
"""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System, python_of
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least, at_most

TAKE, COPY = "take", "copy"


def alone(side: int, rows: str, prioritised: float, row_bytes: int) -> tuple[Row, ...]:
    """Return the rows of a large replay of images, compared with plain copies."""
    what = f"{rows} rows of {side}x{side}"
    uniform = f"uniform_{side}_per_s"
    return (
        Row(
            f"{what}, uniform",
            uniform,
            (at_least(0.6, Term(TAKE, "numpy.take of as many bytes")),),
        ),
        Row(
            f"{what}, by priority, with update",
            f"prioritised_{side}_per_s",
            (at_least(prioritised, Term("ours", "uniform", uniform)),),
        ),
        Row(
            f"{side}x{side}, a million rows in memory",
            f"million_{side}_bytes",
            (at_most(row_bytes * 1e6),),
        ),
    )


ROWS = (
    *alone(84, "500,000", 1 / 1.5, 7_200),
    *alone(42, "a million", 1 / 2, 1_850),
    Row(
        "a million rows of 42x42, saved",
        "save_bytes_per_s",
        (at_least(0.7, Term(COPY, "a copy of the files", "copy_bytes_per_s")),),
    ),
    Row(
        "a million rows of 42x42, loaded",
        "load_bytes_per_s",
        (at_least(0.7, Term(COPY, "a copy of the files", "copy_bytes_per_s")),),
    ),
    Row(
        "30,000 rows of 84x84, uniform",
        "beside_84_per_s",
        (
            at_least(1.3, Term("sb3", "SB3")),
            at_least(1.5, Term("cpprb", "cpprb, compressed")),
            at_least(10, Term("torchrl", "torchrl, CatFrames", "stacked_84_per_s")),
        ),
    ),
    Row(
        "30,000 rows of 84x84, by priority, with update",
        "beside_prioritised_84_per_s",
        (at_least(1.5, Term("torchrl", "torchrl")),),
    ),
    Row(
        "100,000 rows of 4 numbers, uniform",
        "beside_vector_per_s",
        (at_least(1.3, Term("sb3", "SB3")),),
    ),
    Row(
        "100,000 rows of 4 numbers, by priority, with update",
        "beside_prioritised_vector_per_s",
        (at_least(1.5, Term("torchrl", "torchrl")),),
    ),
    Row(
        "appended rows of 84x84, 4 steps of 64 environments at a time",
        "append_84_per_s",
    ),
    Row("the same, as an actor of the machine sent them", "append_sent_84_per_s"),
)

PEERS, PEERS_TORCHRL = python_of(".peers-replay"), python_of(".peers-torchrl")

SYSTEMS = {
    "ours": System(
        "remotely_rl Replay",
        OWN,
        "remotely-actors",
        note="64 environments; windows of 3 steps where it is alone, and of one step beside others;"
        " alpha 0.5",
    ),
    "take": System(
        "numpy.take",
        OWN,
        "numpy",
        is_limit=True,
        note="of 512 stacks of frames, which lie in one array as large as all frames",
    ),
    "copy": System(
        "a copy of the files", OWN, "", is_limit=True, note="shutil.copyfile and fsync of 1.8 GB"
    ),
    "sb3": System(
        "stable_baselines3 ReplayBuffer",
        PEERS,
        "stable-baselines3",
        note="64 environments; it keeps stacks of 4 frames, and the next ones beside",
    ),
    "cpprb": System(
        "cpprb ReplayBuffer",
        PEERS,
        "cpprb",
        note='`next_of="obs"`, `stack_compress="obs"`; returns numpy arrays',
    ),
    "torchrl": System(
        "torchrl replay buffers",
        PEERS_TORCHRL,
        "torchrl",
        note="LazyTensorStorage; by priority it keeps stacks and the next ones; CatFrames rebuilds"
        " stacks of single frames, by its `make_rb_transform_and_sampler`",
    ),
}

OURS, SB3, CPPRB, TORCHRL = (
    "ours/replay.py",
    "peers/of_sb3.py",
    "peers/of_cpprb.py",
    "peers/of_torchrl.py",
)

PARTS: dict[str, dict[str, str]] = {
    "alone_84": {"take": "peers/of_numpy.py", "ours": OURS},
    "alone_42": {"take": "peers/of_numpy.py", "ours": OURS},
    "files": {"copy": "peers/of_numpy.py", "ours": OURS},
    "beside_84": {"sb3": SB3, "cpprb": CPPRB, "torchrl": TORCHRL, "ours": OURS},
    "append_84": {"sb3": SB3, "ours": OURS},
    "beside_vector": {"sb3": SB3, "torchrl": TORCHRL, "ours": OURS},
}

BENCH = Benchmark(
    command="python -m tools.bench replay",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-replay-peers",
    code=("remotely", "remotely_rl"),
    is_logarithmic=False,
)

SECTION = Section(
    BENCH,
    ROOT / "docs" / "lab" / "benchmarks.md",
    "bench-replay",
    "Draws of 256 rows a second, median of the rounds and their range. A ratio is that of one"
    ' round; the median of the rounds\' ratios is judged. "Others" are medians.',
)
