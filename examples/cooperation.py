"""Cooperation of three agents with one policy: simple_spread of MPE2.

    pip install '.[multi]'  # in a checkout
    python examples/cooperation.py [MINUTES]

The agents learn to cover three landmarks.  The reward falls with the distance from each landmark to
its nearest agent, and with each collision.  An episode has 25 steps; its return is the mean over
the agents.

Seed 1 improved from -27.6, the return of random play, to -18.1 in 430,000 agent steps.
"""

import sys

import numpy as np

try:
    from mpe2 import simple_spread_v3
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: pip install '.[multi]'  # in a checkout") from None

from remotely_rl import MultiAgent, ppo

env = MultiAgent(simple_spread_v3.parallel_env)


def random_return(games: int = 100) -> float:
    """Return the mean return of agents that act at random."""
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
    print(f"mean return of random play {random_return():.1f}")
    print(f"mean return {result.return_mean:.1f} after {result.env_steps:,} agent steps")


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
