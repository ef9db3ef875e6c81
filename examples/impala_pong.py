"""IMPALA on Pong, whole: model, actor, learner.  Copy it and change what you like.

    python examples/impala_pong.py

Two actors play 16 games each, in processes of their own, and never wait for each other.
The learner takes trajectories as they come, corrects by V-trace for their being sampled
with older parameters, and sends new ones.  `remotely-rl train impala` is the same with
metrics, checkpoints and a plot.  On a cluster: give its address to `connect`, at the end.
"""

import time
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor, nn

import remotely
from remotely_rl import environments, losses, returns
from remotely_rl.models import Normaliser, load_state, state_of
from remotely_rl.trajectory import Trajectory, stack

ENV, ATARI = "ALE/Pong-v5", environments.Atari(image_size=42)
ACTORS, ENVS_PER_ACTOR = 2, 16
STEPS = 64  # of each environment in a trajectory
BATCH, PASSES, MINIBATCHES = 2, 3, 8  # trajectories in an update, and how it goes over them
GAMMA, LAMBDA = 0.98, 0.95
CLIP = 0.2  # how far an update may move the policy
LEARNING_RATE, ENTROPY = 3e-4, 0.01
MINUTES, TARGET = 15, 18.0


class Model(nn.Module):
    """Observations [N, 4, 42, 42] of bytes -> logits [N, actions], value [N]."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Normaliser((4, 42, 42)),
            nn.Conv2d(4, 16, 6, stride=3),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 6 * 6, 256),
            nn.ReLU(),
        )
        self.policy = nn.Linear(256, actions)
        self.value = nn.Linear(256, 1)
        nn.init.normal_(self.policy.weight, std=0.01)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(obs)
        return self.policy(features), self.value(features).squeeze(-1)


@remotely.remote_class
class Actor:
    """Plays with the newest parameters that it was sent."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.envs = environments.make(ENV, ENVS_PER_ACTOR, ATARI)
        self.model = Model(self.envs.action_count).eval()
        self.obs = self.envs.reset(seed)

    def set_param(self, params: dict[str, np.ndarray]) -> None:
        load_state(self.model, params)

    def sample(self) -> tuple[Trajectory, list[float]]:
        """Plays STEPS steps.  Returns them, and the scores of the games that ended."""
        obs, rows = [self.obs], []
        for _ in range(STEPS):
            with torch.inference_mode():
                logits, _ = self.model(torch.from_numpy(obs[-1]))
                action = torch.multinomial(logits.softmax(-1), 1)[:, 0]
                log_prob = losses.log_prob_of(logits, action)
            self.obs, *outcome = self.envs.step(action.numpy())
            obs.append(self.obs)
            rows.append((action.numpy(), log_prob.numpy(), *outcome))
        trajectory = Trajectory.of(obs, rows)
        return trajectory, [game.score for game in self.envs.pop_episodes()]


def targets(model: nn.Module, batch: Trajectory) -> list[Tensor]:
    """What V-trace makes of a batch [T, B], by the newest parameters: rows in no order."""
    obs, action, valid = map(torch.from_numpy, (batch.obs, batch.action, batch.valid))
    with torch.no_grad():
        pairs = [model(step) for step in obs]
    logits, value = (torch.stack(part) for part in zip(*pairs, strict=True))  # [T + 1, B, ...]
    log_prob = losses.log_prob_of(logits[:-1], action)
    target = returns.v_trace(
        log_prob - torch.from_numpy(batch.log_prob),
        torch.from_numpy(batch.reward).clamp(-1, 1),
        GAMMA * ~torch.from_numpy(batch.terminated),
        value,
        valid=valid,
        trace_decay=LAMBDA,
    )
    advantage = target.advantage[valid]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    return [obs[:-1][valid], action[valid], log_prob[valid], advantage, target.value[valid]]


def update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Trajectory) -> None:
    rows = targets(model, batch)
    for _ in range(PASSES):
        for some in torch.randperm(len(rows[0])).chunk(MINIBATCHES):
            obs, action, old_log_prob, advantage, target = (part[some] for part in rows)
            logits, value = model(obs)
            log_ratio = losses.log_prob_of(logits, action) - old_log_prob
            loss = (
                losses.clipped_surrogate(log_ratio, advantage, CLIP)
                + 0.5 * losses.squared_error(value, target)
                - ENTROPY * losses.entropy_of(logits).mean()
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def train(model: Model) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, eps=1e-5)
    actors = [Actor(seed) for seed in range(ACTORS)]
    remotely.Group(actors).set_param(state_of(model))
    calls = {actor.sample.submit(): actor for actor in actors}
    batch: list[Trajectory] = []
    scores: list[float] = []
    steps, began = 0, time.monotonic()
    while time.monotonic() - began < 60 * MINUTES:
        for call in wait(calls, return_when=FIRST_COMPLETED).done:
            trajectory, ended = call.result()
            actor = calls.pop(call)
            actor.set_param.submit(state_of(model))
            calls[actor.sample.submit()] = actor  # it plays on while we learn
            batch.append(trajectory)
            scores = (scores + ended)[-100:]
            steps += int(trajectory.valid.sum())
        if len(batch) >= BATCH:
            update(model, optimizer, stack(batch))
            batch.clear()
            mean = np.mean(scores) if scores else float("nan")
            speed = steps / (time.monotonic() - began)
            print(f"{steps:9,} steps  {speed:5,.0f}/s  mean return {mean:6.2f}", flush=True)
            if len(scores) == 100 and mean >= TARGET:
                break


if __name__ == "__main__":
    torch.set_num_threads(1)  # the learner's; with more cores than actors, give it the rest
    remotely.connect(cpus=ACTORS)  # or remotely.connect("host:8010")
    model = Model(environments.make(ENV, 1, ATARI).action_count)
    with suppress(KeyboardInterrupt):
        train(model)
    torch.save(model.state_dict(), "pong.pt")
    print("The model is in pong.pt.")
