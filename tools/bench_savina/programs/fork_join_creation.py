"""Fork-join, creation: actors are made, each gets one message, and all are dropped."""

import asyncio
import math
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes({"workers": 3}, {"workers": 8}, {"workers": 40_000})


@actor
class Worker:
    async def work(self, angle: float) -> int:
        return round(math.sin(angle) ** 2 + math.cos(angle) ** 2)


async def prepare(workers: int) -> list[Any]:
    return []


async def play(workers: int) -> object:
    made = await spawn(Worker, workers)
    return sum(await asyncio.gather(*[call(worker.work, 0.5) for worker in made]))


def expected(workers: int) -> object:
    return workers
