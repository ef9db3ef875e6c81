"""The sizes of the benchmark of collectors."""

from tools.bench_rl.window import Window

ENVIRONMENTS = {"cartpole": "CartPole-v1", "pong": "ALE/Pong-v5"}
FRAMES_PER_BATCH = 1024
WORKERS = 2  # processes, which share the environments

FULL, QUICK = Window(warm_up_s=2.0, for_s=5.0), Window(warm_up_s=1.0, for_s=2.0)
