"""Turn-based games as environments of one player."""

import functools
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np
import pytest

from remotely_rl.environments import Environments, Episode
from remotely_rl.environments.turn_based import Choice, Turn, TurnBased
from remotely_rl.errors import TrainingError
from tests.remotely_rl.agent_toys import Race


class Diary:
    """An opponent that always takes one step and records its observations."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.asked: list[list[int]] = []
        self.turns: list[Turn] = []

    def begin(self, game: int, random: np.random.Generator) -> None:
        self.begun.append(game)

    def act(
        self, games: Sequence[int], turns: Sequence[Turn], random: np.random.Generator
    ) -> Sequence[Any]:
        self.asked.append(list(games))
        self.turns += turns
        return [0] * len(games)


def begun(opponent: Any, count: int = 1, **race: Any) -> Environments:
    envs = Environments(TurnBased(functools.partial(Race, **race), count, opponent))
    envs.reset(1)
    return envs


def left(row: Any) -> list[float]:
    """Return the remaining distance of each game."""
    numbers: list[float] = row["observation"]["observation"][:, 0].tolist()
    return numbers


def test_a_step_is_the_learners_move_and_the_others_moves_until_its_next_turn() -> None:
    envs = begun(Diary(), length=7)
    assert left(envs.step(np.array([1])).obs) == [
        4.0
    ]  # two steps of the learner and one of the opponent
    envs = begun(Diary(), length=9, players=3)
    assert left(envs.step(np.array([1])).obs) == [5.0]


def test_the_learners_seat_changes_with_each_game() -> None:
    envs = begun(Diary(), count=2, length=3)
    vector: Any = envs.vector
    games = vector.games
    for _ in range(12):
        envs.step(np.array([0, 0]))
    seats = [[who for who, _ in game.moves] for game in games]
    assert seats[0][:3] == seats[1][:3] == ["player_0", "player_1", "player_0"]
    # The player who begins wins; the learner begins every second game.
    scores = [
        [episode.score for g, episode in envs.pop_episodes_by_environment() if g == which]
        for which in (0, 1)
    ]
    assert not scores[1] or scores[0] != scores[1]


def test_the_reward_of_the_last_step_is_the_result_of_the_game() -> None:
    envs = begun(Diary(), count=2, length=3)
    # The opponent began the second game: 2 are left, and both win at once.
    assert left(envs.reset(1)) == [3.0, 2.0]
    row = envs.step(np.array([2, 1]))
    assert row.reward.tolist() == [1.0, 1.0]
    assert row.terminated.all()
    envs = begun(Diary(), length=2)
    row = envs.step(np.array([0]))
    assert (row.reward.item(), row.terminated.item()) == (-1.0, True)
    assert envs.pop_episodes() == [Episode(-1.0, 1)]


def test_the_step_after_the_end_is_a_reset() -> None:
    envs = begun(Diary(), length=2)
    rows = [envs.step(np.array([0])) for _ in range(3)]
    assert [row.valid.item() for row in rows] == [True, False, True]
    assert [row.begins.item() for row in rows] == [False, True, False]
    assert left(rows[1].obs) == [1.0]  # the opponent begins


@pytest.mark.parametrize("masks_in_info", [False, True])
def test_the_learner_and_the_opponent_receive_masks(masks_in_info: bool) -> None:
    diary = Diary()
    envs = begun(diary, length=4, masks_in_info=masks_in_info)
    row = envs.step(np.array([0]))
    assert row.obs["action_mask"].tolist() == [[True, True, False]]
    assert [turn.mask.tolist() for turn in diary.turns] == [[1, 1, 1]]


def test_the_opponent_acts_in_one_batch_for_all_games() -> None:
    diary = Diary()
    envs = begun(diary, count=3, length=9)
    assert sorted(diary.begun) == [0, 1, 2]
    assert diary.asked == [[1]]  # it begins there
    envs.step(np.zeros(3, np.int64))
    assert diary.asked[1] == [0, 1, 2]


def test_a_game_that_ends_before_the_learners_turn_is_not_an_episode() -> None:
    envs = begun(Diary(), count=2, length=1)  # the player who begins wins
    rows = [envs.step(np.zeros(2, np.int64)) for _ in range(5)]
    assert [row.valid[0].item() for row in rows] == [True, False, False, True, False]
    assert [row.valid[1].item() for row in rows] == [False, True, False, False, True]
    assert envs.pop_episodes() == [Episode(1.0, 1)] * 4


def test_an_opponent_may_be_a_function_of_the_observation() -> None:
    def whole(obs: Any, mask: Any, random: np.random.Generator) -> int:
        assert obs["action_mask"] is mask
        return int(np.flatnonzero(mask)[-1])

    envs = begun(Choice(whole), length=7)
    assert left(envs.step(np.array([0])).obs) == [3.0]


def test_pickled_games_continue_where_they_were() -> None:
    envs = begun(Choice(lambda obs, mask, random: random.integers(mask.sum())), count=4, length=30)
    copy = cloudpickle.loads(cloudpickle.dumps(envs))
    for _ in range(20):
        one, other = (envs.step(np.zeros(4, np.int64)) for envs in (envs, copy))
        assert left(one.obs) == left(other.obs)


def test_an_observation_outside_its_space_is_rejected_with_the_players_name() -> None:
    class Longer(Race):
        def last(self) -> Any:
            obs, *rest = super().last()
            return {**obs, "observation": np.zeros(2, np.float32)}, *rest

    with pytest.raises(TrainingError, match=r"player 'player_0': .* has shape \(2,\)"):
        Environments(TurnBased(Longer, 1, Diary())).reset(1)
