"""The Ray actor in which one object lives.

It is an async one, because batched methods, threads and async ones need several calls at a time.
Ray starts the calls of an async actor in any order.  So a client numbers its messages, and they are
handed to the servant in that order (remotely/actor/hosted.py).

`cancel`, `state` and the like run in a concurrency group of their own, which never waits for calls.

Ray swallows the errors of a constructor, and reports them to whoever makes the next call.  So this
one does nothing, and the object is made by a message, INIT, as on our own cluster.
"""

import asyncio
import importlib
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import psutil
import ray

from remotely.machine import this_machine
from remotely.protocol import wire
from remotely.values import codec

ROUTE_BYTES = 8  # what names a client, before each of its messages
CONTROL = "control"  # the concurrency group
WARNS = "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"
LOOK_EVERY_S = 1.0  # at the memory
NOT_RUN = b""  # instead of a reply: the actor has ended, and this call did not run
# It imports what runs users' code, which is above the engines; so it is found by its name, as a
# worker starts its actors' processes.
HOSTED = "remotely.actor.hosted"

Entries = Sequence[Any]  # replies of other calls, or errors, in the place of arguments
Frames = Sequence[bytes | memoryview]


class Birth(msgspec.Struct, frozen=True):
    """What a host is told before it is given an object."""

    actor: str  # its id
    name: str
    class_name: str
    life: int
    max_restarts: int
    cpus: float
    gpus: float
    env: list[str]  # the names of variables that the user has set
    memory: int  # bytes; beyond it the actor ends; 0 is no limit
    resources: dict[str, float]
    owner: tuple[int, str, str]  # pid and machine of the client, and its name if it is an actor
    cluster: str  # as `RayEngine.cluster`


class Place(msgspec.Struct, frozen=True):
    """Where a host has come to be."""

    pid: int
    machine: str
    host: str  # see this_machine.identity
    node: str  # as Ray names it


class Hosted(Protocol):
    """What the servant offers to its host."""

    def take(self, route: bytes, frames: Frames, entries: Entries, names: Sequence[str]) -> None:
        """Run a message; its reply goes to `Host.reply`."""

    def cancel(self, route: bytes, call_id: int) -> bool:
        """Have a call not begin; return whether that was in time."""

    def stop(self) -> None:
        """Begin no further call, and close the object."""

    def state(self) -> dict[str, Any]:
        """Return what it is doing."""


class _Turn:
    """The order of one client's messages."""

    def __init__(self) -> None:
        self.due = 1
        self.waiting: dict[int, asyncio.Future[None]] = {}


class Host:
    def __init__(self, name: str) -> None:
        self._name = name
        self._hosted: Hosted | None = None
        self._birth: Birth | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: dict[bytes, _Turn] = {}
        self._asked: dict[tuple[bytes, int], asyncio.Future[Any]] = {}
        self._is_over = False
        self._over: asyncio.Event | None = None
        self._watched: asyncio.Event | None = None

    def __repr__(self) -> str:
        """What Ray writes before each line that the actor prints."""
        return self._name

    async def begin(self, birth: bytes) -> bytes:
        """Be ready for messages; return the Place."""
        os.environ[WARNS] = "0"  # a call that waits is what handles are for
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._birth = told = msgspec.msgpack.decode(birth, type=Birth)
        if told.memory:
            watch = threading.Thread(target=_watch_memory, args=(told.memory,), daemon=True)
            watch.start()  # the loop may be busy with the very call that takes it all
        context = ray.get_runtime_context()
        place = Place(
            os.getpid(), this_machine.machine_name(), this_machine.identity(), context.get_node_id()
        )
        self._hosted = importlib.import_module(HOSTED).start(told, place, self)
        return msgspec.msgpack.encode(place)

    async def do(
        self,
        data: bytes,
        buffers: Sequence[Any] = (),
        refs: Sequence[Any] = (),
        names: Sequence[str] = (),
    ) -> Any:
        """Run one message: a route and the head of the message, and the buffers beside it.

        `refs` are what the arguments refer to, and `names` the arguments.  Returns the reply.
        """
        route, head = data[:ROUTE_BYTES], memoryview(data)[ROUTE_BYTES:]
        number = wire.call_id_of(head)
        turn = self._turns.setdefault(route, _Turn())
        loop = asyncio.get_running_loop()
        if number != turn.due:
            await turn.waiting.setdefault(number, loop.create_future())
        outcome = loop.create_future()
        try:
            entries: Entries = ()
            if refs:
                entries = await asyncio.gather(*refs, return_exceptions=True)
            if self._is_over:
                outcome.set_result(NOT_RUN)
            else:
                self._asked[route, number] = outcome
                assert self._hosted is not None
                self._hosted.take(
                    route, [head, *(memoryview(buffer) for buffer in buffers)], entries, names
                )
        finally:  # whatever became of it, the next one is not to wait for it
            turn.due += 1
            if (next_one := turn.waiting.pop(turn.due, None)) is not None:
                next_one.set_result(None)
        return await outcome

    async def cancel(self, route: bytes, call_id: int) -> bool:
        return self._hosted is not None and self._hosted.cancel(route, call_id)

    async def forget(self, route: bytes) -> None:
        """Nobody calls by this route any more."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._turns.pop, route, None)

    async def state(self) -> dict[str, Any]:
        """Return what it is and does, for `remotely.status()`."""
        assert self._hosted is not None
        assert self._birth is not None
        process = psutil.Process()
        return {
            **msgspec.structs.asdict(self._birth),
            **self._hosted.state(),
            "pid": process.pid,
            "rss": process.memory_info().rss,
            "cpu_percent": process.cpu_percent(),
            "since": process.create_time(),
            "gpu_ids": ray.get_gpu_ids(),
            "node": ray.get_runtime_context().get_node_id(),
        }

    async def watch(self) -> None:
        """Fail when this process dies; return when it ends in good order."""
        self._watched = self._watched or asyncio.Event()
        await self._watched.wait()

    async def leave(self, grace_s: float, stops: bool) -> None:
        """End the process when the object has been closed, or after `grace_s`; never returns.

        With `stops` no further call begins, and the object is closed now; else by a message, END.
        """
        if stops and self._hosted is not None:
            self._hosted.stop()
        self._over = self._over or asyncio.Event()
        self._leaving = asyncio.get_running_loop()
        if not self._is_over:
            try:
                await asyncio.wait_for(self._over.wait(), grace_s)
            except TimeoutError:
                os._exit(1)
        if self._watched is not None:
            self._watched.set()  # Ray lets the calls that run come to their end
        ray.actor.exit_actor()

    # --- on any thread ----------------------------------------------------------------------------

    def reply(self, route: bytes, frames: Frames) -> None:
        """Give a message its reply."""
        number = wire.call_id_of(frames[0])
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            self._answer(route, number, sendable(frames))
        else:
            self._loop.call_soon_threadsafe(self._answer, route, number, sendable(frames))

    def over(self) -> None:
        """The object has been let go: nothing runs any more."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end)

    # --- on the event loop ------------------------------------------------------------------------

    def _answer(self, route: bytes, number: int, data: Any) -> None:
        outcome = self._asked.pop((route, number), None)
        if outcome is not None and not outcome.done():
            outcome.set_result(data)

    def _end(self) -> None:
        self._is_over = True
        for route, number in list(self._asked):
            self._answer(route, number, NOT_RUN)
        if self._over is not None:
            self._leaving.call_soon_threadsafe(self._over.set)


def _watch_memory(limit: int) -> None:
    """End the process when it uses more."""
    process = psutil.Process()
    while (used := process.memory_info().rss) <= limit:
        time.sleep(LOOK_EVERY_S)
    print(f"remotely: the actor used {used:,} bytes, and may use {limit:,}", flush=True)
    os._exit(1)


def sendable(frames: Frames) -> Any:
    """Return what Ray is given: bytes go as they are, and buffers out of band."""
    head, *buffers = frames
    head = bytes(head)
    return (head, codec.out_of_band(buffers)) if buffers else head


def received(data: Any) -> list[bytes | memoryview]:
    """Return the frames of what Ray has brought.  Buffers are copied: those of Ray's store are
    read-only, and shared."""
    if isinstance(data, bytes):
        return [data]
    head, buffers = data
    return [head, *map(writable, buffers)]


def writable(buffer: Any) -> memoryview:
    """Return a copy.  numpy asks for large pages, which makes it faster than a bytearray."""
    flat = memoryview(buffer).cast("B")
    return np.frombuffer(flat, np.uint8).copy().data if flat.nbytes else flat


def session_folder() -> Path:
    """Return Ray's own folder on this machine, for files that last as long as the cluster."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path())
