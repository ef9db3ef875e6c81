"""What one GPU and 16 cores are good for: to be run on such a machine, by hand.

    python -m tools.bench_rl.gpu                              all of it, some hours at most
    python -m tools.bench_rl.gpu --only ppo_nature impala_resnet --json gpu.json

Two paces (steps a second of the agent) and two games that are to be learnt, each by the library's
own `train` with the learner on the GPU and its network compiled.  What it finds is one JSON object,
the last thing on stdout, with the device's name, the command and the commit; a training says on
stderr how it goes.  The actors have no GPU: a network as deep as ResNet is slow in them.
"""

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from remotely_rl import impala, networks, ppo
from tools.bench import page
from tools.bench_rl import pace
from tools.bench_rl.window import Window, cores

WINDOW = Window(warm_up_s=30.0, for_s=60.0)  # it compiles in the first updates
TOO_LONG_MIN = 10.0

Found = dict[str, object]

ON_GPU: dict[str, Any] = {"device": "cuda", "compile": True, "image_size": 84}

# 8 games in each actor: 8,192 rows a round with 16 cores, 1,024 a minibatch.
PPO: dict[str, Any] = {
    **ON_GPU,
    "actors": cores(),
    "envs_per_actor": 8,
    "minibatches": 8,
    "overlap": True,
}
PONG = ppo.Config(
    env="ALE/Pong-v5", target=20.0, minutes=30.0, anneal_steps=ppo.Config.horizon, **PPO
)  # fmt: skip
BREAKOUT = ppo.Config(
    env="ALE/Breakout-v5",
    target=400.0,
    minutes=120.0,
    gamma=0.99,
    life_loss_is_terminal=True,
    entropy_coef_end=0.005,
    anneal_steps=20_000_000,
    **PPO,
)


def ppo_nature() -> Found:
    """PPO's pace with the Nature CNN, three epochs as by default."""
    config = ppo.Config(log_interval_s=pace.ROWS_EVERY_S, minutes=TOO_LONG_MIN, **PPO)
    return {"steps_per_s": pace.measure(ppo, config, WINDOW)}


def impala_resnet() -> Found:
    """IMPALA's pace with its deep network, one pass."""
    config = impala.Config(
        actors=max(1, cores() - 1),
        epochs=1,
        minibatches=1,
        batch_trajectories=4,
        log_interval_s=pace.ROWS_EVERY_S,
        minutes=TOO_LONG_MIN,
        **ON_GPU,
    )
    return {"steps_per_s": pace.measure(impala, config, WINDOW, networks.ResNet)}


def pong() -> Found:
    """Pong until the mean return of 30 games is 20."""
    return learnt(PONG)


def breakout() -> Found:
    """Breakout until the mean return of 30 games is 400."""
    return learnt(BREAKOUT)


def learnt(config: ppo.Config) -> Found:
    result = ppo.train(config)
    assert config.target is not None
    return {
        "to_reach": config.target,
        "reached": result.best_return >= config.target,
        "best_return": result.best_return if math.isfinite(result.best_return) else None,
        "minutes": result.seconds / 60,
        "env_steps": result.env_steps,
        "steps_per_s": result.env_steps / result.seconds,
        "run": str(result.run),
    }


TASKS: dict[str, Callable[[], Found]] = {
    "ppo_nature": ppo_nature,
    "impala_resnet": impala_resnet,
    "pong": pong,
    "breakout": breakout,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench_rl.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", default=list(TASKS), choices=TASKS,
                        help=f"of {', '.join(TASKS)}")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write it there too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} sees no GPU here. Run this on a machine with one.")

    told: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "cores": cores(),
        "torch": torch.__version__,
        "commit": page.commit(("remotely", "remotely_rl")),
        "command": " ".join(["python -m tools.bench_rl.gpu", *sys.argv[1:]]),
    }
    figures = told["figures"] = {}
    for name in options.only:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                figures[name] = TASKS[name]()
            except Exception as error:  # what the others found is worth hours
                figures[name] = {"failed": f"{type(error).__name__}: {error}"}
        if options.json:  # after each, for the next may take an hour
            options.json.write_text(json.dumps(told, indent=1))
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
