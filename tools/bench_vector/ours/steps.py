"""VectorEnv with a process per core, with a process per environment, and its loop alone."""

from remotely_rl import VectorEnv
from remotely_rl.supervision import SupervisedVectorEnv
from tools.bench_rl.window import asked
from tools.bench_vector.environments import MAKES, time_steps


def main() -> None:
    turn = asked()
    make = MAKES[turn.what]
    if turn.what == "loop":
        loop = SupervisedVectorEnv([make] * turn.size, episode_seeds=False)
        loop.reset(seed=0)
        time_steps(turn, loop.step)
        loop.close()
        return
    ways = {"": {}, "each_": {"envs_per_actor": 1}}
    if turn.what == "pong":
        ways["views_"] = {"copy": False}
    for prefix, settings in ways.items():
        envs = VectorEnv(make, turn.size, **settings)  # type: ignore[arg-type]
        envs.reset(seed=0)
        time_steps(turn, envs.step, prefix)
        envs.close()


if __name__ == "__main__":
    main()
