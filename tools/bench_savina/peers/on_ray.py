"""Savina on Ray: a process for each actor."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import ray

actor = ray.remote(num_cpus=0)  # any number fits on the machine


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


async def spawn(kind: Any, count: int, *arguments: object) -> list[Any]:
    made = [kind.remote(*arguments) for _ in range(count)]
    await asyncio.gather(*[one.__ray_ready__.remote() for one in made])
    return made


def call(method: Any, *arguments: object) -> Any:
    return method.remote(*arguments)


async def send(method: Any, *arguments: object) -> None:
    method.remote(*arguments)


if __name__ == "__main__":
    from tools.bench_savina import play

    play.main("tools.bench_savina.peers.on_ray")
