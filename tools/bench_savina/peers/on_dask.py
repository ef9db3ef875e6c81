"""Savina on Dask's actors: two worker processes, which the actors share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from distributed import Client, LocalCluster, get_client


def actor(kind: type) -> type:
    return kind


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[None]:
    async with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, asynchronous=True
        ) as cluster,
        Client(cluster, asynchronous=True),
    ):
        yield


async def spawn(kind: Any, count: int, *arguments: object) -> list[Any]:
    client = get_client()
    return await asyncio.gather(
        *[client.submit(kind, *arguments, actor=True, pure=False) for _ in range(count)]
    )


def call(method: Any, *arguments: object) -> Any:
    return method(*arguments)


async def send(method: Any, *arguments: object) -> None:
    method(*arguments)


if __name__ == "__main__":
    from tools.bench_savina import play

    play.main("tools.bench_savina.peers.on_dask")
