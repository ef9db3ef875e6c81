"""One contract, whatever the environments come from."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from remotely_rl.environments import environments
from remotely_rl.environments.environments import Atari, Environments, Episode
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys


def play(envs: Environments, steps: int) -> list[environments.Step]:
    """`steps` steps of no-ops.  The observation of row t is that of step t - 1."""
    return [envs.step(np.zeros(envs.num_envs, np.int64)) for _ in range(steps)]


@pytest.mark.parametrize("truncates", [False, True])
def test_the_row_that_resets_is_no_experience_and_belongs_to_no_episode(truncates: bool) -> None:
    envs = Environments(toys.vector(toys.Counting, 1, AutoresetMode.NEXT_STEP, truncates=truncates))
    assert envs.reset(1).tolist() == [[0.0]]
    rows = play(envs, 8)
    assert [row.obs.item() for row in rows] == [1, 2, 3, 0, 1, 2, 3, 0]
    assert [row.valid.item() for row in rows] == [True, True, True, False] * 2
    assert [row.truncated.item() for row in rows] == [False, False, truncates, False] * 2
    assert [row.terminated.item() for row in rows] == [False, False, not truncates, False] * 2
    assert [row.begins.item() for row in rows] == [False, False, False, True] * 2
    assert envs.pop_episodes() == [Episode(60.0, 3)] * 2
    assert envs.pop_episodes() == []


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("truncates", [False, True])
def test_where_the_last_observation_is_lost_only_a_truncated_row_is_given_up(
    mode: AutoresetMode, truncates: bool
) -> None:
    envs = Environments(toys.vector(toys.Counting, 1, mode, truncates=truncates))
    envs.reset(1)
    rows = play(envs, 6)
    assert [row.obs.item() for row in rows] == [1, 2, 0, 1, 2, 0]
    assert [row.valid.item() for row in rows] == [True, True, not truncates] * 2
    assert [row.begins.item() for row in rows] == [False, False, True] * 2
    assert envs.pop_episodes() == [Episode(60.0, 3)] * 2


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_row_that_is_both_terminated_and_truncated_keeps_its_last_reward(
    mode: AutoresetMode,
) -> None:
    envs = Environments(toys.vector(toys.EndsBothWays, 1, mode))
    envs.reset(1)
    last = play(envs, 3)[-1]
    assert (last.terminated.item(), last.truncated.item()) == (True, True)
    assert last.reward.item() == 30.0
    assert last.valid.item()


def test_rewards_are_raw() -> None:
    envs = Environments(toys.vector(toys.Counting, 1, AutoresetMode.NEXT_STEP))
    envs.reset(1)
    assert [row.reward.item() for row in play(envs, 3)] == [10.0, 20.0, 30.0]


def test_actions_count_from_zero_whatever_the_environment_calls_them() -> None:
    envs = environments.make(toys.FromFive, 2)
    envs.reset(1)
    envs.step(np.array([0, 1]))  # the toy asserts that it got 5 and 6


@pytest.mark.parametrize(
    ("space", "action", "arrives"),
    [
        (spaces.MultiDiscrete([2, 3], start=[1, 5]), [[0, 2], [1, 0]], [[1, 7], [2, 5]]),
        (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 1], [1, 1]]),
        (
            spaces.Box(np.array([0, -2], np.float32), np.array([10, 2], np.float32)),
            [[-1.0, 0.5], [9.0, -9.0]],
            [[0, 1], [10, -2]],
        ),
        (spaces.Box(-4, 4, (1, 2), np.float32), [[0.0, 0.5], [-1.0, 1.0]], [[0, 2], [-4, 4]]),
    ],
    ids=str,
)
def test_actions_of_every_kind_arrive_at_their_own_environment(
    space: gymnasium.Space[object], action: list[list[float]], arrives: list[list[float]]
) -> None:
    envs = environments.make(lambda: toys.Echo(space), 2)
    envs.reset(1)
    row = envs.step(np.array(action, envs.actions.dtype))  # the toy asserts that it fits its space
    assert row.obs.tolist() == arrives


def test_images_come_with_their_channels_first_and_as_bytes() -> None:
    envs = environments.make(toys.Picture, 2)
    assert envs.observation_shape == (3, 8, 9)
    assert envs.dtype == np.uint8
    envs.reset(1)
    (row,) = play(envs, 1)
    assert row.obs.shape == (2, 3, 8, 9)
    assert row.obs.dtype == np.uint8
    assert row.obs[:, 1].min() == 1
    assert row.obs[:, 0].max() == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("space", "shape"),
    [
        ((84, 84, 12), (12, 84, 84)),  # four frames in colour
        ((12, 84, 84), (12, 84, 84)),
        ((210, 160, 3), (3, 210, 160)),
        ((4, 84, 84), (4, 84, 84)),
        ((8, 20, 8), (8, 20, 8)),  # either: taken as they are
    ],
)
def test_the_smaller_of_the_first_and_the_last_axis_of_an_image_are_its_channels(
    space: tuple[int, int, int], shape: tuple[int, int, int], dtype: type[np.generic]
) -> None:
    envs = environments.make(lambda: toys.Blank(gymnasium.spaces.Box(0, 1, space, dtype)), 2)
    assert envs.observation_shape == shape
    assert envs.reset(1).shape == (2, *shape)
    assert play(envs, 1)[0].obs.dtype == envs.dtype == dtype


@pytest.mark.parametrize(
    ("env_id", "shape"), [("CartPole-v1", (4,)), ("FrozenLake-v1", (16,)), ("Blackjack-v1", (45,))]
)
def test_any_space_of_observations_becomes_one_array(env_id: str, shape: tuple[int, ...]) -> None:
    envs = environments.make(env_id, 2)
    assert envs.observation_shape == shape
    assert envs.reset(1).shape == (2, *shape)
    assert play(envs, 1)[0].obs.dtype == envs.dtype == np.float32
    envs.close()


def test_the_users_own_vector_environment_is_taken_as_it_is() -> None:
    envs = environments.make(toys.counting_vector, 3)
    assert envs.num_envs == 3
    assert envs.reset(1).shape == (3, 1)


def test_the_same_seed_and_actions_give_the_same_observations() -> None:
    def run() -> list[np.ndarray]:
        envs = environments.make("ALE/Pong-v5", 2, Atari(image_size=42))
        obs = [envs.reset(7)]
        obs += [envs.step(np.array([t % 6, 5 - t % 6])).obs for t in range(30)]
        envs.close()
        return obs

    for one, other in zip(run(), run(), strict=True):
        assert (one == other).all()


def test_atari_games_that_wait_for_fire_are_started_at_reset() -> None:
    envs = environments.make("ALE/Breakout-v5", 1)
    before = envs.reset(3)
    after = envs.step(np.zeros(1, np.int64)).obs  # a no-op: the ball moves by itself
    envs.close()
    assert (before[:, -1] != after[:, -1]).any()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_environments_that_are_set_apart_are_at_different_moments(mode: AutoresetMode) -> None:
    envs = Environments(toys.vector(toys.Counting, 12, mode, length=9))
    together = envs.reset(1)
    assert len(set(together[:, 0])) == 1
    obs = envs.set_apart(20, np.random.default_rng(3))
    assert len(set(obs[:, 0])) >= 5
    step = envs.step(np.zeros(12, np.int64)).obs  # it goes on from there
    goes_on = (step == obs + 1) | (step == 0)
    assert goes_on.all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_what_is_played_to_set_them_apart_is_nobodys_score(mode: AutoresetMode) -> None:
    envs = Environments(toys.vector(toys.Counting, 12, mode, length=9))
    envs.reset(1)
    envs.set_apart(30, np.random.default_rng(3))  # several games end meanwhile
    assert envs.pop_episodes() == []
    play(envs, 10)
    games = envs.pop_episodes()
    assert len(games) >= 12
    assert set(games) == {Episode(450.0, 9)}  # 10 + 20 + ... + 90, though begun before


def test_the_same_lots_set_them_apart_in_the_same_way() -> None:
    def moments(seed: int) -> list[float]:
        envs = environments.make(lambda: toys.Counting(9), 12)
        envs.reset(1)
        return list(envs.set_apart(20, np.random.default_rng(seed))[:, 0])

    assert moments(3) == moments(3) != moments(4)


def test_atari_games_are_set_apart_too_and_those_with_lives() -> None:
    for lives in (False, True):
        envs = environments.make("ALE/Breakout-v5", 2, Atari(42, life_loss_is_terminal=lives))
        envs.reset(3)
        envs.set_apart(30, np.random.default_rng(3))
        rng = np.random.default_rng(4)
        while not (games := envs.pop_episodes()):
            row = envs.step(rng.integers(0, 4, 2))
        assert row.obs.shape == (2, 4, 42, 42)
        assert games[0].length > 20  # a game, not a life
        envs.close()


def test_environments_that_only_begin_all_together_cannot_be_set_apart() -> None:
    class Together(SyncVectorEnv):
        def reset(self, *, seed: object = None, options: object = None) -> Any:
            if options is not None:
                raise TypeError("no options")
            return super().reset()

    envs = Environments(Together([toys.Counting] * 2))
    envs.reset(1)
    with pytest.raises(TrainingError, match="random_start needs environments that can be reset"):
        envs.set_apart(5, np.random.default_rng(1))


def test_an_atari_game_has_true_scores_and_lengths_and_one_reset_row() -> None:
    envs = environments.make("ALE/Breakout-v5", 1, Atari(image_size=42))
    assert envs.observation_shape == (4, 42, 42)
    envs.reset(3)
    rng = np.random.default_rng(3)
    score, length, ended = 0.0, 0, False
    while not envs._episodes:
        row = envs.step(rng.integers(0, 4, 1))
        score, length, ended = score + row.reward.item(), length + 1, row.terminated.item()
    assert ended
    assert envs.pop_episodes() == [Episode(score, length)]
    assert [row.valid.item() for row in play(envs, 2)] == [False, True]
    envs.close()


def test_a_lost_life_ends_nothing_but_the_learners_episode() -> None:
    envs = environments.make("ALE/Breakout-v5", 1, Atari(42, life_loss_is_terminal=True))
    envs.reset(3)
    rng = np.random.default_rng(3)
    ends, lost, after_end = 0, [], False
    while not (games := envs.pop_episodes()):
        row = envs.step(rng.integers(0, 4, 1))
        if after_end:
            lost.append(row.valid.item())
        after_end = row.terminated.item()
        ends += after_end
    assert ends == 5
    assert lost == [True] * 4 + [False]  # the game goes on after a life, and starts anew after 5
    assert len(games) == 1
    envs.close()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("pong", "ALE/Pong-v5"), ("ALE/Ponk-v5", "ALE/Pong-v5"), ("CartPole-v2", "CartPole-v1"),
     ("cartpole", "CartPole-v1")],
)  # fmt: skip
def test_an_unknown_id_is_answered_with_the_nearest_known(wrong: str, right: str) -> None:
    with pytest.raises(TrainingError, match=f"no environment is called '{wrong}', did you mean"):
        environments.make(wrong, 1)
    with pytest.raises(TrainingError, match=right):
        environments.make(wrong, 1)


def test_actions_that_no_policy_fits_are_refused_by_what_would() -> None:
    class Both(toys.Counting):
        action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])

    with pytest.raises(TrainingError, match=r"actions are Tuple\(.*what fits is Discrete, Multi"):
        environments.make(Both, 1)


def test_an_environment_that_lacks_a_package_says_which() -> None:
    with pytest.raises(TrainingError, match="cannot make 'no_such_module:Env-v0'"):
        environments.make("no_such_module:Env-v0", 1)


def test_a_callable_that_makes_no_environment_is_told_so() -> None:
    with pytest.raises(TrainingError, match=r"dict returned a dict where a gymnasium\.Env"):
        environments.make(dict, 1)
    with pytest.raises(TrainingError, match=r"VectorEnv is wanted"):
        environments.make(lambda num_envs: toys.Counting(), 2)
