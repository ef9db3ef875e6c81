"""Central sampling compared with local sampling.

    python -m tools.bench_rl.central --rounds 5         # on an idle machine

    asleep   environments and a model that each sleep for 5 ms, two environments at a time:
             alternating sampling, with twice as many, compared with central sampling
    there    a step of one environment that does nothing, there and back, in microseconds
    pong     PPO, 16 games per actor, agent steps per second: each form compared with local

The forms take turns in each round, and a ratio is of one round.  Set OMP_WAIT_POLICY=passive and
GOMP_SPINCOUNT=10000, as `remotely_rl` does where it is imported before torch.
"""

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
from tools import command_line
from tools.bench.figures import spread
from tools.bench_rl import pace
from tools.bench_rl.window import Window

SLEEP_S = 0.005
ASLEEP_STEPS, TURNS = 200, 20_000


class Still(gymnasium.Env[Any, Any]):
    """An environment that only sleeps in a step."""

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
    """A model that sleeps for a batch of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.of = nn.Linear(1, 3)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SLEEP_S)
        out = self.of(obs)
        return out[:, :2], out[:, 2]


def asleep(halves: int) -> float:
    """Return steps per second of all environments, two in each half."""
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
    """Return agent steps per second of PPO with one epoch, so that sampling dominates."""
    config = ppo.Config(
        actors=actors, sampling=sampling, image_size=side, epochs=1, minutes=10.0,
        log_interval_s=pace.ROWS_EVERY_S,
    )  # fmt: skip
    (per_s,) = pace.measure(ppo, config, Window(warm_up_s=5.0, for_s=seconds))
    return per_s


def show(name: str, turns: Sequence[dict[str, float]]) -> None:
    """Print medians and ranges, and ratios to the first column."""
    first = next(iter(turns[0]))
    for key in turns[0]:
        values = spread(turn[key] for turn in turns)
        ratios = spread(turn[key] / turn[first] for turn in turns)
        print(f"| {name}, {key} | {values:,.0f} | {ratios:.2f} |", flush=True)


def main() -> int:
    parser = command_line.parser("python -m tools.bench_rl.central", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a turn of Pong")
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
            show(name, [{key: turn() for key, turn in turns.items()} for _ in range(given.rounds)])
    remotely.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
