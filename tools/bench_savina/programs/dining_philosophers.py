"""Dining philosophers: each needs both forks beside it to eat; an arbiter hands them out in pairs.

Savina's arbiter refuses, and a philosopher asks again.  Here the answer comes when both forks are
free, so the number of messages depends on nobody's luck.
"""

import asyncio
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes(
    {"philosophers": 3, "meals": 5},
    {"philosophers": 8, "meals": 50},
    {"philosophers": 20, "meals": 10_000},
)


@actor
class Arbiter:
    def __init__(self, philosophers: int) -> None:
        self.is_free = [True] * philosophers
        self.freed = asyncio.Condition()
        self.meals = 0

    def forks_of(self, one: int) -> tuple[int, int]:
        return one, (one + 1) % len(self.is_free)

    async def hungry(self, one: int) -> None:
        left, right = self.forks_of(one)
        async with self.freed:
            await self.freed.wait_for(lambda: self.is_free[left] and self.is_free[right])
            self.is_free[left] = self.is_free[right] = False

    async def full(self, one: int) -> None:
        left, right = self.forks_of(one)
        async with self.freed:
            assert not self.is_free[left]
            assert not self.is_free[right]
            self.is_free[left] = self.is_free[right] = True
            self.meals += 1
            self.freed.notify_all()

    async def total(self) -> int:
        return self.meals


@actor
class Philosopher:
    async def dine(self, me: int, arbiter: Any, meals: int) -> int:
        for _ in range(meals):
            await call(arbiter.hungry, me)
            await call(arbiter.full, me)
        return meals


async def prepare(philosophers: int, meals: int) -> list[Any]:
    return [*await spawn(Arbiter, 1, philosophers), *await spawn(Philosopher, philosophers)]


async def play(arbiter: Any, *table: Any, philosophers: int, meals: int) -> object:
    eaten = await asyncio.gather(
        *[call(one.dine, me, arbiter, meals) for me, one in enumerate(table)]
    )
    return sum(eaten), await call(arbiter.total)


def expected(philosophers: int, meals: int) -> object:
    return philosophers * meals, philosophers * meals
