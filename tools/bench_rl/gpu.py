"""The benchmark of training on one GPU and many cores, in minutes.

    python -m tools.bench_rl.gpu --minutes 9 --json gpu.json      # on a machine with a GPU
    python -m tools.bench_rl.gpu --only pong_1 alternating_84
    python -m tools.bench_rl.gpu --minutes 25 --only breakout_400 # the only long part
    python -m tools.bench_rl.gpu --read gpu.json --write          # into docs/lab/benchmarks.md
    python -m tools.bench_rl.gpu --device cpu --quick             # a test that all of it runs

The most important parts are first.  Each runs in a new process, for at most two minutes, and the
file is written after each, so an interrupted run loses one part.  Parts that the minutes do not
allow are "not run".  It needs no installation: an unpacked tree on Python 3.11 to 3.13 with torch
2.11 to 2.13, gymnasium, ale-py and the dependencies of `remotely` is enough.
"""

import sys
from pathlib import Path

from tools.bench import program
from tools.bench.benchmark import OWN, ROOT, Benchmark, Limits, System
from tools.bench.page import Section
from tools.bench.rows import Row, Term, at_least, at_most

OURS, COMMANDS = "ours/on_gpu.py", "ours/commands.py"
SEEDS, ACTORS = (1, 2, 3), (15, 2, 8, 4)  # 15 first: the others are compared with it

PLAIN = Term("plain", "the plain loop", "plain_84_ppo_per_s")
WITH_15 = Term("ours", "with 15 actors", "pong_actors_15_steps")

ROWS = (
    Row(
        "ale-py's vector environment, 256 games on all threads",
        "plain_84_emulators_per_s",
        of="plain",
    ),
    Row("the same with a batched inference a step", "plain_84_inference_per_s", of="plain"),
    Row("a plain PPO loop around that", PLAIN.figure, of="plain"),
    Row(
        "PPO, Nature CNN, `sampling=alternating`",
        "alternating_84_per_s",
        (at_least(24_000), at_least(1.4, PLAIN)),
    ),
    Row("the same, `sampling=central`", "central_84_per_s", beside=(PLAIN,)),
    Row("the same, `sampling=local`, `overlap`", "local_84_per_s", beside=(PLAIN,)),
    Row("Stable-Baselines3's PPO, three epochs of 2,048", "sb3_ppo_84_per_s", of="sb3"),
    Row("Pong to 18, the whole command, seeds 1 to 3", "pong_s", (at_most(40), at_most(30))),
    Row("its steps", "pong_steps"),
    Row("to the first step, 15 actors", "first_step_15_s"),
    Row("IMPALA, deep residual network", "impala_84_per_s", (at_least(15_000),)),
    Row("DQN, each step learnt from 8 times", "dqn_84_per_s", (at_least(4 * 1_670),)),
    Row("epsilon-Rainbow, each step learnt from 8 times", "rainbow_84_per_s", (at_least(4 * 980),)),
    Row("Pong to 18 with 15 actors, steps", WITH_15.figure),
    *(
        Row(
            f"with {count}",
            f"pong_actors_{count}_steps",
            (at_most(1.5, WITH_15), at_least(1 / 1.5, WITH_15)),
        )
        for count in sorted(ACTORS)[:-1]
    ),
    Row("Breakout to 400", "breakout_400_s", (at_most(600),)),
)

PARTS: dict[str, dict[str, str]] = {
    "plain_84": {"plain": "peers/of_plain.py"},
    "alternating_84": {"ours": OURS},
    **{f"pong_{seed}": {"ours": COMMANDS} for seed in SEEDS},
    "local_84": {"ours": OURS},
    "central_84": {"ours": OURS},
    "dqn_84": {"ours": OURS},
    "impala_84": {"ours": OURS},
    "rainbow_84": {"ours": OURS},
    "first_step_15": {"ours": COMMANDS},
    **{f"pong_actors_{count}": {"ours": COMMANDS} for count in ACTORS},
    "sb3_ppo_84": {"sb3": "peers/of_sb3.py"},
    "breakout_400": {"ours": COMMANDS},
}
PACE, LEARNT = Limits(most_s=120, least_s=35), Limits(most_s=120, least_s=45)

BENCH = Benchmark(
    command="python -m tools.bench_rl.gpu",
    folder=Path(__file__).resolve().parent,
    systems={
        "ours": System(
            "remotely_rl",
            OWN,
            "remotely-actors",
            note="16 games for each core, in 4 actors (alternating: in 8; local: an actor a core);"
            " PPO as the plain loop, three epochs of rounds of 64 steps; IMPALA one pass over 4"
            " trajectories; the replays hold 200,000 steps, batches 512."
            " Pong by `--gamma 0.98 --target 18` with an actor fewer than cores,"
            " `--envs-per-actor 6 --rollout-steps 64 --minibatches 8`; where the number of actors"
            " is named, by the defaults",
        ),
        "plain": System(
            "a plain PyTorch loop",
            OWN,
            "torch",
            note="256 games, rollouts of 64 steps, three epochs in minibatches of 2,048; nothing is"
            " overlapped: `tools/bench_rl/peers/of_plain.py`",
        ),
        "sb3": System(
            "Stable-Baselines3",
            OWN,
            "stable-baselines3",
            note="a game a core in SubprocVecEnv, rollouts of 128 steps, three epochs of 2,048",
        ),
    },
    parts=PARTS,
    rows=ROWS,
    install="pip install stable-baselines3",
    code=("remotely", "remotely_rl"),
    rounds=1,
    limits={
        **{part: LEARNT if part.startswith("pong") else PACE for part in PARTS},
        "breakout_400": Limits(most_s=780, least_s=600),
    },
    devices=("cuda", "cpu"),
)

SECTION = Section(
    BENCH,
    ROOT / "docs" / "lab" / "benchmarks.md",
    "gpu",
    "Steps of the agent a second at 84x84, median and range of five slices of"
    " 15 seconds; of Pong the median and range of three seeds.",
)

if __name__ == "__main__":
    sys.exit(program.main(SECTION, __doc__))
