"""A run of a trainer on environments that fail at random; the oracle checks each row.

    python -m tests.chaos.trainers cleanrl 100 FOLDER

Prints the results as JSON after 100 failures.  environments.py runs it.
"""

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from remotely_rl import CrashReport, VectorEnv
from remotely_rl.supervision import Cause, Crashes
from tests.chaos.numbered import FAULTS, Numbered, Oracle, makes, reward_of

ENVS = 8
CHANCE = 1 / 400  # in each step of an environment
LIMIT_S = 0.5


class Enough(Exception):
    """The requested number of failures is reached."""


class Watch:
    """The observations of a run."""

    def __init__(self, enough: int, folder: Path):
        self.enough, self.folder = enough, folder
        self.wrong: list[str] = []
        self.rows = 0
        self.reports: list[CrashReport] = []
        self.told_s: list[float] = []  # from the failure
        self.hung_s: list[float] = []  # from the limit
        self.replaced_s: list[float] = []
        self._told_at: dict[int, float] = {}

    def told(self, report: CrashReport) -> None:
        """Record a crash report, perhaps on another thread."""
        now = time.monotonic()
        self.reports.append(report)
        assert report.env is not None or report.cause is Cause.DIED, report
        if report.env is None:
            return
        broke, fault = (
            (self.folder / f"faults-{report.env}").read_text().split("\n")[-2].split(" ", 1)
        )
        expected = {"exception": "raised", "kill": "died", "segfault": "died"}.get(fault, "hung")
        if report.cause != expected:
            self.wrong.append(f"{fault} was told as {report}")
        if expected == "hung":
            self.hung_s.append(now - float(broke) - LIMIT_S)
        else:
            self.told_s.append(now - float(broke))
        if expected != "raised":
            self._told_at[report.env] = now

    def began(self, env: int) -> None:
        """Record a row that begins an episode of this environment."""
        if env in self._told_at:
            self.replaced_s.append(time.monotonic() - self._told_at.pop(env))

    def say(self) -> None:
        print(
            json.dumps(
                {
                    "wrong": self.wrong,
                    "rows": self.rows,
                    "broken": len(self.reports),
                    "told_s": self.told_s,
                    "hung_s": self.hung_s,
                    "replaced_s": self.replaced_s,
                }
            )
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the VectorEnv."""
        return {
            "envs_per_actor": 2,
            "step_timeout_s": LIMIT_S,
            "max_crash_rate": 1,
            "say": lambda text: None,
            "on_crash": self.told,
        }


class Checked(VectorWrapper[Any, Any, Any, Any, Any]):
    """A wrapper that has the oracle check each row."""

    def __init__(self, watch: Watch):
        super().__init__(VectorEnv(makes(ENVS, FAULTS, CHANCE, watch.folder), **watch.settings))
        self.watch = watch
        self.oracle = Oracle(AutoresetMode.NEXT_STEP)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**given)
        self.oracle.reset(obs)
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        row = self.env.step(actions)
        for env in np.flatnonzero(self.oracle.ended & (row[0][:, 2] == 0)):
            self.watch.began(int(env))
        self.oracle.step(*row)
        if len(self.watch.reports) >= self.watch.enough:
            raise Enough
        return row


def cleanrl(watch: Watch) -> None:
    """Run the loop of examples/vector_env_ppo.py."""
    from examples import vector_env_ppo

    envs = Checked(watch)
    try:
        vector_env_ppo.train(envs, 10**9)
    except Enough:
        pass
    envs.close()
    watch.wrong += envs.oracle.wrong
    watch.rows = envs.oracle.rows


def sb3(watch: Watch) -> None:
    """Run Stable-Baselines3's PPO."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecEnvWrapper

    from remotely_rl.sb3 import VecEnv

    oracle = Oracle(AutoresetMode.SAME_STEP)

    class CheckedVecEnv(VecEnvWrapper):  # type: ignore[misc]
        def reset(self) -> Any:
            obs = self.venv.reset()
            oracle.reset(obs)
            return obs

        def step_wait(self) -> Any:
            obs, rewards, dones, infos = self.venv.step_wait()
            cut = np.array([info["TimeLimit.truncated"] for info in infos])
            final = np.array([info.get("terminal_observation") for info in infos], object)
            crashed = np.array(["crash_report" in info for info in infos])
            vector = {"final_obs": final, "_crash_report": crashed}
            oracle.step(obs, rewards, dones & ~cut, dones & cut, vector)
            for env in np.flatnonzero(dones):
                watch.began(int(env))
            if len(watch.reports) >= watch.enough:
                raise Enough
            return obs, rewards, dones, infos

    torch.set_num_threads(1)
    envs = CheckedVecEnv(VecEnv(makes(ENVS, FAULTS, CHANCE, watch.folder), **watch.settings))
    try:
        PPO("MlpPolicy", envs, n_steps=64, batch_size=128, device="cpu").learn(10**9)
    except Enough:
        pass
    envs.close()
    watch.wrong += oracle.wrong
    watch.rows = oracle.rows


def ours(watch: Watch, sampling: str = "local") -> None:
    """Run our own PPO; the oracle looks at the trajectories from which it learns."""
    from remotely_rl.algorithms import ppo

    learn, add = ppo.update, Crashes.add
    look_at_replacements(watch)

    def update(learner: Any, seen: Any, progress: float) -> Any:
        watch.wrong += wrong_rows(seen)
        watch.rows += seen.valid.size
        return learn(learner, seen, progress)

    def told(crashes: Crashes, report: CrashReport) -> None:
        watch.reports.append(report)
        if len(watch.reports) == watch.enough:
            os.kill(os.getpid(), signal.SIGINT)  # like Ctrl-C
        add(crashes, report)

    ppo.update, Crashes.add = update, told  # type: ignore[assignment, method-assign]
    config = ppo.Config(
        env=functools.partial(Numbered, FAULTS, CHANCE, str(watch.folder / "faults")),
        actors=4,
        envs_per_actor=2,
        rollout_steps=16,
        step_timeout_s=LIMIT_S,
        max_crash_rate=1,
        learner_threads=1,
        device="cpu",
        sampling=sampling,
    )
    sys.stdout = sys.stderr  # the last line of stdout is for the results
    result = ppo.train(config, run=watch.folder / "run")
    sys.stdout = sys.__stdout__
    if result.ended != "stopped by SIGINT":
        watch.wrong.append(f"the run was lost: {result.ended}")


def look_at_replacements(watch: Watch) -> None:
    """Measure, in central sampling, from the row of a crash to the first of the next episode."""
    from remotely_rl.vector.vector_env import Simulators

    wait, told_at = Simulators.step_wait, dict[tuple[int, int], float]()

    def step_wait(self: Simulators) -> Any:
        row = wait(self)
        now = time.monotonic()
        for env in np.flatnonzero(row[0][:, 2] == 0).tolist():
            if (id(self), env) in told_at:
                watch.replaced_s.append(now - told_at.pop((id(self), env)))
        crashed = row[4].get("_crash_report", np.zeros(self.num_envs, np.bool_))
        told_at.update({(id(self), env): now for env in np.flatnonzero(crashed).tolist()})
        return row

    Simulators.step_wait = step_wait  # type: ignore[assignment, method-assign]


def wrong_rows(seen: Any) -> list[str]:
    """Return what is wrong with a trajectory."""
    wrong = []
    for t, b in np.ndindex(seen.valid.shape):
        before, after, cut = seen.obs[t, b], seen.obs[t + 1, b], bool(seen.truncated[t, b])
        ends = bool(after[2] == after[3])
        if seen.valid[t, b]:
            right = np.array_equal(after - before, [0, 0, 1, 0])
            right = right and np.isclose(seen.reward[t, b], reward_of(after))
            right = right and seen.terminated[t, b] == (ends and after[3] % 2 == 0)
            right = right and cut == (ends and after[3] % 2 == 1)
        elif cut:  # a crash: the row is repeated and invalid
            right = np.array_equal(after, before)
        else:
            right = after[2] == 0 and seen.begins[t + 1, b]
        if not right:
            wrong.append(f"{before} -> {after}, {seen.reward[t, b]}, valid {seen.valid[t, b]}")
    return wrong


if __name__ == "__main__":
    kind, count, folder = sys.argv[1:]
    seen = Watch(int(count), Path(folder))
    {"cleanrl": cleanrl, "sb3": sb3}.get(kind, functools.partial(ours, sampling=kind))(seen)
    seen.say()
