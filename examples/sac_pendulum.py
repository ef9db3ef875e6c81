"""SAC on Pendulum: the loop in full.  Copy it and change what you like.

    python examples/sac_pendulum.py

An actor plays in a process of its own, 32 steps a round, at random at first.  The replay keeps
all that it saw, and the learner takes a step on a batch of it for each step that was played.
`remotely-rl train sac` is the same with metrics, checkpoints that resume, and a plot.
"""

import contextlib
import time

import numpy as np
import torch

import remotely
from remotely_rl import sac
from remotely_rl.acting.continuous import ContinuousActor
from remotely_rl.algorithms.sac import SoftLearner
from remotely_rl.experience.replay import Ratio, Replay
from remotely_rl.runs.replaying import count_in, to_device
from remotely_rl.runs.training import make_learner

CONFIG = sac.Config(
    env="Pendulum-v1", hidden="64,64", batch_size=128, replay_ratio=128, learning_rate=1e-3
)
MINUTES = 2


def main(minutes: float = MINUTES) -> None:
    torch.set_num_threads(1)  # a second one costs a small network more than it gains
    remotely.connect(cpus=1)  # or remotely.connect("host:8010")
    learner = make_learner(CONFIG, kind=SoftLearner)  # or make_learner(CONFIG, YourPolicy, ...)
    actor = ContinuousActor(CONFIG, learner.model, CONFIG.seed)
    ratio = Ratio(CONFIG.replay_ratio, CONFIG.batch_size, CONFIG.learn_from)
    replay: Replay | None = None
    scores: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < 60 * minutes:
        actor.set_param(learner.parameters(ratio.rows))
        rollout = actor.sample()
        replay = replay or Replay(CONFIG.replay_rows, 1, rollout.trajectory, CONFIG.n_step)
        replay.append(rollout.trajectory)
        ratio.appended(rollout.steps)
        count_in(learner, [rollout])
        while ratio.updates_owed:
            draw = replay.draw(CONFIG.batch_size)
            sac.update(learner, to_device(learner, draw), CONFIG.progress(ratio.rows))
            ratio.updated()
        scores += [game.score for game in rollout.episodes]
        if rollout.episodes:
            speed = ratio.rows / (time.monotonic() - began)
            mean = np.mean(scores[-10:])
            print(f"{ratio.rows:9,} steps  {speed:5,.0f}/s  mean return {mean:8.1f}", flush=True)
    torch.save(learner.model.state_dict(), "pendulum.pt")
    print("The model is in pendulum.pt.")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()
