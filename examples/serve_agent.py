"""An inference server: a trained agent in an actor, which serves many games in batches.

    python examples/serve_agent.py [RUN]

Without a run, it first trains PPO on CartPole for a few seconds.  Each game is an actor too and
requests its actions from the server, which answers all waiting calls with one forward pass.
"""

import sys
import tempfile
from typing import Any

import gymnasium

import remotely
import remotely_rl
from remotely_rl import ppo


@remotely.remote_class
class Server:
    def __init__(self, run: str):
        self.agent = remotely_rl.load(run)
        self.passes = self.actions = 0

    @remotely.batched(max_size=64, wait_ms=2, stack=True)
    def act(self, obs: Any) -> Any:
        self.passes += 1
        self.actions += len(obs)
        return self.agent.act(obs)

    def counts(self) -> tuple[int, int]:
        return self.passes, self.actions


@remotely.remote_class
class Game:
    def __init__(self, server: Any):
        self.server = server
        self.env = gymnasium.make("CartPole-v1", max_episode_steps=100)

    def play(self, seed: int) -> float:
        obs, _ = self.env.reset(seed=seed)
        score, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = self.env.step(int(self.server.act(obs)))
            score += float(reward)
            over = terminated or truncated
        return score


def main() -> None:
    remotely.connect(cpus=8)  # or remotely.connect("host:8010")
    with tempfile.TemporaryDirectory() as folder:
        run = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/run"
        if len(sys.argv) == 1:
            config = ppo.Config(env="CartPole-v1", actors=1, total_steps=20_000, learner_threads=1)
            ppo.train(config, run=run)
        server = Server(run)
        games = [Game(server) for _ in range(4)]
        futures = [game.play.submit(seed) for seed, game in enumerate(games)]
        print("scores:", *(f"{future.result():.0f}" for future in futures))
        passes, actions = server.counts()
        print(f"{actions} actions in {passes} forward passes")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
