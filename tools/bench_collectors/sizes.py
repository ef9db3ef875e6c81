"""The sizes of TorchRL's benchmark (benchmarks/ecosystem/gym_env_throughput.py)."""

from tools.bench_rl.window import Window

# Two of its four environments; HalfCheetah and MyoSuite's need simulators that are not here.
ENVIRONMENTS = {"cartpole": "CartPole-v1", "breakout": "ALE/Breakout-v5"}
FRAMES_PER_BATCH = 1024
COLLECTORS = 2  # for 8 environments, its smallest of four sizes

FULL, QUICK = Window(warm_up_s=2.0, for_s=5.0), Window(warm_up_s=1.0, for_s=2.0)
