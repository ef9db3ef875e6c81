"""Tests of Actor in this process."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from remotely_rl import TrainingError, networks, ppo
from remotely_rl.acting.actor import Actor, Parameters
from remotely_rl.acting.player import Player
from remotely_rl.config import Common
from remotely_rl.environments import Episode
from remotely_rl.experience.trajectory import Trajectory
from tests.remotely_rl import toys

CONFIG = Common(env=toys.Guess, envs_per_actor=4, rollout_steps=6)
COUNTING = dataclasses.replace(CONFIG, env=toys.Counting)


def remembering(outputs: int = 2) -> networks.RecurrentMLP:
    """Return a recurrent model whose heads are not close to zero, as they are initially."""
    torch.manual_seed(0)
    model = networks.RecurrentMLP((2,), outputs, units=5)
    for head in (model.policy, model.value):
        nn.init.normal_(head.weight)
    return model


def assert_same(one: Trajectory, other: Trajectory) -> None:
    for field in dataclasses.fields(Trajectory):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert (a == b).all(), field.name


def test_a_rollout_continues_where_the_last_one_ended() -> None:
    sampler = toys.actor(COUNTING, toys.network(1))
    first, second = sampler.sample().trajectory, sampler.sample().trajectory
    assert first.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2]  # episodes of 3, and a reset row
    assert first.valid[:, 0].tolist() == [True, True, True, False, True, True]
    assert first.begins[:, 0].tolist() == [True, False, False, False, True, False, False]
    assert first.reward[:, 0].tolist() == [10, 20, 30, 0, 10, 20]  # raw
    assert first.state.shape == (4, 0)  # not recurrent
    assert second.obs[:, 0, 0].tolist() == [2, 3, 0, 1, 2, 3, 0]
    assert second.valid[:, 0].tolist() == [True, False, True, True, True, False]
    assert second.begins[:, 0].tolist() == [False, False, True, False, False, False, True]


def test_with_resets_in_pause_an_ended_environment_waits_for_the_next_rollout() -> None:
    config = ppo.Config(env=toys.Counting, envs_per_actor=4, rollout_steps=6, resets="in_pause")
    sampler = toys.actor(config, toys.network(1))
    first, second = sampler.sample(), sampler.sample()
    seen = first.trajectory
    assert seen.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert seen.valid[:, 0].tolist() == [True, True, True, False, False, False]
    assert seen.terminated[:, 0].tolist() == [False, False, True, False, False, False]
    assert seen.reward[:, 0].tolist() == [10, 20, 30, 0, 0, 0]
    assert first.episodes == [Episode(60.0, 3)] * 4
    assert second.trajectory.obs[:, 0, 0].tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert second.trajectory.begins[:, 0].tolist() == [True] + [False] * 6


def test_environments_that_cannot_wait_for_the_pause_are_refused(tmp_path: Path) -> None:
    for env in ("ALE/Pong-v5", toys.counting_vector):
        with pytest.raises(TrainingError, match="cannot wait for the pause: set resets=at_once"):
            ppo.train(ppo.Config(env=env, resets="in_pause"), run=tmp_path / "run")
    with pytest.raises(TrainingError, match="resets must be at_once or in_pause, not 'now'"):
        ppo.Config(resets="now")
    assert not (tmp_path / "run").exists()


def test_a_rollout_has_its_episodes_its_seconds_and_the_version_of_the_parameters() -> None:
    model = toys.network(1)
    sampler = toys.actor(COUNTING, model)
    sampler.set_param(Parameters(7, networks.state_of(model)))
    rollout = sampler.sample()
    assert rollout.trajectory.version.tolist() == [7] * 4
    assert rollout.episodes == [Episode(60.0, 3)] * 4
    assert rollout.steps == 5 * 4  # six rows, one of which resets
    assert rollout.seconds.keys() == {"environment", "inference", "idle"}
    assert all(spent >= 0 for spent in rollout.seconds.values())


def test_log_probabilities_are_those_of_the_acting_policy() -> None:
    model = toys.network()
    with torch.no_grad():
        model.policy.bias.copy_(torch.tensor([0.0, math.log(3.0)]))
        model.policy.weight.zero_()
    played = toys.actor(CONFIG, model, rollout_steps=500).sample().trajectory
    want = np.where(played.action == 1, 0.75, 0.25)
    np.testing.assert_allclose(np.exp(played.log_prob), want, rtol=1e-5)
    assert abs((played.action == 1).mean() - 0.75) < 0.05


@torch.no_grad()
def test_values_are_those_of_all_observations_including_the_last() -> None:
    model = toys.network(1)
    played = toys.actor(COUNTING, model).sample().trajectory
    _, value = model(torch.from_numpy(played.obs).flatten(0, 1))
    assert played.value.shape == (7, 4)
    torch.testing.assert_close(torch.from_numpy(played.value), value.view(7, 4))


@torch.no_grad()
def test_a_truncated_step_is_followed_by_the_value_of_its_last_observation() -> None:
    model = toys.network(1)
    env = lambda: toys.Counting(length=2, truncates=True)
    played = toys.actor(CONFIG, model, env=env).sample().trajectory
    assert played.truncated[:, 0].tolist() == [False, True, False, False, True, False]
    of_two = model(torch.tensor([[2.0]]))[1].item()  # the toy observes its step
    # One row and many differ in the last bits of the layers' sums, depending on the processor.
    assert played.value[2, 0] == played.value[5, 0] == pytest.approx(of_two, abs=1e-6)


def test_the_seed_determines_the_samples() -> None:
    model = toys.network()
    one, same, other = (toys.actor(CONFIG, model, seed) for seed in (5, 5, 6))
    assert_same(one.sample().trajectory, same.sample().trajectory)
    assert (one.sample().trajectory.action != other.sample().trajectory.action).any()


def test_parameters_apply_from_the_next_rollout_once_they_are_sent() -> None:
    model = toys.network()
    sampler = toys.actor(CONFIG, model)
    nn.init.constant_(model.value.bias, 50.0)
    assert sampler.sample().trajectory.value.max() < 40  # the actor has its own copy
    sampler.set_param(Parameters(1, networks.state_of(model)))
    assert sampler.sample().trajectory.value.min() > 40


def test_the_parameters_of_another_model_are_refused() -> None:
    sampler = toys.actor(CONFIG, toys.network())
    with pytest.raises(ValueError, match="parameters of another model"):
        sampler.set_param(Parameters(1, networks.state_of(remembering())))


def test_a_random_start_decorrelates_the_environments_of_an_actor() -> None:
    long = lambda: toys.Counting(length=50)
    played = toys.actor(CONFIG, toys.network(1), env=long, random_start=30).sample()
    assert len(set(played.trajectory.obs[0, :, 0])) > 1
    assert played.episodes == []


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.MultiDiscrete([2, 3], start=[4, 5]), np.int64),
        (spaces.Box(-3, 3, (1, 2), np.float32), np.float32),
    ],
    ids=str,
)
def test_trajectories_have_actions_as_the_policy_drew_them(
    space: gymnasium.Space[Any], dtype: type[np.generic]
) -> None:
    env = lambda: toys.Echo(space)
    player = Player.here(dataclasses.replace(CONFIG, env=env), seed=1)
    model = toys.network(2, player.envs.actions.outputs)
    sampler = toys.actor(CONFIG, model, env=env)
    played = sampler.sample().trajectory
    assert played.action.shape == (6, 4, 2)
    assert played.action.dtype == dtype
    # The toy observes its last action.
    want = player.envs.actions.to_environment(played.action[0])
    np.testing.assert_allclose(played.obs[1], want.reshape(4, 2), rtol=1e-6)


@torch.no_grad()
def test_a_trajectory_has_the_recurrent_state_before_its_first_observation() -> None:
    model = remembering()
    sampler = toys.actor(CONFIG, model)
    first, second = sampler.sample().trajectory, sampler.sample().trajectory
    assert (first.state == 0).all()
    obs, begins = torch.from_numpy(first.obs[:-1]), torch.from_numpy(first.begins[:-1])
    _, _, after = model(obs, model.initial_state(4), begins)
    torch.testing.assert_close(torch.from_numpy(second.state), after)
    assert (second.state != 0).any()


@torch.no_grad()
def test_a_learner_recomputes_the_log_probabilities_and_values_of_the_actor() -> None:
    model = remembering()
    sampler = toys.actor(CONFIG, model)
    for _ in range(3):
        played = sampler.sample().trajectory
        policy, value, _ = networks.unroll(
            model, *map(torch.from_numpy, (played.obs, played.state, played.begins))
        )
        log_prob = sampler.envs.actions.log_prob(policy[:-1], torch.from_numpy(played.action))
        torch.testing.assert_close(torch.from_numpy(played.log_prob), log_prob)
        torch.testing.assert_close(torch.from_numpy(played.value), value)


@pytest.mark.parametrize("model", [toys.network(), remembering()], ids=["plain", "recurrent"])
def test_pausing_changes_nothing_and_a_resumed_actor_continues_exactly(model: nn.Module) -> None:
    straight, paused = toys.actor(CONFIG, model), toys.actor(CONFIG, model)
    for one in (straight, paused):
        one.sample()
    kept = paused.pause()
    resumed = toys.actor(CONFIG, model, seed=77)
    resumed.sample()
    assert resumed.resume(kept)
    for _ in range(3):
        want = straight.sample().trajectory
        assert_same(want, paused.sample().trajectory)
        assert_same(want, resumed.sample().trajectory)


def test_a_resumed_actor_may_have_another_rollout_length() -> None:
    model = toys.network(1)
    first = toys.actor(COUNTING, model, rollout_steps=2)
    first.sample()
    longer = toys.actor(COUNTING, model, rollout_steps=5)
    assert longer.resume(first.pause())
    assert longer.sample().trajectory.obs[:, 0, 0].tolist() == [2, 3, 0, 1, 2, 3]


def test_a_state_that_does_not_fit_or_cannot_be_read_leaves_the_actor_unchanged() -> None:
    model = toys.network()
    other_version, sampler, fresh = (toys.actor(CONFIG, model, seed=3) for _ in range(3))
    assert not sampler.resume(toys.actor(CONFIG, model, envs_per_actor=3).pause())
    assert not sampler.resume(sampler.pause()[:100])
    del other_version.envs.agents
    assert not sampler.resume(other_version.pause())
    assert_same(sampler.sample().trajectory, fresh.sample().trajectory)


def test_games_that_span_a_pause_are_counted_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = toys.network(1)
    long = lambda: toys.Counting(length=9)
    sampler = toys.actor(CONFIG, model, env=long)
    sampler.sample()
    kept = sampler.pause()
    later = time.perf_counter() + 5000  # as if the machine had been off
    monkeypatch.setattr(time, "perf_counter", lambda: later)
    sampler.resume(kept)
    rollout = sampler.sample()
    assert rollout.episodes == [Episode(450.0, 9)] * 4
    assert rollout.seconds["idle"] < 100  # the pause does not count


@pytest.mark.parametrize("env", [toys.Unsaveable, "ALE/Pong-v5"], ids=["own", "Atari"])
def test_environments_that_cannot_be_pickled_have_an_empty_state(env: Any) -> None:
    class Blind(networks.MLP):
        def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(len(obs), 6), torch.zeros(len(obs))

    sampler = toys.actor(CONFIG, Blind((2,), 6), env=env, envs_per_actor=1)
    assert sampler.pause() == b""
    sampler.close()


def test_closing_an_actor_closes_its_environments() -> None:
    closed: list[int] = []

    class Closing(toys.Guess):
        def close(self) -> None:
            closed.append(1)

    sampler: Actor = toys.actor(CONFIG, toys.network(), env=Closing)
    sampler.close()
    assert len(closed) == 4
