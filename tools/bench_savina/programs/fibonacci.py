"""Fibonacci: an actor for each number makes two others for the two before it, and adds them up."""

import asyncio
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes({"n": 3}, {"n": 5}, {"n": 25})


@actor
class Number:
    async def compute(self, n: int) -> int:
        if n <= 2:
            return 1
        one, other = await spawn(Number, 2)
        return sum(await asyncio.gather(call(one.compute, n - 1), call(other.compute, n - 2)))


async def prepare(n: int) -> list[Any]:
    return await spawn(Number, 1)


async def play(first: Any, n: int) -> object:
    return await call(first.compute, n)


def expected(n: int) -> object:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
