"""Who measures what, and what they were told."""

from pathlib import Path

from tools.bench.benchmark import OWN, Benchmark, System, python_of
from tools.bench_replay.bars import ROWS

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
        "numpy.take", OWN, "numpy", is_limit=True,
        note="of 512 stacks of frames, which lie in one array as large as all frames",
    ),
    "copy": System("a copy of the files", OWN, "", is_limit=True,
        note="shutil.copyfile and fsync of 1.8 GB"),
    "sb3": System(
        "stable_baselines3 ReplayBuffer", PEERS, "stable-baselines3",
        note="64 environments; it keeps stacks of 4 frames, and the next ones beside",
    ),
    "cpprb": System(
        "cpprb ReplayBuffer", PEERS, "cpprb",
        note='`next_of="obs"`, `stack_compress="obs"`; returns numpy arrays',
    ),
    "torchrl": System(
        "torchrl replay buffers", PEERS_TORCHRL, "torchrl",
        note="LazyTensorStorage; by priority it keeps stacks and the next ones; CatFrames rebuilds"
        " stacks of single frames, by its `make_rb_transform_and_sampler`",
    ),
}  # fmt: skip

OURS, SB3, CPPRB, TORCHRL = (
    "ours/replay.py", "peers/of_sb3.py", "peers/of_cpprb.py", "peers/of_torchrl.py"
)  # fmt: skip

PARTS: dict[str, dict[str, str]] = {
    "alone_84": {"take": "peers/of_numpy.py", "ours": OURS},
    "alone_42": {"take": "peers/of_numpy.py", "ours": OURS},
    "files": {"copy": "peers/of_numpy.py", "ours": OURS},
    "beside_84": {"sb3": SB3, "cpprb": CPPRB, "torchrl": TORCHRL, "ours": OURS},
    "append_84": {"sb3": SB3, "ours": OURS},
    "beside_vector": {"sb3": SB3, "torchrl": TORCHRL, "ours": OURS},
}

BENCH = Benchmark(
    command="python -m tools.bench_replay",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-replay-peers",
    code=("remotely", "remotely_rl"),
    is_logarithmic=False,
)
