"""N-queens: a master has workers count the ways to place queens on a board.  A worker that gets a
board with few queens returns the boards with one more; with others it counts by itself."""

import asyncio
import itertools
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes(
    {"queens": 5, "workers": 2, "depth": 2},
    {"queens": 9, "workers": 4, "depth": 3},
    {"queens": 12, "workers": 20, "depth": 4},
)
SOLUTIONS = [1, 1, 0, 0, 2, 10, 4, 40, 92, 352, 724, 2_680, 14_200]  # for as many queens

Board = tuple[int, ...]  # the column of the queen of each row so far


def followed(board: Board, queens: int) -> list[Board]:
    """Return the boards with one queen more, in the next row, where none attacks it."""
    row = len(board)
    return [
        (*board, column)
        for column in range(queens)
        if all(column != at and abs(column - at) != row - of for of, at in enumerate(board))
    ]


def counted(board: Board, queens: int) -> int:
    if len(board) == queens:
        return 1
    return sum(counted(one, queens) for one in followed(board, queens))


@actor
class Worker:
    async def work(self, board: Board, queens: int, depth: int) -> tuple[int, list[Board]]:
        if len(board) < depth:
            return 0, followed(board, queens)
        return counted(board, queens), []


@actor
class Master:
    def __init__(self) -> None:
        self.next = itertools.count()

    async def solve(self, workers: list[Any], board: Board, queens: int, depth: int) -> int:
        worker = workers[next(self.next) % len(workers)]
        count, boards = await call(worker.work, board, queens, depth)
        rest = [self.solve(workers, one, queens, depth) for one in boards]
        return int(count) + sum(await asyncio.gather(*rest))


async def prepare(queens: int, workers: int, depth: int) -> list[Any]:
    return [*await spawn(Master, 1), *await spawn(Worker, workers)]


async def play(master: Any, *made: Any, queens: int, workers: int, depth: int) -> object:
    return await call(master.solve, list(made), (), queens, depth)


def expected(queens: int, workers: int, depth: int) -> object:
    return SOLUTIONS[queens]
