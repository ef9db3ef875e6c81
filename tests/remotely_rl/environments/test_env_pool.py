"""EnvPool's environments; a stand-in imitates EnvPool where it is not installed."""

import importlib.util
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from remotely_rl import environments
from remotely_rl.config import presets
from remotely_rl.environments.images import Images
from remotely_rl.errors import TrainingError
from tests.remotely_rl.toys import play

LENGTH = 4


class Pool:
    """Environments that observe their seed, their episode count and its steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, name: str, num_envs: int, num_threads: int, seed: list[int]):
        assert (name, num_threads) == ("CartPole-v1", 1)
        self.obs = np.zeros((num_envs, 3), np.float32)
        self.obs[:, 0] = seed

    def reset(self, env_id: Any = slice(None)) -> tuple[Any, dict[str, Any]]:
        self.obs[env_id, 1] += 1
        self.obs[env_id, 2] = 0
        return self.obs[env_id].copy(), self.info(env_id)

    def step(self, actions: NDArray[Any]) -> tuple[Any, ...]:
        assert actions.shape == (len(self.obs),)
        ended = self.obs[:, 2] == LENGTH
        self.obs[ended] += (0, 1, -LENGTH - 1)
        self.obs[:, 2] += 1
        terminated = self.obs[:, 2] == LENGTH
        reward = np.where(ended, 0, 1).astype(np.float32)
        return self.obs.copy(), reward, terminated, terminated & False, self.info()

    def info(self, env_id: Any = slice(None)) -> dict[str, Any]:
        ids = np.arange(len(self.obs), dtype=np.int32)[env_id]
        return {"env_id": ids, "players": {"env_id": ids}, "elapsed_step": self.obs[env_id, 2]}

    def close(self) -> None:
        self.obs = np.empty((0, 3), np.float32)


STAND_IN: Any = SimpleNamespace(
    make_gymnasium=Pool,
    list_all_envs=lambda: ["CartPole-v1"],
    make_spec=lambda name: SimpleNamespace(_config_keys=["num_envs", "num_threads", "frame_skip"]),
)


@pytest.fixture(autouse=True, params=["stand-in", "EnvPool"])
def pool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "envpool", STAND_IN)
    elif importlib.util.find_spec("envpool") is None:
        pytest.skip("EnvPool is not installed: pip install '.[envpool]'")


def test_envpool_episodes_follow_next_step_autoreset() -> None:
    envs = environments.make("envpool:CartPole-v1", 3)
    envs.reset(1)
    rows = play(envs, 30)
    for before, row in itertools.pairwise(rows):
        assert (row.valid == ~before.terminated).all()
        assert (row.begins == before.terminated).all()
    assert [one.score == one.length for one in envs.pop_episodes()].count(True) >= 3
    envs.close()


def test_a_seed_determines_the_episodes_and_each_environment_has_its_own() -> None:
    envs = environments.make("envpool:CartPole-v1", 2)
    first, other, again = (np.array(envs.reset(seed)) for seed in (5, 9, 5))
    assert (first == again).all()
    assert (first[:, 0] != other[:, 0]).all()
    assert first[0, 0] != first[1, 0]
    envs.close()


def test_without_a_seed_all_environments_differ() -> None:
    made = [environments.make("envpool:CartPole-v1", 1) for _ in range(2)]
    one, two = (np.array(envs.reset()) for envs in made)
    assert one[0, 0] != two[0, 0]
    for envs in made:
        envs.close()


def test_a_partial_reset_leaves_the_other_environments() -> None:
    envs = environments.make("envpool:CartPole-v1", 3)
    envs.reset(1)
    before = np.array(play(envs, 2)[-1].obs)
    after, _ = envs.vector.reset(options={"reset_mask": np.array([True, False, False])})
    assert (after[1:] == before[1:]).all()
    after[:] = np.nan  # the caller may write to it
    again, _ = envs.vector.reset(options={"reset_mask": np.array([True, False, False])})
    assert (again[1:] == before[1:]).all()
    assert (after[0] != before[0]).any()
    envs.close()


@pytest.mark.parametrize(
    ("env_id", "given", "said"),
    [
        ("envpool:CartPole-v7", {}, "EnvPool has no environment 'CartPole-v7', did you mean 'Cart"),
        ("envpool:CartPole-v1", {"kwargs": {"skip": 4}}, "takes no argument 'skip'; it takes num"),
        ("envpool:CartPole-v1", {"kwargs": {"num_envs": 4}}, "takes no argument 'num_envs'"),
        ("envpool:CartPole-v1", {"waits": True}, "envpool:CartPole-v1 step as one"),
        ("envpool:CartPole-v1", {"images": Images(frame_stack=4)}, "envpool:CartPole-v1 makes a v"),
        (
            "envpool:CartPole-v1",
            {"wrappers": [lambda env: env]},
            "whose environments wrappers cannot reach",
        ),
    ],
)
def test_unsupported_options_of_envpool_are_rejected(
    env_id: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(TrainingError, match=said):
        environments.make(env_id, 1, **given)


def test_without_envpool_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(TrainingError, match=r"needs EnvPool .*pip install '\.\[envpool\]'"):
        environments.make("envpool:CartPole-v1", 1)


def test_a_preset_applies_to_the_same_environment_of_envpool() -> None:
    assert presets.find("ppo", "envpool:CartPole-v1") is presets.find("ppo", "CartPole-v1")
