"""Connect Four by self-play, evaluated against a minimax player.

    python examples/self_play_connect_four.py [MINUTES]

PPO trains against its earlier versions (docs/several_agents.md).  At the end it plays 200 games
against a minimax player that looks two moves ahead; the sides alternate.  The game has the
observations of PettingZoo's Connect Four, and is faster; SelfPlay accepts either.
"""

import functools
import sys
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad, relu

import remotely_rl
from remotely_rl import SelfPlay, ppo

ROWS, COLUMNS = 6, 7
HEIGHT = ROWS + 1  # bits per column: the top one stays empty and separates it from the next
Observation = dict[str, NDArray[Any]]


def bit(row: int, column: int) -> int:
    """Return the bit of a cell of a bitboard; row 0 is the top."""
    return 1 << (column * HEIGHT + ROWS - 1 - row)


def has_four(stones: int) -> bool:
    """Whether four of these stones are in a vertical, horizontal or diagonal line."""
    for step in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = stones & (stones >> step)
        if pairs & (pairs >> 2 * step):
            return True
    return False


class ConnectFour:
    """Connect Four, with the part of PettingZoo's AEC interface that SelfPlay uses."""

    possible_agents = ("player_0", "player_1")

    def __init__(self, opening: int = 0):
        """Start each game with up to `opening` random moves, for variety."""
        self.opening = opening

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(
            {
                "observation": spaces.Box(0, 1, (ROWS, COLUMNS, 2), np.int8),  # own, opponent's
                "action_mask": spaces.Box(0, 1, (COLUMNS,), np.int8),
            }
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(COLUMNS)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.clear()
        random = np.random.default_rng(seed)
        for column in random.integers(COLUMNS, size=random.integers(self.opening + 1)).tolist():
            if self.free[column]:
                self.step(column)
        if self.winner is not None:
            self.clear()

    def clear(self) -> None:
        self.stones = [0, 0]
        self.free = [ROWS] * COLUMNS
        self.board = np.zeros((2, ROWS, COLUMNS, 2), np.int8)  # as each player observes it
        self.turn = 0
        self.winner: int | None = None

    @property
    def agent_selection(self) -> str:
        return self.possible_agents[self.turn]

    def last(self) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward = 0.0 if self.winner is None else (1.0 if self.winner == self.turn else -1.0)
        is_over = self.winner is not None or not any(self.free)
        mask = np.array([free > 0 or is_over for free in self.free], np.int8)
        obs = {"observation": self.board[self.turn].copy(), "action_mask": mask}
        return obs, reward, is_over, False, {}

    def step(self, action: int | None) -> None:
        me, other = self.turn, 1 - self.turn
        self.turn = other
        if action is None:  # the game is over, and this player leaves
            return
        self.free[action] -= 1
        row = self.free[action]
        self.stones[me] |= bit(row, action)
        self.board[me, row, action, 0] = self.board[other, row, action, 1] = 1
        if has_four(self.stones[me]):
            self.winner = me

    def close(self) -> None:
        pass


# --- minimax --------------------------------------------------------------------------------------

BITS = np.array([[bit(row, column) for column in range(COLUMNS)] for row in range(ROWS)])
LINES = [
    sum(bit(row + i * down, column + i * right) for i in range(4))
    for row in range(ROWS)
    for column in range(COLUMNS)
    for down, right in ((1, 0), (0, 1), (1, 1), (-1, 1))
    if 0 <= row + 3 * down < ROWS and column + 3 * right < COLUMNS
]
WORTH = (0, 1, 4, 16, 0)  # of a line with 0, 1, ... stones of one player and none of the other
WON = 10_000


def minimax(obs: Observation, mask: Any, random: np.random.Generator, depth: int = 2) -> int:
    """Return the best move at search depth `depth`; ties are broken at random."""
    own, theirs = (int((obs["observation"][..., i] * BITS).sum()) for i in (0, 1))
    legal = np.flatnonzero(obs["action_mask"])
    values = [-value(theirs, own | drop(own | theirs, int(c)), depth - 1) for c in legal]
    return int(random.choice(legal[np.equal(values, max(values))]))


def value(own: int, theirs: int, depth: int) -> int:
    """Return the value of a position for the player to move."""
    if has_four(theirs):
        return -WON - depth  # an earlier loss is worse
    moves = [drop(own | theirs, column) for column in range(COLUMNS)]
    moves = [move for move in moves if move]
    if not moves:
        return 0
    if depth:
        return max(-value(theirs, own | move, depth - 1) for move in moves)
    return sum(
        WORTH[(own & line).bit_count()] * (not theirs & line)
        - WORTH[(theirs & line).bit_count()] * (not own & line)
        for line in LINES
    )


def drop(stones: int, column: int) -> int:
    """Return the bit on which a stone lands, or 0 if the column is full."""
    full = sum(bit(row, column) for row in range(ROWS))
    return (stones + bit(ROWS - 1, column)) & full & ~stones


# --- the network ----------------------------------------------------------------------------------


class Network(nn.Module):
    """An MLP on the stones, the progress of each line, and the lines that each move would complete.

    The same features are computed for both players, for the cell where a stone lands and the cell
    above it, which the opponent can take next.
    """

    lines: Tensor

    def __init__(self, observation_shape: dict[str, tuple[int, ...]], outputs: int):
        super().__init__()
        cells = [bit(row, column) for row in range(ROWS) for column in range(COLUMNS)]
        lines = torch.tensor([[float(line & cell > 0) for line in LINES] for cell in cells])
        self.register_buffer("lines", lines, persistent=False)  # [cells, lines]
        move_features, units = 6 * COLUMNS, 128
        self.body = nn.Sequential(
            nn.Linear(2 * (2 * len(cells) + len(LINES)) + move_features, units),
            nn.ReLU(),
            nn.Linear(units, units),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(units + move_features, outputs), nn.Linear(units, 1)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        own, theirs = obs["observation"].flatten(2).unbind(1)  # stones, [N, cells]
        empty = 1 - own - theirs
        lands = empty * pad(1 - empty[:, COLUMNS:], (0, COLUMNS), value=1.0)  # where a stone lands
        above = pad(lands[:, COLUMNS:], (0, COLUMNS))  # where the opponent could land next
        own_counts, their_counts = own @ self.lines, theirs @ self.lines  # [N, lines]
        features, moves = [own, theirs], []
        for count, blocking in ((own_counts, their_counts), (their_counts, own_counts)):
            open_lines = relu(count - 4 * blocking)  # stones in each line without the other's
            threes = empty * (relu(open_lines - 1) @ self.lines.T)
            fours = empty * (relu(open_lines - 2) @ self.lines.T).clamp(max=1)
            features += [open_lines, fours]
            moves += [lands * fours, above * fours, lands * threes]
        by_column = torch.cat([move.view(-1, ROWS, COLUMNS).sum(1) for move in moves], 1)
        hidden = self.body(torch.cat([*features, by_column], 1))
        return self.policy(torch.cat([hidden, by_column], 1)), self.value(hidden).squeeze(-1)


# --- training and playing -------------------------------------------------------------------------

game = SelfPlay(functools.partial(ConnectFour, opening=10))
against_minimax = SelfPlay(ConnectFour, minimax)  # evaluate RUN --env FILE.py:against_minimax


def play(run: Any, games: int = 200) -> dict[float, int]:
    """Play games against minimax, every other one as the first player; return counts by reward."""
    agent = remotely_rl.load(run, env=against_minimax, model=Network)
    envs = against_minimax(num_envs=20)
    obs, _ = envs.reset(seed=1)
    counts = {1.0: 0, 0.0: 0, -1.0: 0}
    games_left = np.full(20, games // 20)
    while games_left.any():
        obs, reward, terminated, *_ = envs.step(agent.act(obs))
        for i in np.flatnonzero(terminated & (games_left > 0)):
            counts[float(reward[i])] += 1
            games_left[i] -= 1
    return counts


def main(minutes: float = 10.0) -> None:
    config = ppo.Config(
        env=game,
        minutes=minutes,
        envs_per_actor=128,
        batch_rows=4096,
        minibatches=8,
        gamma=1.0,
        learning_rate=1e-3,
        learning_rate_end=1e-4,
        entropy_coef=0.02,
        entropy_coef_end=0.003,
    )
    result = ppo.train(config, Network)
    counts = play(result.run)
    print(f"against minimax: {counts[1.0]} won, {counts[0.0]} drawn, {counts[-1.0]} lost")


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    except KeyboardInterrupt:  # Ctrl-C ends the script and its actors
        raise SystemExit(130) from None
