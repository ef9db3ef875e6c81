"""One contract, whatever the environments come from."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from remotely_rl import environments
from remotely_rl.environments import Atari, Environments, Episode
from remotely_rl.errors import TrainingError
from tests.remotely_rl import toys

NOOP = np.zeros(1, np.int64)


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
    assert envs.pop_episodes() == [Episode(60.0, 3)] * 2


def test_rewards_are_raw() -> None:
    envs = Environments(toys.vector(toys.Counting, 1, AutoresetMode.NEXT_STEP))
    envs.reset(1)
    assert [row.reward.item() for row in play(envs, 3)] == [10.0, 20.0, 30.0]


def test_actions_count_from_zero_whatever_the_environment_calls_them() -> None:
    envs = environments.make(toys.FromFive, 2)
    envs.reset(1)
    envs.step(np.array([0, 1]))  # the toy asserts that it got 5 and 6


def test_images_come_with_their_channels_first_and_as_bytes() -> None:
    envs = environments.make(toys.Picture, 2)
    assert envs.observation_shape == (3, 8, 9)
    envs.reset(1)
    (row,) = play(envs, 1)
    assert row.obs.shape == (2, 3, 8, 9)
    assert row.obs.dtype == np.uint8
    assert row.obs[:, 1].min() == 1
    assert row.obs[:, 0].max() == 0


@pytest.mark.parametrize(
    ("env_id", "shape"), [("CartPole-v1", (4,)), ("FrozenLake-v1", (16,)), ("Blackjack-v1", (45,))]
)
def test_any_space_of_observations_becomes_one_array(env_id: str, shape: tuple[int, ...]) -> None:
    envs = environments.make(env_id, 2)
    assert envs.observation_shape == shape
    assert envs.reset(1).shape == (2, *shape)
    assert play(envs, 1)[0].obs.dtype == np.float32
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


def test_actions_that_cannot_be_driven_are_refused_by_what_would_fit() -> None:
    with pytest.raises(TrainingError, match=r"are Box\(.*only Discrete actions"):
        environments.make(toys.Continuous, 1)


def test_an_environment_that_lacks_a_package_says_which() -> None:
    with pytest.raises(TrainingError, match="cannot make 'no_such_module:Env-v0'"):
        environments.make("no_such_module:Env-v0", 1)


def test_a_callable_that_makes_no_environment_is_told_so() -> None:
    with pytest.raises(TrainingError, match=r"dict returned a dict where a gymnasium\.Env"):
        environments.make(dict, 1)
    with pytest.raises(TrainingError, match=r"VectorEnv is wanted"):
        environments.make(lambda num_envs: toys.Counting(), 2)
