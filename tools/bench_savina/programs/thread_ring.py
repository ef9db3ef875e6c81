"""Thread ring: a token goes round a ring of actors, each of which passes it to the next."""

import asyncio
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, send, spawn

SIZES = Sizes(
    {"actors": 3, "hops": 20}, {"actors": 8, "hops": 1_000}, {"actors": 100, "hops": 100_000}
)


@actor
class Node:
    def __init__(self) -> None:
        self.passed, self.ended, self.next = 0, asyncio.Event(), None

    async def link(self, following: Any) -> None:
        self.next = following

    async def hop(self, left: int) -> None:
        self.passed += 1
        if left:
            await send(self.next.hop, left - 1)  # type: ignore[attr-defined]
        else:
            self.ended.set()

    async def end(self) -> None:
        await self.ended.wait()

    async def count(self) -> int:
        return self.passed


async def prepare(actors: int, hops: int) -> list[Any]:
    ring = await spawn(Node, actors)
    await asyncio.gather(
        *[
            call(one.link, following)
            for one, following in zip(ring, ring[1:] + ring[:1], strict=True)
        ]
    )
    return ring


async def play(*ring: Any, actors: int, hops: int) -> object:
    await send(ring[0].hop, hops - 1)
    await call(ring[(hops - 1) % actors].end)
    return await asyncio.gather(*[call(node.count) for node in ring])


def expected(actors: int, hops: int) -> object:
    return [len(range(first, hops, actors)) for first in range(actors)]
