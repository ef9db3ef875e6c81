"""Concurrent dictionary: workers read from an actor with a dictionary, and one time in ten write.

Each worker writes keys of its own, so that what is in the dictionary at the end is known.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes(
    {"workers": 2, "messages": 30},
    {"workers": 8, "messages": 100},
    {"workers": 20, "messages": 10_000},
)
WRITES_PERCENT, KEYS = 10, 512


@actor
class Dictionary:
    def __init__(self) -> None:
        self.values: dict[int, int] = {}

    async def read(self, key: int) -> int | None:
        return self.values.get(key)

    async def write(self, key: int, value: int) -> None:
        self.values[key] = value

    async def content(self) -> dict[int, int]:
        return self.values


@actor
class Worker:
    async def work(self, me: int, dictionary: Any, workers: int, messages: int) -> None:
        for key, value in requests(me, workers, messages):
            if value is None:
                await call(dictionary.read, key)
            else:
                await call(dictionary.write, key, value)


def requests(me: int, workers: int, messages: int) -> Iterator[tuple[int, int | None]]:
    """Yield the key of each request of a worker, with a value if it writes."""
    chance = random.Random(me)
    for number in range(messages):
        is_write = chance.randrange(100) < WRITES_PERCENT
        key = chance.randrange(KEYS)
        yield (key * workers + me, number) if is_write else (key, None)


async def prepare(workers: int, messages: int) -> list[Any]:
    return [*await spawn(Dictionary, 1), *await spawn(Worker, workers)]


async def play(dictionary: Any, *made: Any, workers: int, messages: int) -> object:
    await asyncio.gather(
        *[call(one.work, me, dictionary, workers, messages) for me, one in enumerate(made)]
    )
    return await call(dictionary.content)


def expected(workers: int, messages: int) -> object:
    return {
        key: value
        for me in range(workers)
        for key, value in requests(me, workers, messages)
        if value is not None
    }
