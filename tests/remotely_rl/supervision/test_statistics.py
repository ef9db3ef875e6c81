"""Wrappers that keep running statistics are refused wherever a run makes environments."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit
from gymnasium.wrappers import vector as of_vectors

import remotely_rl
from remotely_rl import TrainingError, environments, ppo

CART = "CartPole-v1"


def cart(*wrappers: Callable[[Any], Any]) -> Any:
    return functools.reduce(lambda env, wrap: wrap(env), wrappers, gymnasium.make(CART))


def side_by_side(num_envs: int, *wrappers: Callable[[Any], Any]) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: cart(*wrappers)] * num_envs)


def around(num_envs: int) -> Any:
    return of_vectors.NormalizeReward(side_by_side(num_envs))


INSIDE = functools.partial(TimeLimit, max_episode_steps=9)
SOURCES: dict[str, tuple[Any, list[Any]]] = {
    "a wrapper of the run": (CART, [NormalizeObservation, INSIDE]),
    "in the user's function": (lambda: cart(NormalizeObservation, INSIDE), []),
    "around the rewards": (lambda: cart(NormalizeReward), [INSIDE]),
    "in a vector environment": (lambda num_envs: side_by_side(num_envs, NormalizeReward), []),
    "around a vector environment": (around, []),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_wrapper_that_keeps_statistics_is_refused(name: str) -> None:
    source, wrappers = SOURCES[name]
    with pytest.raises(TrainingError, match=r"^the wrapper Normalize\w+ keeps running statistics"):
        environments.make(source, 2, wrappers=wrappers)


def test_the_refusal_says_that_the_network_normalizes() -> None:
    with pytest.raises(TrainingError, match=r"leave it out; .*\(normalize_observations\)"):
        remotely_rl.check(lambda: cart(NormalizeObservation))


def test_statistics_that_do_not_change_are_the_same_everywhere() -> None:
    def fixed() -> Any:
        env: Any = cart(NormalizeObservation)
        env.update_running_mean = False
        return env

    environments.make(fixed, 2).close()


@pytest.mark.usefixtures("local")
def test_a_run_is_refused_before_it_begins(tmp_path: Any) -> None:
    config = ppo.Config(env=CART, wrappers=[NormalizeReward], total_steps=10)
    with pytest.raises(TrainingError, match="returns stay those of the environment"):
        ppo.train(config, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
