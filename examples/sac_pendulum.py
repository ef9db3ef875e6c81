"""SAC on Pendulum: the whole loop in one file, to copy and change.

    python examples/sac_pendulum.py

An actor in its own process plays 32 steps per round, at random at first.  Its steps go into a
replay buffer, and the learner takes one gradient step for each step played.
`remotely-rl train sac` runs the same algorithm, with metrics, resumable checkpoints and a plot.
"""

import time

import numpy as np
import torch

import remotely
from remotely_rl import sac
from remotely_rl.acting.random_first import RandomFirst
from remotely_rl.algorithms.sac import SoftLearner
from remotely_rl.experience.replay import Ratio, Replay
from remotely_rl.runs.replaying import count_in, to_device
from remotely_rl.runs.training import make_learner

CONFIG = sac.Config(
    env="Pendulum-v1", hidden="64,64", batch_size=128, replay_ratio=128, learning_rate=1e-3
)
MINUTES = 2


def main(minutes: float = MINUTES) -> None:
    torch.set_num_threads(1)  # a second thread slows a network this small
    remotely.connect(cpus=1)  # or remotely.connect("host:8010")
    learner = make_learner(CONFIG, kind=SoftLearner)  # or make_learner(CONFIG, YourPolicy, ...)
    actor = RandomFirst(CONFIG, learner.model, CONFIG.seed)
    ratio = Ratio(CONFIG.replay_ratio, CONFIG.batch_size, CONFIG.learn_from)
    replay: Replay | None = None
    scores: list[float] = []
    started = time.monotonic()
    while time.monotonic() - started < 60 * minutes:
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
            speed = ratio.rows / (time.monotonic() - started)
            mean = np.mean(scores[-10:])
            print(f"{ratio.rows:9,} steps  {speed:5,.0f}/s  mean return {mean:8.1f}", flush=True)
    torch.save(learner.model.state_dict(), "pendulum.pt")
    print("The model is in pendulum.pt.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
