"""The environments of all systems, and their timing, with Gymnasium and numpy only."""

from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from tools.bench.stopwatch import report
from tools.bench_rl.window import Asked, Window

ACTIONS = 1_000  # drawn before, and repeated
FULL, QUICK = Window(warm_up_s=1.0, for_s=5.0), Window(warm_up_s=0.5, for_s=1.5)


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


def pong() -> gymnasium.Env[Any, Any]:
    """Return Pong with observations of 4 x 84 x 84 bytes, by Gymnasium's wrappers."""
    gymnasium.register_envs(ale_py)
    game = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    return FrameStackObservation(AtariPreprocessing(game), 4)


MAKES: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "cartpole": cartpole,
    "loop": cartpole,
    "pong": pong,
}


def time_steps(turn: Asked, step: Callable[[Any], object], prefix: str = "") -> None:
    """Report the steps of environments per second."""
    window = QUICK if turn.window.for_s < 10 else FULL
    env = MAKES[turn.what]()
    count = int(env.action_space.n)  # type: ignore[attr-defined]
    env.close()
    actions = np.random.default_rng(0).integers(0, count, (ACTIONS, turn.size))
    meter = window.meter()
    at = 0
    while meter.runs_on(turn.size):
        step(actions[at % ACTIONS])
        at += 1
    report(**{f"{prefix}{turn.figure}": meter.per_s})
