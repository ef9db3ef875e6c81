"""DQN on Pong: the whole loop in one file, to copy and change.

    python examples/dqn_pong.py

Two actors play 8 steps of 16 games per round, epsilon-greedily.  Their steps go into a replay
buffer; the learner draws batches until it has used each new step eight times on average.
`remotely-rl train dqn` runs the same algorithm, with metrics, resumable checkpoints and a plot;
`train c51` and `train rainbow` are the same loop with other settings.
"""

import time

import numpy as np
import torch

import remotely
from remotely_rl import dqn
from remotely_rl.algorithms.dqn import QActor, QLearner
from remotely_rl.experience.replay import Ratio, Replay
from remotely_rl.learning.learner import annealed
from remotely_rl.runs.replaying import count_in, to_device
from remotely_rl.runs.training import make_learner

CONFIG = dqn.Config(env="ALE/Pong-v5", gamma=0.98, actors=2, envs_per_actor=16)
MINUTES = 15


def main(minutes: float = MINUTES) -> None:
    remotely.connect(cpus=CONFIG.actors)  # or remotely.connect("host:8010")
    learner = make_learner(CONFIG, kind=QLearner)  # or make_learner(CONFIG, YourModel, ...)
    actors = remotely.Group([QActor(CONFIG, learner.model, seed) for seed in range(CONFIG.actors)])
    ratio = Ratio(CONFIG.replay_ratio, CONFIG.batch_size, CONFIG.learn_from)
    width, replay = CONFIG.envs_per_actor, None
    scores: list[float] = []
    started = time.monotonic()
    while time.monotonic() - started < 60 * minutes:
        actors.set_param(learner.parameters(ratio.rows))
        rollouts = actors.sample()
        count_in(learner, rollouts)
        replay = replay or Replay(
            CONFIG.replay_rows,
            width * CONFIG.actors,
            rollouts[0].trajectory,
            CONFIG.n_step,
            CONFIG.gamma,
            CONFIG.clips_rewards_at,
            CONFIG.prioritized_alpha,
        )
        for number, rollout in enumerate(rollouts):
            replay.append(rollout.trajectory, column=number * width)
            ratio.appended(rollout.steps)
            scores += [game.score for game in rollout.episodes]
        while ratio.updates_owed:
            progress = CONFIG.progress(ratio.rows)
            draw = replay.draw(CONFIG.batch_size, annealed(CONFIG.prioritized_beta, 1, progress))
            update = dqn.update(learner, to_device(learner, draw), ratio.rows, progress)
            replay.update(draw.rows, update.priority)
            ratio.updated()
        mean = np.mean(scores[-100:]) if scores else float("nan")
        speed = ratio.rows / (time.monotonic() - started)
        print(f"{ratio.rows:9,} steps  {speed:5,.0f}/s  mean return {mean:6.2f}", flush=True)
    torch.save(learner.model.state_dict(), "pong.pt")
    print("The model is in pong.pt.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
