"""Tests of the Connect Four example: the game and its minimax player."""

import functools
from typing import Any

import numpy as np
import pettingzoo
import pytest

from examples.self_play_connect_four import COLUMNS, ROWS, ConnectFour, has_four, minimax
from remotely_rl import SelfPlay
from remotely_rl.environments import name_of

THEIRS: Any = functools.partial(pettingzoo.make, "aec", "classic/connect_four-v3")


def position(text: str) -> Any:
    """Return the observation of player x; `text` has the lowest rows, the bottom one last."""
    rows = text.split()
    board = ["." * COLUMNS] * (ROWS - len(rows)) + rows
    planes = [[[cell == stone for stone in "xo"] for cell in row] for row in board]
    mask = [cell == "." for cell in board[0]]
    return {"observation": np.array(planes, np.int8), "action_mask": np.array(mask, np.int8)}


def chosen(text: str) -> set[int]:
    """Return the columns that minimax chooses in several tries."""
    seen, random = position(text), np.random.default_rng(1)
    return {minimax(seen, seen["action_mask"], random) for _ in range(5)}


def test_the_game_equals_pettingzoos_move_by_move() -> None:
    random, ours, theirs = np.random.default_rng(1), ConnectFour(), THEIRS()
    for agent in ours.possible_agents:
        assert ours.observation_space(agent) == theirs.observation_space(agent)
        assert ours.action_space(agent) == theirs.action_space(agent)
    for _ in range(30):
        ours.reset()
        theirs.reset()
        for agent in theirs.agent_iter():
            assert ours.agent_selection == agent
            (seen, *row, _), (expected, *theirs_row, _) = ours.last(), theirs.last()
            assert row == theirs_row
            assert (seen["observation"] == expected["observation"]).all()
            is_over = row[1]
            if not is_over:
                assert (seen["action_mask"] == expected["action_mask"]).all()
            move = None if is_over else int(random.choice(np.flatnonzero(seen["action_mask"])))
            ours.step(move)
            theirs.step(move)


def test_pettingzoos_game_can_be_played_too() -> None:
    envs = SelfPlay(THEIRS)(num_envs=3)
    obs, _ = envs.reset(seed=1)
    for _ in range(60):
        obs, reward, terminated, *_ = envs.step(obs["action_mask"].argmax(1))
        assert set(reward[~terminated]) <= {0.0}
    envs.close()
    assert name_of(SelfPlay(THEIRS)) == "connect_four_v3"


@pytest.mark.parametrize(
    ("board", "columns"),
    [
        ("xxx....", {3}),  # wins
        ("x...... x...... x......", {0}),
        ("ooo.... ", {3}),  # prevents a win
        ("..ooo.. ..xxx..", {1, 5}),  # wins on one side or the other
        ("o...... o...... oxx.xxx", {3}),  # wins instead of defending
    ],
)
def test_minimax_takes_the_decisive_move(board: str, columns: set[int]) -> None:
    assert chosen(board) <= columns


def test_has_four_finds_lines_in_each_direction_but_not_across_the_edge() -> None:
    stones = {
        name: sum(1 << (column * 7 + row) for column, row in places)
        for name, places in {
            "upright": [(0, 0), (0, 1), (0, 2), (0, 3)],
            "level": [(3, 5), (4, 5), (5, 5), (6, 5)],
            "rising": [(0, 0), (1, 1), (2, 2), (3, 3)],
            "falling": [(0, 3), (1, 2), (2, 1), (3, 0)],
            "around": [(0, 4), (0, 5), (1, 0), (1, 1)],
            "three": [(0, 0), (0, 1), (0, 2)],
        }.items()
    }
    found = {name for name, board in stones.items() if has_four(board)}
    assert found == {"upright", "level", "rising", "falling"}


def test_openings_are_random_undecided_positions_determined_by_the_seed() -> None:
    boards = []
    for seed in range(50):
        game, again = ConnectFour(opening=10), ConnectFour(opening=10)
        game.reset(seed)
        again.reset(seed)
        assert game.stones == again.stones
        assert game.winner is None
        boards.append(tuple(game.stones))
    assert len(set(boards)) > 30


def test_a_full_board_is_a_draw_with_a_legal_mask() -> None:
    full = ConnectFour()
    full.reset()
    for column in (0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 2, 3, 2, 3, 3, 2, 3, 2, 2, 3, 2, 3,
                   4, 5, 4, 5, 5, 4, 5, 4, 4, 5, 4, 5, 6, 6, 6, 6, 6, 6):  # fmt: skip
        full.step(column)
    obs, reward, terminated, *_ = full.last()
    assert (reward, terminated, full.winner) == (0.0, True, None)
    assert obs["action_mask"].all()
