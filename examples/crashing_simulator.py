"""A simulator that crashes: training goes on, and each crash can be repeated.

    python examples/crashing_simulator.py

The simulator raises, takes its process with it, or does not return, each now and then.  The
episode ends as one that was cut, and is not trained on past that point; the environment is made
again.  What happened is told at once, with its cause.  A report has all that it takes to repeat it:
here those of errors are replayed, up to the very step, as you would in a debugger.
"""

import contextlib
import ctypes
import time
from typing import Any

import gymnasium
import numpy as np

from remotely_rl import CrashReport, VectorEnv, ppo


class Simulator(gymnasium.Env[np.ndarray, Any]):
    """A walk on a line, to the right for a reward; it breaks at some places."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.now = 0.0, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        before = self.place
        self.place += (0.1 if action else -0.1) * self.np_random.random()
        self.now += 1
        fate = self.np_random.random()
        if fate < 0.001:
            raise RuntimeError(f"no contact at {self.place:.4f}")
        if fate < 0.0015:
            ctypes.string_at(0)  # a segmentation fault
        if fate < 0.0017:
            time.sleep(3600)
        return self._obs(), self.place - before, abs(self.place) > 1, self.now == 200, {}

    def _obs(self) -> np.ndarray:
        return np.clip(np.array([self.place, self.now / 200], np.float32), -1, 1)


def main(minutes: float = 0.5, total_steps: int = 0, steps: int = 3_000) -> None:
    # By a template.
    config = ppo.Config(
        env=Simulator,
        minutes=minutes,
        total_steps=total_steps,
        envs_per_actor=8,
        rollout_steps=32,
        step_timeout_s=1.0,
    )
    result = ppo.train(config)
    print(f"mean return {result.return_mean:.2f}, {result.ended}")

    # By a loop of your own, with all reports.
    reports: list[CrashReport] = []
    envs = VectorEnv(Simulator, 8, step_timeout_s=1.0, episode_seeds=True, on_crash=reports.append)
    envs.reset(seed=1)
    envs.action_space.seed(1)
    for _ in range(steps):
        envs.step(envs.action_space.sample())
    envs.close()
    for report in reports:
        if report.cause == "raised":  # those that died or hung would do it again, here
            try:
                report.replay(Simulator)
            except RuntimeError as error:
                print(f"replayed: {report.what} -- {error}")
    print(f"{len(reports)} crashes in {8 * steps:,} steps, and none ended it")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it, and its actors with it
        main()
