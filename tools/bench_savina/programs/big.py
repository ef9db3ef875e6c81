"""Big: each actor calls random others, one after the other, and answers those that call it."""

import asyncio
import random
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes(
    {"actors": 3, "pings": 10}, {"actors": 8, "pings": 100}, {"actors": 120, "pings": 20_000}
)


@actor
class Member:
    def __init__(self) -> None:
        self.answered = 0

    async def ping(self, caller: int) -> int:
        self.answered += 1
        return caller

    async def play(self, me: int, others: list[Any], pings: int) -> int:
        chance = random.Random(me)
        return sum([await call(chance.choice(others).ping, me) == me for _ in range(pings)])

    async def count(self) -> int:
        return self.answered


async def prepare(actors: int, pings: int) -> list[Any]:
    return await spawn(Member, actors)


async def play(*members: Any, actors: int, pings: int) -> object:
    others = [[*members[:me], *members[me + 1 :]] for me in range(actors)]
    pongs = await asyncio.gather(
        *[call(one.play, me, others[me], pings) for me, one in enumerate(members)]
    )
    return sum(pongs), await asyncio.gather(*[call(one.count) for one in members])


def expected(actors: int, pings: int) -> object:
    answered = [0] * actors
    for me in range(actors):
        chance, others = random.Random(me), [other for other in range(actors) if other != me]
        for _ in range(pings):
            answered[chance.choice(others)] += 1
    return actors * pings, answered
