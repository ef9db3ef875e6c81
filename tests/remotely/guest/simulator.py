"""A process that serves an object: python -m tests.remotely.guest.simulator OPTIONS.

OPTIONS are those of `serve`, as JSON, plus `last_reply_s`, which replaces LAST_REPLY_S, and `cls`,
the name of another class to serve an object of.  The last line of output says how `serve` ended.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import remotely
from remotely.actor import actor


class Base:
    pass


class Simulator(Base):
    def __init__(self) -> None:
        self.steps = 0
        self.meeting = threading.Barrier(2)

    def step(self, action: int) -> int:
        self.steps += 1
        if action == 13:
            raise ValueError("thirteen")
        return action * 10

    def echo(self, value: Any) -> Any:
        return value

    def count(self, number: int) -> Iterator[int]:
        yield from range(number)

    def call(self, other: Any) -> Any:
        return other.add()

    def current(self) -> object:
        return remotely.current_actor()

    def pid(self) -> int:
        return os.getpid()

    def meet(self) -> int:
        return self.meeting.wait(40)

    def sleep(self, file: str, seconds: float) -> None:
        Path(file).touch()
        time.sleep(seconds)

    def echo_once_there_is(self, file: str, value: Any) -> Any:
        Path(file).with_name("runs").touch()
        while not Path(file).exists():
            time.sleep(0.001)
        return value

    def exit(self, code: int) -> None:
        sys.exit(code)

    def close(self) -> None:
        print("closed by a client", flush=True)


@remotely.remote_class(concurrency=2)
class Shared(Simulator):
    pass


class Awaiting:
    """Has async methods."""

    def __init__(self) -> None:
        self.came = 0

    async def meet(self) -> int:
        self.came += 1
        while self.came < 2:
            await asyncio.sleep(0.001)
        return self.came


MADE = {"Simulator": Simulator, "Shared": lambda: remotely.local(Shared), "Awaiting": Awaiting}


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    actor.LAST_REPLY_S = options.pop("last_reply_s", actor.LAST_REPLY_S)
    served: object = MADE[options.pop("cls", "Simulator")]()
    try:
        why = remotely.serve(served, **options)
    except remotely.RemotelyError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        sys.exit(1)
    print(f"serve has returned: {why}", flush=True)
