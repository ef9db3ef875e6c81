"""Savina on xoscar: two processes, which the actors share."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from typing import Any

import xoscar
from xoscar.backends.allocate_strategy import ProcessIndex

from tools.bench.stopwatch import free_port

PROCESSES = 2
ADDRESS = "SAVINA_XOSCAR"  # of the pool, in the processes of all actors too
_turn = itertools.count(os.getpid())


def actor(kind: type) -> type:
    """Return the class as an actor that serves others while it waits: a "stateless" one."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind, xoscar.StatelessActor), names)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[None]:
    os.environ[ADDRESS] = f"127.0.0.1:{free_port()}"
    pool = await xoscar.create_actor_pool(os.environ[ADDRESS], n_process=PROCESSES)
    yield
    await pool.stop()


async def spawn(kind: Any, count: int, *arguments: object) -> list[Any]:
    places = [ProcessIndex(1 + next(_turn) % PROCESSES) for _ in range(count)]
    return await asyncio.gather(
        *[
            xoscar.create_actor(
                kind, *arguments, address=os.environ[ADDRESS], allocate_strategy=place
            )
            for place in places
        ]
    )


def call(method: Any, *arguments: object) -> Any:
    return method(*arguments)


async def send(method: Any, *arguments: object) -> None:
    await method.tell(*arguments)


if __name__ == "__main__":
    from tools.bench_savina import play

    play.main("tools.bench_savina.peers.on_xoscar")
