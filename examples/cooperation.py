"""Three agents who learn to share out three landmarks: simple_spread of MPE2, by one policy.

    pip install 'remotely-actors[multi]'
    python examples/cooperation.py [MINUTES]

Each agent is rewarded for how near the landmarks are to whoever is nearest, and loses for each
collision.  An episode has 25 steps; its return is the mean of the agents.

Seed 1 came from -27.6, which is random play, to -18.1 in 430,000 steps of agents.
"""

import contextlib
import sys

import numpy as np
from mpe2 import simple_spread_v3

from remotely_rl import MultiAgent, ppo

env = MultiAgent(simple_spread_v3.parallel_env)


def random_return(games: int = 100) -> float:
    """The mean return of agents that act at random."""
    game = simple_spread_v3.parallel_env()
    returns = np.zeros(games)
    for number in range(games):
        game.reset(seed=number)
        for agent in game.agents:
            game.action_space(agent).seed(number)
        while game.agents:
            actions = {agent: game.action_space(agent).sample() for agent in game.agents}
            _, rewards, *_ = game.step(actions)
            returns[number] += np.mean(list(rewards.values()))
    return float(returns.mean())


def main(minutes: float = 5.0) -> None:
    config = ppo.Config(env=env, minutes=minutes, gamma=0.95)
    result = ppo.train(config)
    print(f"mean return at random {random_return():.1f}")
    print(f"mean return {result.return_mean:.1f} after {result.env_steps:,} steps of agents")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
