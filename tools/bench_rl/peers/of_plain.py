"""A plain PyTorch loop around ale-py's vector environment, and the paces of its parts.

    emulators   256 games on all threads, random actions
    inference   the same with one forward pass per step for all, without overlap
    ppo         a PPO loop around that: rollouts of 64 steps, three epochs in minibatches of 2,048

It uses no code of this library.  The network is the Nature CNN, in bfloat16 by autocast on a GPU;
observations go to the device as bytes, and rollouts stay there.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical

from tools.bench.stopwatch import report
from tools.bench_rl.window import Window, asked, cores

SLICES = 5  # of the measured time
FULL, QUICK = Window(warm_up_s=2.0, for_s=12.0), Window(warm_up_s=0.2, for_s=0.5)

GAMMA, GAE_LAMBDA, CLIP = 0.99, 0.95, 0.1
EPOCHS = 3


class Nature(nn.Module):
    def __init__(self, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(512),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=obs.is_cuda):
            seen = self.body(obs.float() / 255)
        seen = seen.float()
        return Categorical(logits=self.policy(seen)), self.value(seen).squeeze(-1)


class Loop:
    """A PPO loop, with its games and network."""

    def __init__(self, games: int, steps: int, rows: int, size: int, device: str) -> None:
        """`rows` is the size of a minibatch."""
        self.envs = AtariVectorEnv(
            "pong",
            games,
            num_threads=cores(),
            img_height=size,
            img_width=size,
            reward_clipping=False,
        )
        self.games, self.steps, self.rows, self.device = games, steps, rows, device
        self.actions = int(self.envs.action_space.nvec[0])  # type: ignore[attr-defined]
        self.random = np.random.default_rng(0)
        self.seen, _ = self.envs.reset(seed=0)
        self.model = Nature(self.actions).to(device)
        self.model(self.on_device(self.seen))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2.5e-4, fused=True)

    def on_device(self, array: Any) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def emulators(self) -> int:
        """Step all games; return their number."""
        self.envs.step(self.random.integers(0, self.actions, self.games))
        return self.games

    @torch.no_grad()
    def inference(self) -> int:
        """Step all games with the network's actions; return their number."""
        policy, _ = self.model(self.on_device(self.seen))
        self.seen, *_ = self.envs.step(policy.sample().cpu().numpy())
        return self.games

    def ppo(self) -> int:
        """Make a rollout and an update; return the number of steps."""
        obs = torch.empty(self.steps, *self.seen.shape, dtype=torch.uint8, device=self.device)
        shape = (self.steps, self.games)
        action = torch.empty(shape, dtype=torch.int64, device=self.device)
        log_prob, value, reward, ended = (torch.empty(shape, device=self.device) for _ in range(4))
        with torch.no_grad():
            for t in range(self.steps):
                obs[t] = self.on_device(self.seen)
                policy, value[t] = self.model(obs[t])
                action[t] = policy.sample()
                log_prob[t] = policy.log_prob(action[t])
                self.seen, rewards, over, cut, _ = self.envs.step(action[t].cpu().numpy())
                reward[t] = self.on_device(np.sign(rewards).astype(np.float32))
                ended[t] = self.on_device((over | cut).astype(np.float32))
            _, following = self.model(self.on_device(self.seen))
            advantage = torch.empty_like(value)
            gathered = torch.zeros_like(following)
            for t in reversed(range(self.steps)):
                alive = 1 - ended[t]
                error = reward[t] + GAMMA * alive * following - value[t]
                gathered = error + GAMMA * GAE_LAMBDA * alive * gathered
                advantage[t], following = gathered, value[t]
        rows = (obs, action, log_prob, advantage, advantage + value)
        self.learn(*(one.flatten(0, 1) for one in rows))
        return self.steps * self.games

    def learn(
        self, obs: Tensor, action: Tensor, log_prob: Tensor, advantage: Tensor, target: Tensor
    ) -> None:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(action), device=self.device).split(self.rows):  # type: ignore[no-untyped-call]
                policy, value = self.model(obs[rows])
                ratio = (policy.log_prob(action[rows]) - log_prob[rows]).exp()
                gain = torch.minimum(
                    ratio * advantage[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[rows]
                )
                loss = (
                    0.5 * (value - target[rows]).square() - gain - 0.01 * policy.entropy()
                ).mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
                self.optimizer.step()


def paces(call: Callable[[], int], window: Window) -> list[float]:
    """Return rows per second in each slice of the window."""
    _for(call, window.warm_up_s)
    return [_for(call, window.for_s / SLICES) for _ in range(SLICES)]


def _for(call: Callable[[], int], seconds: float) -> float:
    begin, rows = time.perf_counter(), 0
    while True:
        rows += call()
        if (now := time.perf_counter()) >= begin + seconds:
            return rows / (now - begin)


def main() -> None:
    turn = asked()
    if turn.is_quick:
        loop = Loop(games=4, steps=8, rows=16, size=turn.size, device=turn.device)
    else:
        loop = Loop(games=256, steps=64, rows=2048, size=turn.size, device=turn.device)
    window = QUICK if turn.is_quick else FULL
    # The first two are steady in half the time.
    half = Window(window.warm_up_s / 2, window.for_s / 2)
    for name, call, how in (
        ("emulators", loop.emulators, half),
        ("inference", loop.inference, half),
        ("ppo", loop.ppo, window),
    ):
        for number, per_s in enumerate(paces(call, how)):
            report(number, **{f"{turn.what}_{turn.size}_{name}_per_s": per_s})


if __name__ == "__main__":
    main()
