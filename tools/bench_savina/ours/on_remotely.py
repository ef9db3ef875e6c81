"""Savina on remotely: a process for each actor."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import remotely

actor = remotely.remote_class(cpus=0)  # any number fits on the machine


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[None]:
    remotely.connect()
    yield
    remotely.shutdown()


async def spawn(kind: Any, count: int, *arguments: object) -> list[Any]:
    return list(remotely.group(kind, count, *arguments))


def call(method: Any, *arguments: object) -> Any:
    return method.submit(*arguments)


async def send(method: Any, *arguments: object) -> None:
    method.submit(*arguments)


if __name__ == "__main__":
    from tools.bench_savina import play

    play.main("tools.bench_savina.ours.on_remotely")
