"""Radix sort: a chain of actors, one for each bit.  Each passes on the numbers without its bit as
they come, and then those with it; messages that overtake each other spoil the order."""

import asyncio
import random
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, send, spawn

SIZES = Sizes(
    {"numbers": 20, "bits": 3}, {"numbers": 250, "bits": 8}, {"numbers": 100_000, "bits": 60}
)


@actor
class Sorter:
    def __init__(self, numbers: int) -> None:
        self.left, self.later = numbers, list[int]()

    async def link(self, bit: int, following: Any) -> None:
        self.bit, self.next = bit, following

    async def take(self, number: int) -> None:
        self.left -= 1
        if number >> self.bit & 1:
            self.later.append(number)
        else:
            await send(self.next.take, number)
        if not self.left:
            for one in self.later:
                await send(self.next.take, one)


@actor
class Last:
    def __init__(self, numbers: int) -> None:
        self.numbers, self.taken, self.done = numbers, list[int](), asyncio.Event()

    async def take(self, number: int) -> None:
        self.taken.append(number)
        if len(self.taken) == self.numbers:
            self.done.set()

    async def result(self) -> list[int]:
        await self.done.wait()
        return self.taken


def unsorted(numbers: int, bits: int) -> list[int]:
    chance = random.Random(0)
    return [chance.getrandbits(bits) for _ in range(numbers)]


async def prepare(numbers: int, bits: int) -> list[Any]:
    chain = [*await spawn(Sorter, bits, numbers), *await spawn(Last, 1, numbers)]
    await asyncio.gather(*[call(chain[bit].link, bit, chain[bit + 1]) for bit in range(bits)])
    return chain


async def play(*chain: Any, numbers: int, bits: int) -> object:
    for number in unsorted(numbers, bits):
        await send(chain[0].take, number)
    return await call(chain[-1].result)


def expected(numbers: int, bits: int) -> object:
    return sorted(unsorted(numbers, bits))
