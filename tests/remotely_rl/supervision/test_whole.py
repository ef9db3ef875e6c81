"""Tests of WatchedVectorEnv."""

import pickle
import re
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from remotely_rl.supervision import whole
from remotely_rl.supervision.flight import FlightRecord, nbytes_of
from remotely_rl.supervision.rows import NotFinite
from remotely_rl.supervision.whole import WatchedVectorEnv


def test_it_is_made_of_what_older_gymnasiums_have_too() -> None:
    source = Path(whole.__file__).read_text()
    assert not re.search(r"^class \w+\(.*\[", source, re.MULTILINE)  # generic from 1.4 on


class Own(VectorEnv[Any, Any, Any]):
    """Returns its attributes `obs` and `reward`."""

    single_observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))
    single_action_space = spaces.Discrete(2)
    num_envs = 3

    def __init__(self) -> None:
        self.obs: dict[str, Any] = {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.int64)}
        self.reward = np.zeros(3)
        self.at: Any = lambda: None

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        self.at()
        return self.obs, self.reward, np.zeros(3, np.bool_), np.zeros(3, np.bool_), {}


def test_results_are_passed_on() -> None:
    own = Own()
    envs = WatchedVectorEnv(own)
    assert envs.reset(seed=1)[0] is own.obs
    assert envs.step([0, 0, 0])[0] is own.obs
    assert envs.unwrapped is own
    assert envs.num_envs == 3


def test_nan_raises_an_error_that_names_environment_step_and_leaf() -> None:
    own = Own()
    envs = WatchedVectorEnv(own)
    envs.reset()
    envs.step([0, 0, 0])
    own.obs["a"][1, 0] = np.nan
    with pytest.raises(NotFinite, match=r"environment 1: the observation\['a'\] is nan in step 2"):
        envs.step([0, 0, 0])
    own.obs["a"][1, 0] = 3e38  # its square is infinite
    own.reward[2] = -np.inf
    with pytest.raises(NotFinite, match="environment 2: the reward is -inf"):
        envs.step([0, 0, 0])
    assert WatchedVectorEnv(own, check_finite=False).step([0, 0, 0])[1][2] == -np.inf


def test_the_record_says_whether_the_environments_were_being_stepped() -> None:
    own, memory = Own(), bytearray(nbytes_of(3))
    envs = WatchedVectorEnv(own, flight=memory)
    busy = []
    own.at = lambda: busy.append(FlightRecord.read(bytes(memory)).busy)  # type: ignore[union-attr]
    envs.reset()
    envs.step([0, 0, 0])
    assert busy == [True]
    assert not FlightRecord.read(memory).busy  # type: ignore[union-attr]


def test_a_watchdog_watches_until_close() -> None:
    before = threading.active_count()
    envs = WatchedVectorEnv(Own(), step_timeout_s=60.0)
    assert threading.active_count() == before + 1
    envs.reset()
    envs.close()
    assert threading.active_count() == before


def test_a_pickled_vector_env_can_be_watched_in_another_process() -> None:
    envs: WatchedVectorEnv = pickle.loads(cloudpickle.dumps(WatchedVectorEnv(Own())))
    memory = bytearray(nbytes_of(3))
    envs.watch(memory, 0.0)
    envs.step([0, 0, 0])
    record = FlightRecord.read(memory)
    assert record is not None
    assert record.now == 1
    assert isinstance(envs.single_observation_space, gymnasium.spaces.Dict)
