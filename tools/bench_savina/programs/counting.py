"""Counting: one actor tells another to count, again and again.  It measures one-way messages."""

import asyncio
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, send, spawn

SIZES = Sizes({"count": 50}, {"count": 5_000}, {"count": 1_000_000})


@actor
class Counter:
    def __init__(self, count: int) -> None:
        self.left, self.total, self.counted = count, 0, asyncio.Event()

    async def add(self, number: int) -> None:
        self.total += number
        self.left -= 1
        if not self.left:
            self.counted.set()

    async def result(self) -> int:
        await self.counted.wait()
        return self.total


@actor
class Producer:
    async def produce(self, counter: Any, count: int) -> None:
        for number in range(count):
            await send(counter.add, number)


async def prepare(count: int) -> list[Any]:
    return [*await spawn(Producer, 1), *await spawn(Counter, 1, count)]


async def play(producer: Any, counter: Any, count: int) -> object:
    await send(producer.produce, counter, count)
    return await call(counter.result)


def expected(count: int) -> object:
    return sum(range(count))
