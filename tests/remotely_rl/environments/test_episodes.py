"""What an environment reports of its episodes in `info`, in every form."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from remotely_rl import environments
from remotely_rl.environments import Environments, Episode
from remotely_rl.environments.episodes import means, metrics_of
from tests.remotely_rl import toys


class Tells(toys.Counting):
    """An environment that reports in each step; its episodes have 1, 2, 3, ... steps."""

    def __init__(self) -> None:
        super().__init__(0)

    def reset(self, **kwargs: Any) -> Any:
        self.length += 1
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        *row, info = super().step(action)
        told = {"of_steps": self.now, "name": "long", "rest": math.nan}
        return *row, info | {"is_success": self.now > 1, "other": 3.0, "episode": told}


def played(envs: Environments, steps: int) -> list[Episode]:
    envs.reset(seed=1)
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, np.int64))
    return envs.pop_episodes()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_metrics_of_an_episode_are_those_of_its_last_step(mode: AutoresetMode) -> None:
    envs = Environments(SyncVectorEnv([Tells] * 2, autoreset_mode=mode))
    episodes = played(envs, 5)
    assert [episode.length for episode in episodes] == [1, 1, 2, 2]
    for episode in episodes:
        assert episode.metrics["of_steps"] == episode.length
        assert episode.metrics["success"] == (episode.length > 1)
        assert math.isnan(episode.metrics["name"])
        assert math.isnan(episode.metrics["rest"])
        assert episode.metrics.keys() == {"of_steps", "success", "name", "rest"}


def test_waiting_environments_report_metrics_too() -> None:
    envs = environments.make(Tells, 2, waits=True)
    assert [episode.metrics["of_steps"] for episode in played(envs, 3)] == [1, 1]


def test_metrics_of_gymnasiums_wrappers_are_read() -> None:
    one = environments.make(lambda: gymnasium.wrappers.RecordEpisodeStatistics(toys.Counting()), 2)
    many = Environments(RecordEpisodeStatistics(SyncVectorEnv([toys.Counting] * 2)))
    for envs in (one, many):
        (first, _) = played(envs, 3)
        assert (first.metrics["r"], first.metrics["l"]) == (60.0, 3)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (np.bool_(False), 0.0),
        (np.float32(0.5), 0.5),
        (np.array([2]), 2.0),
        (7, 7.0),
        (math.inf, math.nan),
        (10**400, math.nan),
        ("win", math.nan),
        (None, math.nan),
        (np.zeros(2), math.nan),
        ({"a": 1}, math.nan),
    ],
)
def test_a_metric_that_is_not_a_finite_number_becomes_nan(value: Any, number: float) -> None:
    infos = {"success": np.array([0, value, 0], object), "_success": np.array([0, 1, 0], bool)}
    assert metrics_of(infos, 1) == {"success": pytest.approx(number, nan_ok=True)}
    assert metrics_of(infos, 0) == {}


def test_a_mean_covers_the_episodes_that_have_the_metric() -> None:
    episodes = [
        Episode(1.0, 1, {"success": 1.0}),
        Episode(1.0, 1),
        Episode(1.0, 1, {"success": 0.0, "found": 3.0, "lost": math.nan}),
    ]
    assert means(episodes) == {"success": 0.5, "found": 3.0}
    assert means([]) == {}
