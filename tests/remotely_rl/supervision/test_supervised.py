"""An environment that raises ends its episode as truncated, is reported, and is remade."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from remotely_rl import TrainingError
from remotely_rl.supervision import Cause, CrashReport, Supervised

Row = tuple[np.ndarray, dict[str, Any]]
NAN = np.full(2, np.nan, np.float32)


class Fragile(gymnasium.Env[np.ndarray, Any]):
    """Observes its step and a number of its seed.  `faults` are of all environments made."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, faults: "Faults"):
        self.faults = faults
        faults.made += 1
        faults.at("make")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Row:
        super().reset(seed=seed)
        self.now = 0
        self.faults.seeds.append(seed)
        self.faults.at("reset")
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        obs, reward = self._obs(), 1.0
        match self.faults.at(f"step {self.now}"):
            case "nan observation":
                obs = NAN
            case "nan reward":
                reward = float("nan")
            case "shape":
                obs = np.zeros(5, np.float32)
        return obs, reward, False, False, {}

    def close(self) -> None:
        self.faults.closed += 1

    def _obs(self) -> np.ndarray:
        return np.array([self.now, self.np_random.integers(1000)], np.float32)


class Faults:
    """What goes wrong where: each fault is spent once."""

    def __init__(self, **faults: str):
        self.left = {where.replace("_", " "): fault for where, fault in faults.items()}
        self.made = self.closed = 0
        self.seeds: list[int | None] = []

    def at(self, where: str) -> str | None:
        fault = self.left.pop(where, None)
        if fault == "raise":
            raise RuntimeError(f"the simulator broke at {where}")
        return fault

    def make(self) -> Fragile:
        return Fragile(self)


def supervised(faults: Faults, **settings: Any) -> tuple[Supervised, list[CrashReport]]:
    reports: list[CrashReport] = []
    return Supervised(faults.make, 4, reports.append, **settings), reports


def test_a_step_that_raises_ends_the_episode_with_its_last_true_observation() -> None:
    env, reports = supervised(Faults(step_3="raise"))
    env.reset(seed=1)
    env.step(0)
    last = env.step(1)[0]
    obs, reward, terminated, truncated, info = env.step(2)
    assert obs is last
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info == {"crashed": True, "crash": reports[0]}


def test_its_report_says_what_happened_and_where() -> None:
    env, reports = supervised(Faults(step_2="raise"))
    env.reset(seed=1)
    env.step(3)
    env.step(2)
    (report,) = reports
    assert str(report) == (
        "environment 4 raised in step 2, seed 1: RuntimeError: the simulator broke at step 2"
    )
    assert (report.cause, report.actions, report.lived) == (Cause.RAISED, (3, 2), 2)
    assert 'raise RuntimeError(f"the simulator broke' in report.details
    assert "remotely_rl/supervision/supervised.py" not in report.details


def test_it_is_remade_at_the_next_reset_with_another_seed() -> None:
    faults = Faults(step_1="raise")
    env, _ = supervised(faults, episode_seeds=False)
    env.reset(seed=1)
    env.step(0)
    obs, _ = env.reset()
    assert obs[0] == 0
    assert (faults.made, faults.closed) == (2, 1)
    assert faults.seeds[0] == 1
    assert faults.seeds[1] not in (1, None)
    assert not env.step(0)[3]


def test_a_reset_that_raises_is_reported_and_tried_again_in_a_new_environment() -> None:
    faults = Faults(reset="raise")
    env, reports = supervised(faults)
    obs, _ = env.reset(seed=1)
    assert obs[0] == 0
    assert faults.made == 2
    (report,) = reports
    assert str(report).startswith("environment 4 raised as it was reset, seed 1: RuntimeError")


def test_a_new_environment_that_cannot_be_made_is_tried_again() -> None:
    faults = Faults(step_1="raise")
    env, reports = supervised(faults)
    env.reset(seed=1)
    env.step(0)
    faults.left["make"] = "raise"
    assert env.reset()[0][0] == 0
    assert [report.step for report in reports] == [1, 0]


def test_an_environment_that_can_never_be_reset_ends_the_run_in_a_sentence() -> None:
    class Broken(Faults):
        def at(self, where: str) -> str | None:
            if where == "reset":
                raise RuntimeError("no license")
            return None

    env, _ = supervised(Broken())
    with pytest.raises(TrainingError, match=r"environment 4 could not be reset 10 times.*no licen"):
        env.reset()


@pytest.mark.parametrize(
    ("fault", "cause", "words"),
    [
        ("nan observation", Cause.NOT_FINITE, r"2 numbers that are NaN or infinite"),
        ("nan reward", Cause.NOT_FINITE, r"the reward is nan"),
        ("shape", Cause.WRONG_SHAPE, r"the observation has shape (5,); its space has (2,)"),
    ],
)
def test_a_row_that_is_not_of_the_space_is_a_crash(fault: str, cause: Cause, words: str) -> None:
    env, reports = supervised(Faults(step_2=fault))
    env.reset(seed=1)
    last = env.step(0)[0]
    obs, reward, _, truncated, _ = env.step(0)
    assert (obs is last, reward, truncated) == (True, 0.0, True)
    assert reports[0].cause is cause
    assert words in reports[0].what
    assert reports[0].step == 2


def test_nan_passes_if_it_is_not_checked() -> None:
    env, reports = supervised(Faults(step_1="nan observation"), check_finite=False)
    env.reset()
    assert np.isnan(env.step(0)[0]).all()
    assert reports == []


def test_an_environment_whose_spaces_change_is_refused() -> None:
    class Growing(Fragile):
        def __init__(self, faults: Faults):
            super().__init__(faults)
            self.observation_space = gymnasium.spaces.Box(-1, 1, (faults.made,), np.float32)
            faults.at("made")

    faults = Faults()
    env = Supervised(lambda: Growing(faults), 0)
    with pytest.raises(TrainingError, match="a new environment has the spaces"):
        env.reset()


def test_every_episode_has_a_seed_with_which_its_crash_is_replayed() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1", disable_env_checker=True)

    class Falls(gymnasium.Wrapper[Any, Any, Any, Any]):
        """Raises where the pole stands in a place that depends on the seed and the actions."""

        def step(self, action: Any) -> Any:
            row = super().step(action)
            if row[0][0] > 0.05:
                raise RuntimeError(f"the pole is at {row[0][0]}")
            return row

    reports: list[CrashReport] = []
    env = Supervised(lambda: Falls(make()), on_crash=reports.append)
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(2_000):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    assert len(reports) > 5
    for report in reports:
        with pytest.raises(RuntimeError) as again:
            report.replay(lambda: Falls(make()))
        assert f"RuntimeError: {again.value}" == report.what


def test_without_seeds_of_its_own_an_episode_is_like_gymnasiums() -> None:
    def rows(env: gymnasium.Env[Any, Any]) -> list[np.ndarray]:
        return [env.reset(seed=3)[0], env.reset()[0], env.reset()[0]]

    plain = rows(gymnasium.make("CartPole-v1"))
    ours = rows(Supervised(lambda: gymnasium.make("CartPole-v1"), episode_seeds=False))
    assert np.array_equal(plain, ours)


def test_a_report_without_all_actions_cannot_be_replayed_and_says_so() -> None:
    report = CrashReport(0, Cause.RAISED, "it broke", step=2_000, seed=1, actions=(0,) * 1_000)
    with pytest.raises(ValueError, match="1,000 of 2,000 actions"):
        report.replay(Faults().make)


def test_what_ends_a_process_on_purpose_is_let_through() -> None:
    class Leaves(Fragile):
        def step(self, action: Any) -> Any:
            raise SystemExit(3)

    make: Callable[[], Leaves] = lambda: Leaves(Faults())
    env = Supervised(make)
    env.reset()
    with pytest.raises(SystemExit):
        env.step(0)


def test_supervision_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, remotely_rl.supervision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
