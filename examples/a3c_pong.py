"""A3C on Pong, with a sync rule of your choice: the whole loop in one file, to copy and change.

    python examples/a3c_pong.py
    python examples/a3c_pong.py synchronous

Two workers, each in its own process, play 16 games, compute gradients from their rollouts, and push
them to the shared parameters; the rule says how they are applied, and what a worker waits for.
`remotely-rl train a3c --sync RULE` runs the same algorithm, with metrics, checkpoints and a plot;
`remotely-rl rules` lists the rules.
"""

import dataclasses
import functools
import sys
import time

import numpy as np
import torch

import remotely
from remotely_rl import a3c, networks
from remotely_rl.learning import sharing
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.runs.training import make_learner

CONFIG = a3c.Config(env="ALE/Pong-v5", gamma=0.98, actors=2, envs_per_actor=16, optimizer="adam")
MINUTES = 20


def main(minutes: float = MINUTES, rule: str = "asynchronous") -> None:
    config = dataclasses.replace(CONFIG, sync=rule)
    remotely.connect(cpus=config.actors)  # or remotely.connect("host:8010")
    shared = sharing.SharedLearner(config, make_learner(config).model)
    make_work = functools.partial(a3c.make_work, config, networks.copy_to_cpu(shared.model))
    server = ParameterServer(shared.rule, lambda number: Worker(make_work, number))
    scores: list[float] = []
    steps, started, printed = 0, time.monotonic(), 0.0
    while time.monotonic() - started < 60 * minutes:
        broadcast = shared.broadcast(steps, config.progress(steps))  # the learning rate falls
        pushed = server.take(timeout_s=1.0, broadcast=broadcast)
        if pushed is None:
            continue
        shared.record(pushed)  # adds the observations to the input normalizer's statistics
        steps += pushed.report.steps
        scores += [game.score for game in pushed.report.episodes]
        if time.monotonic() - printed > 5:
            printed = time.monotonic()
            mean = np.mean(scores[-100:]) if scores else float("nan")
            speed, stale = steps / (printed - started), shared.rule.counters.staleness_mean
            print(
                f"{steps:9,} steps  {speed:5,.0f}/s  mean return {mean:6.2f}"
                f"  staleness {stale:.1f}",
                flush=True,
            )
    server.close()
    torch.save(shared.model.state_dict(), "pong.pt")
    print("The model is in pong.pt.")


if __name__ == "__main__":
    try:
        main(rule=sys.argv[1] if len(sys.argv) > 1 else "asynchronous")
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
