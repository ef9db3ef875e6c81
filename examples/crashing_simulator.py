"""A simulator that crashes: training continues, and each crash can be reproduced.

    python examples/crashing_simulator.py

Now and then the simulator raises, kills its process, or hangs.  The episode is truncated at its
last good step and the environment is recreated.  The crash and its cause are logged immediately.
A crash report holds everything needed to reproduce the crash: this script replays those that raised
up to the failing step, as you would in a debugger.
"""

import ctypes
import time
from typing import Any

import gymnasium
import numpy as np

from remotely_rl import CrashReport, VectorEnv, ppo


class Simulator(gymnasium.Env[np.ndarray, Any]):
    """A walk on a line, rewarded for going right, with random failures."""

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
        luck = self.np_random.random()
        if luck < 0.001:
            raise RuntimeError(f"no contact at {self.place:.4f}")
        if luck < 0.0015:
            ctypes.string_at(0)  # a segmentation fault
        if luck < 0.0017:
            time.sleep(3600)  # a hang
        return self._obs(), self.place - before, abs(self.place) > 1, self.now == 200, {}

    def _obs(self) -> np.ndarray:
        return np.clip(np.array([self.place, self.now / 200], np.float32), -1, 1)


def main(minutes: float = 0.5, total_steps: int = 0, steps: int = 3_000) -> None:
    # With an algorithm of the library.
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

    # With your own loop, which collects the crash reports.
    reports: list[CrashReport] = []
    envs = VectorEnv(Simulator, 8, step_timeout_s=1.0, episode_seeds=True, on_crash=reports.append)
    envs.reset(seed=1)
    envs.action_space.seed(1)
    for _ in range(steps):
        envs.step(envs.action_space.sample())
    envs.close()
    for report in reports:
        if report.cause == "raised":  # the others would kill or hang this process
            try:
                report.replay(Simulator)
            except RuntimeError as error:
                print(f"replayed: {report.what} -- {error}")
    print(f"the loop survived {len(reports)} crashes in {8 * steps:,} steps")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
