"""Sample Factory's asynchronous APPO, as in its Atari example except for SETTINGS."""

from typing import Any

import ale_py  # noqa: F401 - registers the games in each worker, which imports this file
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.train import make_runner
from sf_examples.atari.train_atari import parse_atari_args, register_atari_components

from tools.bench.stopwatch import Meter, report
from tools.bench_rl.window import asked, cores

GAMES = 8  # of a worker
MINIBATCH, MINIBATCHES = 256, 4

SETTINGS: dict[str, Any] = {
    "env": "atari_pong",
    "device": "cpu",
    "train_dir": "runs",
    "experiment": "bench",
    "async_rl": True,
    "num_workers": cores(),
    "num_envs_per_worker": GAMES,
    "worker_num_splits": 2,
    "rollout": 32,
    "batch_size": MINIBATCH,
    "num_batches_per_epoch": MINIBATCHES,
    "num_epochs": 1,
}


class Counting(AlgoObserver):  # type: ignore[misc]
    """An observer that counts the steps of each iteration and ends the run in time."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_training_step(self, runner: Any, _: int) -> None:
        if not self.meter.runs_on(MINIBATCH * MINIBATCHES):
            runner.cfg.train_for_env_steps = 0  # the runner reads it after each iteration


def main() -> None:
    turn = asked()
    register_atari_components()
    config = parse_atari_args([f"--{name}={value}" for name, value in SETTINGS.items()])
    config, runner = make_runner(config)
    meter = turn.window.meter()
    runner.register_observer(Counting(meter))
    if (status := runner.init() or runner.run()) != ExperimentStatus.SUCCESS:
        raise SystemExit(f"Sample Factory ended with {status}")
    report(**{turn.figure: meter.per_s})


if __name__ == "__main__":
    main()
