"""APPO on Pong: the whole loop in one file, to copy and change.

    python examples/appo_pong.py

Two actors, each in its own process, play 16 games and never wait for each other.  The learner takes
trajectories as they arrive: targets and advantages are V-trace's, the loss is PPO's, and the old
policy is the one that acted.
`remotely-rl train appo` runs the same algorithm, with metrics, checkpoints and a plot.
"""

import time
from concurrent.futures import FIRST_COMPLETED, wait

import numpy as np
import torch

import remotely
from remotely_rl import appo
from remotely_rl.acting.actor import Actor
from remotely_rl.experience.trajectory import Trajectory, stack
from remotely_rl.runs.training import make_learner

CONFIG = appo.Config(env="ALE/Pong-v5", gamma=0.98, actors=2, envs_per_actor=16)
MINUTES = 12


def main(minutes: float = MINUTES) -> None:
    remotely.connect(cpus=CONFIG.actors)  # or remotely.connect("host:8010")
    learner = make_learner(CONFIG)  # or make_learner(CONFIG, YourModel)
    actors = [Actor(CONFIG, learner.model, seed) for seed in range(CONFIG.actors)]
    calls = {actor.sample.submit(): actor for actor in actors}
    batch: list[Trajectory] = []
    scores: list[float] = []
    steps, started = 0, time.monotonic()
    while time.monotonic() - started < 60 * minutes:
        for call in wait(calls, return_when=FIRST_COMPLETED).done:
            rollout, actor = call.result(), calls.pop(call)
            actor.set_param.submit(learner.parameters())
            calls[actor.sample.submit()] = actor  # it keeps playing while the learner learns
            batch.append(rollout.trajectory)
            scores += [game.score for game in rollout.episodes]
            steps += rollout.steps
        if len(batch) >= CONFIG.batch_trajectories:
            appo.update(learner, stack(batch), CONFIG.progress(steps))
            batch.clear()
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
