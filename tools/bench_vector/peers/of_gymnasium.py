"""Gymnasium's AsyncVectorEnv, a process for each environment; and its SyncVectorEnv."""

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from tools.bench_rl.window import asked
from tools.bench_vector.environments import MAKES, time_steps


def main() -> None:
    turn = asked()
    kind = SyncVectorEnv if turn.what == "loop" else AsyncVectorEnv
    envs = kind([MAKES[turn.what]] * turn.size)
    envs.reset(seed=0)
    time_steps(turn, envs.step)
    envs.close()


if __name__ == "__main__":
    main()
