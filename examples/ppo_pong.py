"""PPO on Pong: the whole loop in one file, to copy and change.

    python examples/ppo_pong.py

Two actors, each in its own process, play 64 steps of 16 games per round.  The learner makes three
epochs over these rollouts, and the next round starts with the new parameters.
`remotely-rl train ppo` runs the same algorithm, with metrics, checkpoints and a plot.
"""

import time

import numpy as np
import torch

import remotely
from remotely_rl import ppo
from remotely_rl.acting.actor import Actor
from remotely_rl.experience.trajectory import stack
from remotely_rl.runs.training import make_learner

CONFIG = ppo.Config(env="ALE/Pong-v5", preset="auto", actors=2, envs_per_actor=16)
MINUTES = 8


def main(minutes: float = MINUTES) -> None:
    remotely.connect(cpus=CONFIG.actors)  # or remotely.connect("host:8010")
    learner = make_learner(CONFIG)  # or make_learner(CONFIG, YourModel)
    actors = remotely.Group([Actor(CONFIG, learner.model, seed) for seed in range(CONFIG.actors)])
    scores: list[float] = []
    steps, started = 0, time.monotonic()
    while time.monotonic() - started < 60 * minutes:
        actors.set_param(learner.parameters())
        rollouts = actors.sample()
        steps += sum(rollout.steps for rollout in rollouts)
        scores += [game.score for rollout in rollouts for game in rollout.episodes]
        ppo.update(
            learner, stack([rollout.trajectory for rollout in rollouts]), CONFIG.progress(steps)
        )
        mean = np.mean(scores[-100:]) if scores else float("nan")
        speed = steps / (time.monotonic() - started)
        print(f"{steps:9,} steps  {speed:5,.0f}/s  mean return {mean:6.2f}", flush=True)
    torch.save(learner.model.state_dict(), "pong.pt")
    print("The model is in pong.pt.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
