"""Ping-pong: two actors, one message under way at a time.  It measures the latency of an answer."""

from typing import Any

from tools.bench_savina.words import Sizes, actor, call, spawn

SIZES = Sizes({"pings": 20}, {"pings": 1_000}, {"pings": 40_000})


@actor
class Pong:
    def __init__(self) -> None:
        self.pings = 0

    async def ping(self) -> int:
        self.pings += 1
        return self.pings


@actor
class Ping:
    async def play(self, pong: Any, pings: int) -> int:
        for _ in range(pings):
            answered = await call(pong.ping)
        return int(answered)


async def prepare(pings: int) -> list[Any]:
    return [*await spawn(Ping, 1), *await spawn(Pong, 1)]


async def play(ping: Any, pong: Any, pings: int) -> object:
    return await call(ping.play, pong, pings)


def expected(pings: int) -> object:
    return pings
