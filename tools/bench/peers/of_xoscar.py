"""xoscar: a pool of two processes, with an actor in the other one, and one event loop."""

import asyncio
import time

import xoscar
from xoscar.backends.allocate_strategy import ProcessIndex

from tools.bench import stopwatch
from tools.bench.stopwatch import Array, Effort, report

LOOP = asyncio.new_event_loop()


class Actor(xoscar.StatelessActor):  # type: ignore[misc]
    def ping(self) -> None:
        return None

    def echo(self, value: object) -> object:
        return value


def calls(effort: Effort) -> None:
    async def blocking(count: int) -> None:
        for _ in range(count):
            await actor.ping()

    async def pipelined(count: int) -> None:
        await asyncio.gather(*[actor.ping() for _ in range(count)])

    actor = LOOP.run_until_complete(_actor())
    one = lambda n: LOOP.run_until_complete(blocking(n))
    many = lambda n: LOOP.run_until_complete(pipelined(n))
    report(
        call_s=stopwatch.per_call(one, effort.calls, effort.repeats),
        pipelined_per_s=1 / stopwatch.per_call(many, effort.pipelined, effort.repeats),
    )


def arrays(effort: Effort) -> None:
    async def run(array: Array, count: int) -> None:
        for _ in range(count):
            await actor.echo(array)

    actor = LOOP.run_until_complete(_actor())
    stopwatch.echoes(lambda array, n: LOOP.run_until_complete(run(array, n)), effort)


def start(_: Effort) -> None:
    LOOP.run_until_complete(_actor(tell=True))


async def _actor(tell: bool = False) -> "xoscar.ActorRefType[Actor]":
    begin = time.perf_counter()
    pool = await xoscar.create_actor_pool("127.0.0.1", n_process=2)
    pooled = time.perf_counter()
    actor = await xoscar.create_actor(
        Actor, address=pool.external_address, allocate_strategy=ProcessIndex(1), uid="actor"
    )
    await actor.ping()
    if tell:
        report(connect_s=pooled - begin, first_actor_s=time.perf_counter() - pooled)
    return actor


if __name__ == "__main__":
    stopwatch.main({"calls": calls, "arrays": arrays, "start": start})
