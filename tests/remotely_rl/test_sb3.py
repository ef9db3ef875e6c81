"""The adapter for Stable-Baselines3: the same rows as its own vector environments.

Stable-Baselines3 is no dependency; where it is not installed, only the message is tested.
"""

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.chaos.numbered import Numbered, strike

IS_HERE = importlib.util.find_spec("stable_baselines3") is not None
with_sb3 = pytest.mark.skipif(not IS_HERE, reason="Stable-Baselines3 is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of other versions


@pytest.mark.skipif(IS_HERE, reason="it is installed")
def test_a_missing_stable_baselines3_says_what_to_install() -> None:
    with pytest.raises(ImportError, match="pip install stable-baselines3"):
        importlib.import_module("remotely_rl.sb3")


@with_sb3
@pytest.mark.usefixtures("embedded")
def test_rows_equal_those_of_a_dummy_vec_env() -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from remotely_rl.sb3 import VecEnv

    plain = make_vec_env("CartPole-v1", 4, seed=3)
    ours = VecEnv("CartPole-v1", 4, envs_per_actor=2)
    ours.seed(3)
    assert np.array_equal(plain.reset(), ours.reset())
    draw = np.random.default_rng(1)
    for _ in range(200):
        actions = draw.integers(0, 2, 4)
        (*rows, expecteds), (*others, infos) = plain.step(actions), ours.step(actions)
        for one, other in zip(rows, others, strict=True):
            assert np.array_equal(one, other)
            assert one.dtype == other.dtype
        for expected, info in zip(expecteds, infos, strict=True):
            assert set(expected) == set(info)
            assert expected["TimeLimit.truncated"] == info["TimeLimit.truncated"]
            if "terminal_observation" in expected:
                assert np.array_equal(
                    expected["terminal_observation"], info["terminal_observation"]
                )
                assert expected["episode"]["l"] == info["episode"]["l"]
    assert VecNormalize(ours).reset().shape == (4, 4)
    ours.close()


class Struck(Numbered):
    level = 0

    def strike(self, fault: str) -> None:
        strike(fault)

    def step(self, action: int) -> Any:
        if self.level == 7:
            raise RuntimeError("the simulator broke")
        return super().step(action)


@with_sb3
@pytest.mark.usefixtures("embedded")
def test_an_episode_ended_by_a_crash_is_truncated_at_the_last_observation() -> None:
    from remotely_rl.sb3 import VecEnv

    envs = VecEnv([Struck] * 3, say=lambda text: None, monitor=False)
    before = envs.reset()
    envs.set_attr("level", 7, indices=[1])
    assert envs.get_attr("level") == [0, 7, 0]
    obs, rewards, dones, infos = envs.step(np.zeros(3, np.int64))
    assert rewards[1] == 0
    assert dones[1]
    assert infos[1]["TimeLimit.truncated"]
    assert np.array_equal(infos[1]["terminal_observation"], before[1])
    assert infos[1]["crash_report"].env == 1
    assert obs[1, 2] == 0
    assert envs.env_is_wrapped(gymnasium.Wrapper, indices=[0]) == [False]
    envs.close()


@with_sb3
@pytest.mark.usefixtures("embedded")
def test_ppo_learns_with_it() -> None:
    from examples import sb3_ppo

    sb3_ppo.main(total_steps=2_000)


class Told(gymnasium.Env[Any, Any]):
    """Observes the level that the options of its reset name; its actions are dicts."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,))
    action_space = gymnasium.spaces.Dict({"plus": gymnasium.spaces.Box(0, 9, (1,))})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.level = np.float32((options or {}).get("level", 0))
        return np.array([self.level]), {"options": dict(options or {})}

    def step(self, action: Any) -> Any:
        return self.level + action["plus"], 1.0, False, False, {}


@with_sb3
@pytest.mark.usefixtures("embedded")
def test_options_actions_and_indices_may_be_what_stable_baselines3_allows() -> None:
    from remotely_rl.sb3 import VecEnv

    envs = VecEnv([Told] * 3, monitor=False)
    envs.set_options([{"level": 1}, {"level": 2}, {"level": 1}])
    assert envs.reset().ravel().tolist() == [1, 2, 1]
    assert [info["options"]["level"] for info in envs.reset_infos] == [1, 2, 1]
    actions = [{"plus": np.array([number], np.float32)} for number in (5, 6, 7)]
    assert envs.step(actions)[0].ravel().tolist() == [6, 8, 8]
    assert envs.get_attr("level", indices=[-2, -1]) == [2, 1]
    with pytest.raises(IndexError):
        envs.get_attr("level", indices=[3])
    envs.close()
