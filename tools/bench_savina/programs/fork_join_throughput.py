"""Fork-join, throughput: one sends many messages to many, and waits until all have worked."""

import asyncio
import math
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, send, spawn

SIZES = Sizes(
    {"workers": 2, "messages": 10},
    {"workers": 8, "messages": 250},
    {"workers": 60, "messages": 10_000},
)


@actor
class Worker:
    def __init__(self, messages: int) -> None:
        self.left, self.sum, self.done = messages, 0.0, asyncio.Event()

    async def work(self, angle: float) -> None:
        self.sum += math.sin(angle) ** 2 + math.cos(angle) ** 2
        self.left -= 1
        if not self.left:
            self.done.set()

    async def result(self) -> int:
        await self.done.wait()
        return round(self.sum)


async def prepare(workers: int, messages: int) -> list[Any]:
    return await spawn(Worker, workers, messages)


async def play(*made: Any, workers: int, messages: int) -> object:
    for number in range(messages):
        for worker in made:
            await send(worker.work, float(number))
    return await asyncio.gather(*[call(worker.result) for worker in made])


def expected(workers: int, messages: int) -> object:
    return [messages] * workers
