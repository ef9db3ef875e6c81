"""Who measures what, and what they were told."""

from pathlib import Path

from tools.bench.benchmark import OWN, Benchmark, System
from tools.bench_rl.systems import PEERS
from tools.bench_vector.bars import ROWS

SYSTEMS = {
    "ours": System(
        "remotely_rl.VectorEnv",
        OWN,
        "remotely-actors",
        note="as it comes, with supervision and a limit on steps: environments divided among a"
        " process a core; and with envs_per_actor=1. The loop is that of one process, with"
        " supervision and without seeds for each episode",
    ),
    "async": System("gymnasium.vector.AsyncVectorEnv", OWN, "gymnasium", note="as it comes"),
    "sync": System("gymnasium.vector.SyncVectorEnv", OWN, "gymnasium", note="as it comes"),
    "sb3": System(
        "stable_baselines3 SubprocVecEnv", PEERS, "stable-baselines3", note="as it comes"
    ),
}

OURS, GYMNASIUM, SB3 = "ours/steps.py", "peers/of_gymnasium.py", "peers/of_sb3.py"
BESIDE = {"ours": OURS, "async": GYMNASIUM, "sb3": SB3}
ALONE = {"ours": OURS, "sync": GYMNASIUM}

PARTS: dict[str, dict[str, str]] = {
    "cartpole_8": BESIDE,
    "cartpole_64": BESIDE,
    "pong_8": BESIDE,
    "loop_8": ALONE,
    "loop_64": ALONE,
}

BENCH = Benchmark(
    command="python -m tools.bench_vector",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-rl-peers",
    code=("remotely", "remotely_rl"),
    is_logarithmic=False,
)
