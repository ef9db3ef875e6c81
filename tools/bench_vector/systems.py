"""The benchmark of vector environments, compared with AsyncVectorEnv and SB3's SubprocVecEnv.

    python -m tools.bench vector                    all installed peers, three rounds
    python -m tools.bench vector --quick            one round of short turns
    python -m tools.bench vector --only cartpole_8
    python -m tools.bench vector --write --json run.json

All step the same environments with actions drawn before; a step is of one environment.
`make bench-rl-peers` installs Stable-Baselines3.  Run it on an idle machine: ratios of figures of
one run are comparable, single figures are of that machine.

`cartpole_8_per_s` is steps per second of 8 CartPoles, by default divided among a process per core.
`each_...` has a process for each environment, as the peers have.
"""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least
from tools.bench_rl.systems import PEERS

SYNC = "sync", "SyncVectorEnv"


def others(figure: str) -> tuple[Term, Term]:
    return (
        Term("async", "AsyncVectorEnv", figure),
        Term("sb3", "SubprocVecEnv", figure),
    )


def rows_of(title: str, name: str, several: float, each: float) -> tuple[Row, ...]:
    figure = f"{name}_per_s"
    return (
        Row(title, figure, tuple(at_least(several, term) for term in others(figure))),
        Row(
            f"{title}, a process each",
            f"each_{figure}",
            tuple(at_least(each, term) for term in others(figure)),
        ),
    )


ROWS = (
    *rows_of("CartPole, 8", "cartpole_8", 3, 1),
    *rows_of("CartPole, 64", "cartpole_64", 3, 1),
    *rows_of("Pong, 84x84 in stacks of 4, 8", "pong_8", 1.3, 1),
    Row("the same without a copy of the observations", "views_pong_8_per_s"),
    Row(
        "the loop of one process: CartPole, 8",
        "loop_8_per_s",
        (at_least(1, Term(*SYNC, "loop_8_per_s")),),
    ),
    Row(
        "the loop of one process: CartPole, 64",
        "loop_64_per_s",
        (at_least(1, Term(*SYNC, "loop_64_per_s")),),
    ),
)

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
    command="python -m tools.bench vector",
    folder=Path(__file__).resolve().parent,
    systems=SYSTEMS,
    parts=PARTS,
    rows=ROWS,
    install="make bench-rl-peers",
    code=("remotely", "remotely_rl"),
    is_logarithmic=False,
)

SECTION = Section(
    BENCH,
    ROOT / "docs" / "lab" / "benchmarks.md",
    "bench-vector",
    "Steps of environments a second, median of the rounds and their range. A ratio is that of one"
    " round; the median of the rounds' ratios is judged.",
)
