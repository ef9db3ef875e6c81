"""Stable-Baselines3's A2C and PPO at 84x84, by its Nature CNN; 8 games, each in a process."""

from typing import Any

import ale_py
import gymnasium
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

from tools.bench.stopwatch import Meter, report
from tools.bench_rl.window import asked

GAME = "PongNoFrameskip-v4"  # frames in fours by its wrappers, no sticky actions
GAMES = 8
WITHOUT_END = 10**9

# A2C as it comes.  PPO goes over its rollout once, as ours does here.
ALGORITHMS: dict[str, tuple[Any, dict[str, int]]] = {
    "a2c": (A2C, {}),
    "ppo": (PPO, {"n_steps": 128, "batch_size": 256, "n_epochs": 1}),
}


class Counting(BaseCallback):  # type: ignore[misc]
    """Counts rollouts when the next one begins, so that each counts with its update."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter
        self.runs_on = True

    def _on_rollout_start(self) -> None:
        self.runs_on = self.meter.runs_on(self.model.n_steps * GAMES)

    def _on_step(self) -> bool:
        return self.runs_on


def main() -> None:
    turn = asked()
    gymnasium.register_envs(ale_py)
    games = make_atari_env(GAME, n_envs=GAMES, seed=0, vec_env_cls=SubprocVecEnv)
    algorithm, settings = ALGORITHMS[turn.what]
    model = algorithm("CnnPolicy", VecFrameStack(games, 4), device="cpu", **settings)
    meter = turn.window.meter()
    model.learn(WITHOUT_END, callback=Counting(meter))
    report(**{turn.figure: meter.per_s})


if __name__ == "__main__":
    main()
