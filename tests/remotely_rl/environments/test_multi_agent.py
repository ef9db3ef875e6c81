"""Games of several agents as rows of a vector environment."""

import functools
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from remotely_rl import MultiAgent, SelfPlay, environments
from remotely_rl.environments import Environments, Episode, name_of
from remotely_rl.errors import TrainingError
from tests.remotely_rl.agent_toys import Party, Race


def playing(script: str, count: int = 1, **more: Any) -> Environments:
    """Return `count` games of this script after a reset."""
    separate = more.pop("separate", False)
    make = functools.partial(Party, script, **more)
    envs = environments.make(MultiAgent(make, separate=separate), count)
    envs.reset(1)
    return envs


def games_of(envs: Environments) -> list[Party]:
    vector: Any = envs.vector
    games: list[Party] = vector.games
    return games


def play(envs: Environments, steps: int) -> list[environments.Step]:
    return [envs.step(np.arange(envs.num_envs) % 3) for _ in range(steps)]


def bits(rows: list[environments.Step], field: str) -> list[str]:
    """Return a word for each step, with a digit for each agent."""
    return ["".join(str(int(bit)) for bit in getattr(row, field)) for row in rows]


def test_each_agent_has_its_own_row() -> None:
    envs = playing("abc abc ABC", count=2)
    assert envs.num_envs == 6
    first, last = play(envs, 2)
    assert first.obs.tolist() == [[1, 0], [1, 1], [1, 2]] * 2
    assert first.reward.tolist() == [1, 101, 1] * 2
    assert last.obs.tolist() == [[2, 0], [2, 1], [2, 2]] * 2
    assert bits([first, last], "terminated") == ["000000", "111111"]
    assert [game.taken for game in games_of(envs)] == [[{"a": 0, "b": 1, "c": 2}] * 2] * 2


class Levelled(Party):
    level: Any = 1


class Layered:
    """A wrapper as PettingZoo's, which passes on what is read of it, and not what is set."""

    def __init__(self, game: Any):
        self.env = game

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class Converted(Party):
    """A game that another one plays, as those of `aec_to_parallel` are."""

    def __init__(self, script: str):
        super().__init__(script)
        self.unwrapped = Levelled(script)


@pytest.mark.parametrize(
    ("make", "inner"),
    [
        (Levelled, lambda game: game),
        (lambda script: Layered(Layered(Levelled(script))), lambda game: game.env.env),
        (Converted, lambda game: game.unwrapped),
    ],
)
def test_an_attribute_is_set_in_each_game_beneath_its_wrappers(make: Any, inner: Any) -> None:
    envs = environments.make(MultiAgent(functools.partial(make, "abc abc ABC")), 2)
    envs.set_attributes({"level": [2]})
    values = [inner(game).level for game in games_of(envs)]
    assert values == [[2], [2]]
    assert values[0] is not values[1]
    with pytest.raises(TrainingError, match="have no attribute 'levle' that can be set"):
        envs.set_attributes({"levle": 3})


def test_random_play_has_the_observations_of_agents_that_are_there() -> None:
    envs = playing("ac aC A", count=2)
    seen = [obs.tolist() for obs in envs.play_randomly(4, seed=1)]
    assert seen == [[[0, 0], [0, 2]] * 2, [[1, 0]] * 2, [], [[0, 0], [0, 2]] * 2]


def test_the_step_after_the_last_agent_ended_resets_the_game() -> None:
    rows = play(playing("abc abc ABC"), 6)
    assert bits(rows, "valid") == ["111", "111", "000"] * 2
    assert bits(rows, "begins") == ["000", "000", "111"] * 2
    assert [row.obs[0, 0] for row in rows] == [1, 2, 0] * 2


def test_a_dead_agent_has_no_experience_until_the_next_game() -> None:
    envs = playing("abc aBc ac AC")
    rows = play(envs, 5)
    assert bits(rows, "terminated")[:3] == ["010", "010", "111"]
    assert bits(rows, "valid") == ["111", "101", "101", "000", "111"]
    assert rows[1].reward.tolist() == [2, 0, 2]
    assert games_of(envs)[0].taken[1].keys() == {"a", "c"}


def test_an_agent_that_appears_starts_an_episode() -> None:
    rows = play(playing("ab abc abc ABC"), 3)
    assert bits(rows, "valid") == ["110", "111", "111"]
    assert rows[0].begins.tolist() == [False, False, True]
    assert rows[0].obs[2].tolist() == [1, 2]
    assert bits(rows, "terminated") == ["000", "000", "111"]


def test_an_agent_may_come_back() -> None:
    rows = play(playing("ab Ab b ab AB"), 5)
    assert bits(rows, "valid") == ["110", "010", "010", "110", "000"]


def test_an_agent_that_disappears_is_truncated() -> None:
    rows = play(playing("abc ac AC"), 2)
    assert bits(rows, "truncated") == ["010", "000"]
    assert bits(rows, "valid") == ["111", "101"]
    assert rows[0].obs[1].tolist() == [0, 1]


def test_an_episode_is_a_game_whose_score_is_the_mean_of_its_agents() -> None:
    envs = playing("ab aBc ac AC", count=2)
    play(envs, 8)
    # c joins at the first step
    returns = {"return_a": 1 + 2 + 3, "return_b": 101, "return_c": 2 + 3}
    episode = Episode(float(np.mean(list(returns.values()))), 3, returns)
    assert envs.pop_episodes_by_environment() == [(0, episode), (1, episode)] * 2


def test_metrics_of_a_game_are_averaged_over_its_agents() -> None:
    class Tells(Party):
        def step(self, actions: Any) -> Any:
            *row, infos = super().step(actions)
            for agent in infos:
                infos[agent]["success"] = agent == "a"
            return *row, infos

    envs = environments.make(MultiAgent(Tells), 1)
    envs.reset(1)
    play(envs, 2)
    (episode,) = envs.pop_episodes()
    assert episode.metrics["success"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("separate", [False, True])
def test_only_acting_agents_have_masks(separate: bool) -> None:
    envs = playing("ab abc ABC", masked=True, separate=separate)
    (row, _) = play(envs, 2)
    assert row.obs["action_mask"].astype(int).tolist() == np.eye(3).tolist()
    seen = row.obs["observation"]
    assert ("agent_index" in seen) == separate
    mask = games_of(envs)[0].observe("a")["action_mask"]
    mask[:] = 0  # the observation is not a view
    assert row.obs["action_mask"].any(1).all()


def test_with_separate_each_observation_has_the_agents_index() -> None:
    (row,) = play(playing("abc ABC", count=2, separate=True), 1)
    assert row.obs["agent_index"].tolist() == [0, 1, 2] * 2
    assert row.obs["observation"].tolist() == [[1, 0], [1, 1], [1, 2]] * 2


def test_each_episode_has_its_own_reproducible_seed() -> None:
    seeds = []
    for _ in range(2):
        envs = playing("abc ABC", count=2)
        play(envs, 4)
        seeds.append([game.seeds for game in games_of(envs)])
    assert seeds[0] == seeds[1]
    assert [of_game[0] for of_game in seeds[0]] == [1, 4]
    assert len({seed for of_game in seeds[0] for seed in of_game}) == 6


def test_a_reset_mask_must_cover_whole_games() -> None:
    envs = playing("abc abc abc ABC", count=3)
    envs.decorrelate(3, [np.random.default_rng(3)])
    ages = [game.now for game in games_of(envs)]
    assert len(set(ages)) > 1
    half = np.array([True, False, False] * 3)
    with pytest.raises(ValueError, match="the agents of a game start together"):
        envs.vector.reset(options={"reset_mask": half})


def test_games_are_rendered_and_closed() -> None:
    envs = playing("abc abc ABC", count=2)
    play(envs, 1)
    pictures: Any = envs.vector.render()
    assert [picture[0, 0, 0] for picture in pictures] == [1, 1]
    assert envs.vector.metadata["render_fps"] == 7
    games = games_of(envs)
    envs.close()
    assert all(game.is_closed for game in games)


def test_pickled_games_continue_where_they_were() -> None:
    envs = playing("abc aBc ac AC")
    play(envs, 1)
    copy = cloudpickle.loads(cloudpickle.dumps(envs))
    here, there = play(envs, 4), play(copy, 4)
    for field in environments.Step._fields:
        for one, other in zip(here, there, strict=True):
            assert (getattr(one, field) == getattr(other, field)).all()


class Unnamed(Party):
    possible_agents = ()


class Mixed(Party):
    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return spaces.Discrete(4 if agent == "c" else 3)


class Lone(gymnasium.Env[Any, Any]):
    def close(self) -> None:
        pass


class Longer(Party):
    def observe(self, agent: str) -> Any:
        return np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Unnamed, "has no possible_agents, which must list all agents"),
        (Mixed, r"the actions of agent 'c' are Discrete\(4\), and those of 'a' Discrete\(3\)"),
        (Race, r"take turns \(an AECEnv\).*use its parallel_env, or pettingzoo.utils.aec_to_para"),
        (Lone, "is a gymnasium.Env, which has one agent"),
    ],
)
def test_anything_but_a_parallel_environment_is_rejected_with_a_hint(make: Any, says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        MultiAgent(make)


def test_an_observation_outside_its_space_is_rejected_with_the_agents_name() -> None:
    envs = environments.make(MultiAgent(Longer), 1)
    with pytest.raises(TrainingError, match=r"agent 'a': the observation has shape \(3,\)"):
        envs.reset(1)


@pytest.mark.parametrize(("make", "how"), [(Party, "MultiAgent"), (Race, "SelfPlay")])
def test_a_multi_agent_environment_as_env_is_rejected_with_a_hint(make: Any, how: str) -> None:
    with pytest.raises(TrainingError, match=rf"several agents.*env=remotely_rl.{how}\(...\)"):
        environments.make(make, 1)


def test_a_run_is_named_after_the_game() -> None:
    def parallel_env(players: int = 3) -> Party:
        game = Party()
        game.metadata = {"name": "party_v2"}
        return game

    assert name_of(MultiAgent(Party)) == "Party"
    assert name_of(MultiAgent(parallel_env)) == "party_v2"
    assert name_of(MultiAgent(functools.partial(parallel_env, players=2))) == "party_v2(players=2)"


@pytest.mark.parametrize("kind", [MultiAgent, SelfPlay])
def test_a_name_in_place_of_a_function_is_refused_in_a_sentence(kind: Any) -> None:
    with pytest.raises(TrainingError, match=r"takes a function .* not 'simple_spread_v3'"):
        kind("simple_spread_v3")
