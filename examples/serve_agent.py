"""A trained agent behind an actor: many games, and one pass of the network for all that wait.

    python examples/serve_agent.py [RUN]

Without a run it trains one first, PPO on CartPole for a few seconds.  Each game is an actor too:
it asks the server for its actions, and calls that arrive together are answered together.
"""

import contextlib
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


def trained(folder: str) -> str:
    """Train for a little while; return the run."""
    run = f"{folder}/run"
    ppo.train(
        ppo.Config(env="CartPole-v1", actors=1, total_steps=20_000, learner_threads=1), run=run
    )
    return run


def main() -> None:
    remotely.connect(cpus=8)  # or remotely.connect("host:8010")
    with tempfile.TemporaryDirectory() as folder:
        run = sys.argv[1] if len(sys.argv) > 1 else trained(folder)
        server = Server(run)
        games = [Game(server) for _ in range(4)]
        scores = [
            future.result() for future in [game.play.submit(i) for i, game in enumerate(games)]
        ]
        passes, actions = server.counts()
        print("scores:", *(f"{score:.0f}" for score in scores))
        print(f"{actions} actions in {passes} passes of the network")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()
