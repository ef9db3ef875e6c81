"""Central sampling beside local sampling: what it costs and gains.

    python -m tools.bench_rl.central --rounds 5         # on a machine that does nothing else

    asleep        environments and a model that each sleep for 5 ms, two environments at a time:
                  alternating sampling, with twice as many, beside central sampling
    there, back   a step of one environment that does nothing: microseconds of it
    Pong          PPO, 16 games an actor, steps of the agent a second: each form beside local

The forms take turns in each round; ratios are those of one round.  Set OMP_WAIT_POLICY=passive and
GOMP_SPINCOUNT=10000, as `remotely_rl` does where it is imported before torch.
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import remotely
from remotely_rl import ppo
from remotely_rl.acting.actor import Actor
from remotely_rl.config import Common
from remotely_rl.runs.central import CentralActor
from remotely_rl.supervision import Crashes
from remotely_rl.vector.vector_env import Simulators
from tools.bench_rl import pace
from tools.bench_rl.window import Window

SLEEP_S = 0.005
ASLEEP_STEPS, TURNS = 200, 20_000


class Still(gymnasium.Env[Any, Any]):
    """Takes its time for a step, and does nothing in it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, sleeps_s: float):
        self._sleeps_s = sleeps_s
        self._seen = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen, {}

    def step(self, action: Any) -> Any:
        if self._sleeps_s:
            time.sleep(self._sleeps_s)
        return self._seen, 0.0, False, False, {}


class Slow(nn.Module):
    """Takes its time for a batch of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.Linear(1, 3)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SLEEP_S)
        out = self.of(obs)
        return out[:, :2], out[:, 2]


def asleep(halves: int) -> float:
    """Return steps of all environments a second: two of them, or two in each half."""
    config = Common(
        env=functools.partial(Still, SLEEP_S), envs_per_actor=1, rollout_steps=ASLEEP_STEPS
    )
    object.__setattr__(config, "actors", 2 * halves)
    made = CentralActor(Actor, config, Slow(), range(2 * halves), halves, 1, Crashes(print))
    try:
        made.request(made.actors[0]).result()
        began = time.perf_counter()
        made.request(made.actors[0]).result()
        return 2 * halves * ASLEEP_STEPS / (time.perf_counter() - began)
    finally:
        made.close()


def there_and_back_us() -> float:
    """Return the median of a step of one environment that does nothing, in microseconds."""
    plan = Common(env=functools.partial(Still, 0.0)).plan
    envs = Simulators(plan.make, 1, 1, Crashes(print), keys=frozenset(), step_timeout_s=60.0)
    try:
        envs.reset()
        action, took = np.zeros(1, np.int64), []
        for _ in range(TURNS):
            began = time.perf_counter()
            envs.step(action)
            took.append(time.perf_counter() - began)
        return 1e6 * statistics.median(took)
    finally:
        envs.close()


def pong(sampling: str, side: int, actors: int, seconds: float) -> float:
    """Return steps of the agent a second of PPO with one epoch, so that sampling weighs."""
    config = ppo.Config(
        actors=actors, sampling=sampling, image_size=side, epochs=1, minutes=10.0,
        log_interval_s=pace.ROWS_EVERY_S,
    )  # fmt: skip
    (per_s,) = pace.measure(ppo, config, Window(warm_up_s=5.0, for_s=seconds))
    return per_s


def told(name: str, turns: Sequence[dict[str, float]]) -> None:
    """Print what was measured: medians and ranges, and ratios to the first column."""
    first = next(iter(turns[0]))
    for key in turns[0]:
        values = sorted(turn[key] for turn in turns)
        ratios = sorted(turn[key] / turn[first] for turn in turns)
        print(
            f"| {name}, {key} | {statistics.median(values):,.0f} ({values[0]:,.0f}-"
            f"{values[-1]:,.0f}) | {statistics.median(ratios):.2f} ({ratios[0]:.2f}-"
            f"{ratios[-1]:.2f}) |",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a turn of Pong")
    parser.add_argument("--only", nargs="*", default=["asleep", "there", "pong"])
    given = parser.parse_args()
    sides, forms = (84, 42), ("local", "central", "alternating")
    parts: dict[str, tuple[str, str, dict[str, Callable[[], float]]]] = {
        "asleep": ("asleep", "asleep, steps/s", {
            "central": lambda: asleep(1), "alternating": lambda: asleep(2),
        }),
        "there": ("there", "there and back", {"microseconds": there_and_back_us}),
        **{
            f"pong {side}": ("pong", f"Pong {side}x{side}, steps/s", {
                form: functools.partial(pong, form, side, 2, given.seconds) for form in forms
            })
            for side in sides
        },
    }  # fmt: skip
    print("| measure | median (range) | ratio to the first of its round |\n| --- | --- | --- |")
    for part, name, turns in parts.values():
        if part in given.only:
            told(name, [{key: turn() for key, turn in turns.items()} for _ in range(given.rounds)])
    remotely.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
