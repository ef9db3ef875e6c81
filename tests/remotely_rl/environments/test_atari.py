"""Atari games and their preprocessing."""

import numpy as np

from remotely_rl import environments
from remotely_rl.environments import Atari, Episode
from tests.remotely_rl.toys import play


def test_the_same_seed_and_actions_give_the_same_observations() -> None:
    def run() -> list[np.ndarray]:
        envs = environments.make("ALE/Pong-v5", 2, Atari(image_size=42))
        obs = [envs.reset(7)]
        obs += [envs.step(np.array([t % 6, 5 - t % 6])).obs for t in range(30)]
        envs.close()
        return obs

    for one, other in zip(run(), run(), strict=True):
        assert (one == other).all()


def test_atari_games_that_need_fire_are_started_at_reset() -> None:
    envs = environments.make("ALE/Breakout-v5", 1)
    before = envs.reset(3)
    after = envs.step(np.zeros(1, np.int64)).obs  # a no-op: the ball moves by itself
    envs.close()
    assert (before[:, -1] != after[:, -1]).any()


def test_atari_games_are_decorrelated_with_and_without_lives() -> None:
    for lives in (False, True):
        envs = environments.make("ALE/Breakout-v5", 2, Atari(42, life_loss_is_terminal=lives))
        envs.reset(3)
        envs.decorrelate(30, [np.random.default_rng(3)])
        rng = np.random.default_rng(4)
        while not (games := envs.pop_episodes()):
            row = envs.step(rng.integers(0, 4, 2))
        assert row.obs.shape == (2, 4, 42, 42)
        assert games[0].length > 20  # a game, not a life
        envs.close()


def test_an_atari_game_has_correct_scores_and_lengths_and_one_reset_row() -> None:
    envs = environments.make("ALE/Breakout-v5", 1, Atari(image_size=42))
    assert envs.spec.shape == (4, 42, 42)
    envs.reset(3)
    rng = np.random.default_rng(3)
    score, length, ended = 0.0, 0, False
    while not (games := envs.pop_episodes()):
        row = envs.step(rng.integers(0, 4, 1))
        score, length, ended = score + row.reward.item(), length + 1, row.terminated.item()
    assert ended
    assert games == [Episode(score, length)]
    assert [row.valid.item() for row in play(envs, 2)] == [False, True]
    envs.close()


def test_a_lost_life_ends_only_the_learners_episode() -> None:
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
    assert lost == [True] * 4 + [False]  # a lost life continues the game; the fifth resets it
    assert len(games) == 1
    envs.close()
