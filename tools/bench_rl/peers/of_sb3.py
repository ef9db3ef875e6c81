"""Stable-Baselines3's A2C, PPO and DQN at 84x84 with its Nature CNN and 8 games, each in a process.

`sb3_ppo` is for a machine with a GPU: PPO with a game per core, three epochs of 2,048 rows.
"""

from typing import Any

import ale_py
import gymnasium
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

from tools.bench.stopwatch import Meter, report
from tools.bench_rl.window import asked, cores

GAME = "PongNoFrameskip-v4"  # its wrappers skip frames; no sticky actions
GAMES = 8
WITHOUT_END = 10**9

# A2C has its defaults.  PPO makes one pass over its rollout, as ours does here.  DQN makes two
# updates for each step of eight games, in batches of 32, so each step is drawn eight times.
ALGORITHMS: dict[str, tuple[Any, dict[str, int]]] = {
    "a2c": (A2C, {}),
    "ppo": (PPO, {"n_steps": 128, "batch_size": 256, "n_epochs": 1}),
    "sb3_ppo": (PPO, {"n_steps": 128, "batch_size": 2048, "n_epochs": 3}),
    "dqn_32": (
        DQN,
        {
            "batch_size": 32,
            "train_freq": 1,
            "gradient_steps": 2,
            "learning_starts": 1_000,
            "buffer_size": 50_000,
        },
    ),
}


class Counting(BaseCallback):  # type: ignore[misc]
    """A callback that counts a rollout when the next one begins, so with its update."""

    def __init__(self, meter: Meter, games: int) -> None:
        super().__init__()
        self.meter, self.games = meter, games
        self.runs_on = True

    def _on_rollout_start(self) -> None:
        steps = getattr(self.model, "n_steps", 1)  # DQN's rollout is one step
        self.runs_on = self.meter.runs_on(steps * self.games)

    def _on_step(self) -> bool:
        return self.runs_on


def main() -> None:
    turn = asked()
    gymnasium.register_envs(ale_py)
    count = cores() if turn.what == "sb3_ppo" else GAMES
    games = make_atari_env(GAME, n_envs=count, seed=0, vec_env_cls=SubprocVecEnv)
    algorithm, settings = ALGORITHMS[turn.what]
    model = algorithm("CnnPolicy", VecFrameStack(games, 4), device=turn.device, **settings)
    meter = turn.window.meter()
    model.learn(WITHOUT_END, callback=Counting(meter, count))
    report(**{turn.figure: meter.per_s})


if __name__ == "__main__":
    main()
