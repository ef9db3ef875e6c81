"""PPO in one file, in the style of CleanRL, on fault-tolerant environments.

    python examples/vector_env_ppo.py

Only the line that makes `envs` differs from a CleanRL script.  Environments run in actors on this
machine, or on a cluster if you connect to one first: remotely.connect("host:8010").  Autoreset is
Gymnasium's next-step mode.  The update skips the rows of resets, and those of crashes, whose
transition is unknown.
"""

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from remotely_rl import VectorEnv

ENVS, STEPS = 8, 128  # of a rollout
EPOCHS, MINIBATCHES = 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01


class Agent(nn.Module):
    def __init__(self, inputs: int, actions: int):
        super().__init__()
        self.policy = self.mlp(inputs, actions)
        self.value = self.mlp(inputs, 1)

    def mlp(self, inputs: int, outputs: int) -> nn.Module:
        layers = nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()
        return nn.Sequential(*layers, nn.Linear(64, outputs))


def main(total_steps: int = 150_000) -> float:
    envs = VectorEnv("CartPole-v1", num_envs=ENVS)  # in place of gymnasium.make_vec
    mean = train(envs, total_steps)
    envs.close()
    return mean


def train(envs: gymnasium.vector.VectorEnv[Any, Any, Any], total_steps: int) -> float:
    """Train an agent; return its mean return over the last 30 episodes."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))  # type: ignore[index]
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)

    rows = (STEPS, ENVS)
    obs = torch.zeros((*rows, *envs.single_observation_space.shape))  # type: ignore[misc]
    actions, log_probs = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows)
    rewards, values = torch.zeros(rows), torch.zeros((STEPS + 1, ENVS))
    terminated, valid = torch.zeros(rows), torch.zeros(rows)
    returns: list[float] = []
    score = np.zeros(ENVS)

    now = torch.from_numpy(envs.reset(seed=1)[0])
    ended = np.zeros(ENVS, bool)  # at the previous row, so this row is a reset
    started, steps, mean = time.monotonic(), 0, 0.0
    while steps < total_steps:
        for t in range(STEPS):
            obs[t] = now
            with torch.no_grad():
                policy: Any = torch.distributions.Categorical(logits=agent.policy(now))
                actions[t] = policy.sample()
                log_probs[t], values[t] = policy.log_prob(actions[t]), agent.value(now)[:, 0]
            row, reward, over, cut, info = envs.step(actions[t].numpy())
            crashed = info.get("_crash_report", np.zeros(ENVS, bool))
            now, rewards[t] = torch.from_numpy(row), torch.from_numpy(reward)
            terminated[t], valid[t] = torch.from_numpy(over), torch.from_numpy(~(ended | crashed))
            score = np.where(ended, 0, score + reward)
            ended = over | cut
            returns += score[ended & ~crashed].tolist()
        with torch.no_grad():
            values[STEPS] = agent.value(now)[:, 0]

        # GAE.  An invalid row carries no advantage, so the row before it bootstraps from its value.
        advantages, carried = torch.zeros(rows), torch.zeros(ENVS)
        for t in reversed(range(STEPS)):
            going = GAMMA * (1 - terminated[t])
            delta = rewards[t] + going * values[t + 1] - values[t]
            carried = valid[t] * (delta + going * LAMBDA * carried)
            advantages[t] = carried

        kept = valid.bool()
        batch = [part[kept] for part in (obs, actions, log_probs, advantages, values[:-1])]
        for _ in range(EPOCHS):
            for index in torch.randperm(len(batch[0])).chunk(MINIBATCHES):
                o, a, old, advantage, value = (part[index] for part in batch)
                policy = torch.distributions.Categorical(logits=agent.policy(o))
                ratio = (policy.log_prob(a) - old).exp()
                scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                gain = torch.minimum(ratio * scaled, clipped * scaled).mean()
                error = (agent.value(o)[:, 0] - (value + advantage)).square().mean()
                loss = -gain + 0.25 * error - ENTROPY * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

        steps += STEPS * ENVS
        mean = float(np.mean(returns[-30:])) if returns else 0.0
        speed = steps / (time.monotonic() - started)
        print(f"{steps:8,} steps  {speed:6,.0f}/s  mean return {mean:6.1f}", flush=True)
    return mean


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
