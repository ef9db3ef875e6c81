"""Sleeping barber: customers enter a waiting room, and come again if it is full; a barber, who
sleeps while it is empty, cuts one's hair at a time.

Savina's customers are actors; here they are tasks of one actor, the street.
"""

import asyncio
from collections import deque
from typing import Any

from tools.bench_savina.words import Sizes, actor, call, send, spawn

SIZES = Sizes(
    {"haircuts": 20, "chairs": 3},
    {"haircuts": 300, "chairs": 60},
    {"haircuts": 5_000, "chairs": 1_000},
)
CUT = 100  # turns of a loop, of a haircut
ARRIVE_TOGETHER = 50


@actor
class WaitingRoom:
    def __init__(self, chairs: int) -> None:
        self.chairs, self.waiting, self.entered = chairs, deque[int](), asyncio.Condition()

    async def enter(self, customer: int) -> bool:
        async with self.entered:
            if len(self.waiting) == self.chairs:
                return False
            self.waiting.append(customer)
            self.entered.notify()
            return True

    async def next(self) -> int:
        async with self.entered:
            await self.entered.wait_for(lambda: self.waiting)
            return self.waiting.popleft()


@actor
class Barber:
    async def work(self, room: Any, street: Any, haircuts: int) -> int:
        for _ in range(haircuts):
            customer = await call(room.next)
            sum(range(CUT))
            await send(street.leave, customer)
        return haircuts


@actor
class Street:
    def __init__(self, haircuts: int) -> None:
        self.cut = [asyncio.Event() for _ in range(haircuts)]
        self.places = asyncio.Semaphore(ARRIVE_TOGETHER)

    async def customer(self, number: int, room: Any) -> None:
        async with self.places:
            while not await call(room.enter, number):
                pass
        await self.cut[number].wait()

    async def leave(self, number: int) -> None:
        self.cut[number].set()

    async def walk(self, room: Any) -> int:
        await asyncio.gather(*[self.customer(number, room) for number in range(len(self.cut))])
        return sum(one.is_set() for one in self.cut)


async def prepare(haircuts: int, chairs: int) -> list[Any]:
    return [
        *await spawn(WaitingRoom, 1, chairs),
        *await spawn(Barber, 1),
        *await spawn(Street, 1, haircuts),
    ]


async def play(room: Any, barber: Any, street: Any, haircuts: int, chairs: int) -> object:
    return await asyncio.gather(call(barber.work, room, street, haircuts), call(street.walk, room))


def expected(haircuts: int, chairs: int) -> object:
    return [haircuts, haircuts]
