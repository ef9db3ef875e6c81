"""Stable-Baselines3's SubprocVecEnv, a process for each environment."""

from stable_baselines3.common.vec_env import SubprocVecEnv

from tools.bench_rl.window import asked
from tools.bench_vector.environments import MAKES, time_steps


def main() -> None:
    turn = asked()
    envs = SubprocVecEnv([MAKES[turn.what]] * turn.size)
    envs.reset()
    time_steps(turn, envs.step)
    envs.close()


if __name__ == "__main__":
    main()
