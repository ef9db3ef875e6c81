"""GA3C on Pong: the whole loop in one file, to copy and change.

    python examples/ga3c_pong.py

Four agents play 8 games each and have no model: they request actions from the inference server.  It
serves them in batches, and learns from their experience at the same time.  `remotely-rl train ga3c`
runs the same algorithm, with metrics, checkpoints and a plot.
"""

import time
from concurrent.futures import FIRST_COMPLETED, wait

import numpy as np
import torch

import remotely
from remotely_rl import ga3c
from remotely_rl.runs.training import make_learner

CONFIG = ga3c.Config(env="ALE/Pong-v5", gamma=0.98, actors=4, envs_per_actor=8)
MINUTES = 25


def main(minutes: float = MINUTES) -> None:
    remotely.connect(cpus=CONFIG.actors + 1)  # or remotely.connect("host:8010")
    learner = make_learner(CONFIG)  # or make_learner(CONFIG, YourModel)
    server = ga3c.make_server(CONFIG, learner.model, learner.actions)
    agents = [ga3c.Agent(CONFIG, server, seed) for seed in range(CONFIG.actors)]
    calls = {agent.sample.submit(): agent for agent in agents}
    scores: list[float] = []
    steps, started, printed = 0, time.monotonic(), 0.0
    while time.monotonic() - started < 60 * minutes:
        for call in wait(calls, return_when=FIRST_COMPLETED).done:
            played, agent = call.result(), calls.pop(call)
            calls[agent.sample.submit()] = agent
            scores += [game.score for game in played.episodes]
            steps += played.steps
        if time.monotonic() - printed > 5:
            printed = time.monotonic()
            report = server.report(CONFIG.progress(steps))
            lag = [updates for _, behind in report.updates for updates in behind]
            mean = np.mean(scores[-100:]) if scores else float("nan")
            speed = steps / (printed - started)
            print(
                f"{steps:9,} steps  {speed:5,.0f}/s  mean return {mean:6.2f}"
                f"  policy lag {np.mean(lag) if lag else 0:.1f}",
                flush=True,
            )
    torch.save(server.state()["model"], "pong.pt")
    print("The model is in pong.pt.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
