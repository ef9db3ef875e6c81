"""Asynchronous n-step Q-learning on Pong: the whole loop in one file, to copy and change.

    python examples/n_step_q_pong.py

Two workers, each in its own process, play 16 games epsilon-greedily, each game with its own
epsilon, and push one gradient every 8 steps.  `remotely-rl train n_step_q` runs the same algorithm,
with metrics, checkpoints and a plot; `--gae-lambda 0` makes it one-step Q-learning, and
`--gae-lambda 0 --on-policy` SARSA.
"""

import functools
import time

import numpy as np
import torch

import remotely
from remotely_rl import n_step_q, networks
from remotely_rl.learning import sharing
from remotely_rl.learning.parameter_server import ParameterServer, Worker
from remotely_rl.runs.training import make_learner

CONFIG = n_step_q.Config(
    env="ALE/Pong-v5",
    actors=2,
    envs_per_actor=16,
    optimizer="adam",
    learning_rate=5e-4,
    explore_steps=400_000,
    max_grad_norm=5.0,
    gamma=0.98,
)
MINUTES = 40


def main(minutes: float = MINUTES) -> None:
    remotely.connect(cpus=CONFIG.actors)  # or remotely.connect("host:8010")
    shared = sharing.SharedLearner(CONFIG, make_learner(CONFIG).model)
    make_work = functools.partial(n_step_q.make_work, CONFIG, networks.copy_to_cpu(shared.model))
    server = ParameterServer(shared.rule, lambda number: Worker(make_work, number))
    scores: list[float] = []
    steps, started, printed = 0, time.monotonic(), 0.0
    while time.monotonic() - started < 60 * minutes:
        broadcast = shared.broadcast(steps, CONFIG.progress(steps))  # the learning rate falls
        pushed = server.take(timeout_s=1.0, broadcast=broadcast)
        if pushed is None:
            continue
        shared.record(pushed)  # adds the observations to the input normalizer's statistics
        steps += pushed.report.steps
        scores += [game.score for game in pushed.report.episodes]
        if time.monotonic() - printed > 5:
            printed = time.monotonic()
            mean = np.mean(scores[-100:]) if scores else float("nan")
            speed = steps / (printed - started)
            print(f"{steps:9,} steps  {speed:5,.0f}/s  mean return {mean:6.2f}", flush=True)
    server.close()
    torch.save(shared.model.state_dict(), "pong.pt")
    print("The model is in pong.pt.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
