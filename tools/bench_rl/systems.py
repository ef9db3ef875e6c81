"""The benchmark of training, compared with the machine's limit and with peers.

    python -m tools.bench rl                    all installed peers, three rounds
    python -m tools.bench rl --quick            one round of short turns, without the slow peers
    python -m tools.bench rl --only a2c_84 limit_84
    python -m tools.bench rl --write --png docs/img/throughput.png --json run.json

All train on Pong with a frame skip of 4, without sticky actions or a GPU; a step is of the agent.
`make bench-rl-peers` installs the peers.  Run it on an idle machine: ratios of figures of one run
are comparable, single figures are of that machine.

`a2c_84_per_s` is A2C at 84x84.
"""

from pathlib import Path

from tools.bench.benchmark import OWN, ROOT, Benchmark, System, python_of
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least

SB3 = Term("sb3", "Stable-Baselines3")
RLLIB = Term("rllib", "RLlib")
SAMPLE_FACTORY = Term("sample_factory", "Sample Factory")

NETWORKS = {42: "42x42, SmallCNN", 84: "84x84, Nature CNN"}


def limit(size: int) -> Term:
    """Return the limit of the machine (ours/limit.py)."""
    return Term("limit", "the composed limit", f"limit_{size}_per_s")


def trained(size: int) -> tuple[Row, ...]:
    """Return the rows of the algorithms that are measured at both sizes."""
    network, of_limit = NETWORKS[size], at_least(0.85, limit(size))
    of_sb3 = (at_least(2, SB3),) if size == 84 else ()
    of_sample_factory = (at_least(2, SAMPLE_FACTORY),) if size == 84 else ()
    return (
        Row(f"A2C, {network}", f"a2c_{size}_per_s", (of_limit, *of_sb3)),
        Row(f"IMPALA, {network}", f"impala_{size}_per_s", (of_limit, at_least(3, RLLIB))),
        Row(f"IMPALA on Ray's actors, {network}", f"impala_{size}_per_s", of="on_ray"),
        Row(f"APPO, {network}", f"appo_{size}_per_s", of_sample_factory),
        Row(f"PPO, one pass, {network}", f"ppo_{size}_per_s"),
        Row(
            f"DQN, each step learnt from 8 times, {network}",
            f"dqn_{size}_per_s",
            (at_least(0.85, Term("limit", "its composed limit", f"dqn_limit_{size}_per_s")),),
        ),
        Row(
            f"PPO, one pass, {network}, beside a process that takes a core",
            f"busy_ppo_{size}_per_s",
            (at_least(1 / 2.2, Term("ours", "PPO alone", f"ppo_{size}_per_s")),),
        ),
    )


def composed(size: int) -> tuple[Row, ...]:
    """Return the rows of the parts of the limit."""
    square = f"{size}x{size}"
    return (
        Row(f"environments alone, {square}", f"environment_{size}_per_s", of="limit"),
        Row(f"inference alone, {square}", f"inference_{size}_per_s", of="limit"),
        Row(f"one training pass alone, {square}", f"training_{size}_per_s", of="limit"),
        Row(f"composed limit, {square}", f"limit_{size}_per_s", of="limit"),
        Row(f"eight passes of DQN alone, {square}", f"dqn_training_{size}_per_s", of="limit"),
        Row(f"DQN's composed limit, {square}", f"dqn_limit_{size}_per_s", of="limit"),
    )


ROWS = (
    *trained(84),
    Row(
        f"DQN in batches of 32, each step learnt from 8 times, {NETWORKS[84]}",
        "dqn_32_84_per_s",
        (at_least(2, SB3),),
    ),
    Row(
        f"the same with a double and dueling network, {NETWORKS[84]}",
        "dqn_32_double_84_per_s",
    ),
    *trained(42),
    Row(
        f"GA3C, {NETWORKS[42]}",
        "ga3c_42_per_s",
        (at_least(0.6, Term("ours", "A2C", "a2c_42_per_s")),),
    ),
    *composed(84),
    *composed(42),
)

PEERS = python_of(".peers-rl")
PEERS_SF = python_of(".peers-sf")

SYSTEMS = {
    "ours": System(
        "remotely_rl",
        OWN,
        "remotely-actors",
        note="the library's own loop, with the defaults of each algorithm but for these: an actor"
        " a core (GA3C: two agents a core); A2C rollout_steps=16, PPO epochs=1 minibatches=4,"
        " IMPALA and GA3C epochs=1 minibatches=1, APPO epochs=1 and v_trace=False, as Sample"
        " Factory's; DQN learn_from=2048 replay_rows=50000. All its networks begin with a"
        " normalizer, by running statistics of each pixel; they compute in bfloat16 if the CPU has"
        " instructions for it (precision=auto), the"
        " others in float32, as they come",
    ),
    "on_ray": System(
        "remotely_rl on Ray",
        PEERS,
        "ray",
        is_quick=False,
        note="the first of these with REMOTELY_ADDRESS=ray:local: the same code on Ray's actors",
    ),
    "limit": System(
        "the composed limit",
        OWN,
        "torch",
        is_limit=True,
        note="1 / (1/environments + 1/inference + 1/training), each alone on all cores:"
        " environments and inference by a process a core, 16 games each; training one pass over"
        " 2,048 rows by A2C's loss, in minibatches of 512; for DQN eight passes by its loss, in"
        " batches of 128; in the numbers that ours compute in",
    ),
    "sb3": System(
        "Stable-Baselines3",
        PEERS,
        "stable-baselines3",
        note="8 games in SubprocVecEnv. A2C as it comes (5 steps); PPO with one epoch, 128 steps,"
        " minibatches of 256. Its Nature CNN, the same but for the normalizer; games stepped and"
        " scaled in Python; a lost life ends an episode (Pong has none)",
    ),
    "rllib": System(
        "RLlib",
        PEERS,
        "ray",
        is_quick=False,
        note="IMPALA, a runner a core with 5 games each, fragments of 50 steps, batches of 500,"
        " learner in the driver. A module of the same layers but for the normalizer; its Atari"
        " wrappers scale every frame, also those that are skipped. Steps are those sampled",
    ),
    "sample_factory": System(
        "Sample Factory",
        PEERS_SF,
        "sample-factory",
        is_quick=False,
        note="APPO, asynchronous, a worker a core with 8 games each, double-buffered; rollouts of"
        " 32, one epoch over 4 minibatches of 256, the rest as its Atari example. `convnet_atari`"
        " with 512 features, its own normalizer of inputs and returns. Steps are those learnt",
    ),
}

TRAIN, TRAIN_ON_RAY, LIMIT = "ours/train.py", "ours/train_on_ray.py", "ours/limit.py"
OF_SB3, OF_RLLIB, OF_SAMPLE_FACTORY = (
    f"peers/of_{name}.py" for name in ("sb3", "rllib", "sample_factory")
)

# The limit is between the two that are compared with it.
PARTS: dict[str, dict[str, str]] = {
    "a2c_84": {"ours": TRAIN, "sb3": OF_SB3},
    "limit_84": {"limit": LIMIT},
    "impala_84": {"ours": TRAIN, "on_ray": TRAIN_ON_RAY, "rllib": OF_RLLIB},
    "appo_84": {"ours": TRAIN, "sample_factory": OF_SAMPLE_FACTORY},
    "ppo_84": {"ours": TRAIN, "sb3": OF_SB3},
    "busy_ppo_84": {"ours": TRAIN},
    "dqn_84": {"ours": TRAIN},
    "dqn_limit_84": {"limit": LIMIT},
    "dqn_32_84": {"ours": TRAIN, "sb3": OF_SB3},
    "dqn_32_double_84": {"ours": TRAIN},
    "ga3c_42": {"ours": TRAIN},
    "a2c_42": {"ours": TRAIN},
    "limit_42": {"limit": LIMIT},
    "impala_42": {"ours": TRAIN, "on_ray": TRAIN_ON_RAY, "rllib": OF_RLLIB},
    "appo_42": {"ours": TRAIN},
    "ppo_42": {"ours": TRAIN},
    "busy_ppo_42": {"ours": TRAIN},
    "dqn_42": {"ours": TRAIN},
    "dqn_limit_42": {"limit": LIMIT},
}

BENCH = Benchmark(
    command="python -m tools.bench rl",
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
    ROOT / "docs" / "lab" / "results.md",
    "bench-rl",
    "Steps of the agent a second, median of the rounds and their range. A ratio is that of one"
    ' round; the median of the rounds\' ratios is judged. "Others" are medians.',
)
