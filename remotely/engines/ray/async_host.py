"""The host of an object that serves several calls at a time: batched, async, or on threads.

It is an async actor of Ray's, whose calls begin in any order.  So a client numbers its messages,
and they are handed to the servant in that order (remotely/actor/hosted.py).
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from typing import Any

import ray

from remotely.engines.ray.frames import NOT_RUN, ROUTE_BYTES, Entries, Frames, sendable, writable
from remotely.engines.ray.host import CONTROL, WAITS, Host, in_group
from remotely.protocol import wire
from remotely.protocol.lease import DRAIN_S

WARNS = "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"


class _Turn:
    """The order of one client's messages."""

    def __init__(self) -> None:
        self.due = 1
        self.waiting: dict[int, asyncio.Future[None]] = {}


class AsyncHost(Host):
    def __init__(self, name: str, made_within_s: float) -> None:
        super().__init__(name, made_within_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns: dict[bytes, _Turn] = {}
        self._asked: dict[tuple[bytes, int], asyncio.Future[Any]] = {}
        self._over: asyncio.Event | None = None
        self._watched: asyncio.Event | None = None

    async def begin(self, birth: bytes) -> bytes:
        os.environ[WARNS] = "0"  # a call that waits is what handles are for
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        return self._begin(birth)

    async def do(
        self,
        data: bytes,
        buffers: Sequence[Any] = (),
        names: Sequence[str] = (),
        refs: Sequence[Any] = (),
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

    @in_group(CONTROL)
    async def forget(self, route: bytes) -> None:
        """Nobody calls by this route any more."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._turns.pop, route, None)

    @in_group(WAITS)
    async def watch(self) -> None:
        """Fail when this process dies; return when it ends in good order."""
        self._watched = self._watched or asyncio.Event()
        await self._watched.wait()

    async def stop(self) -> None:
        """As on a SerialHost; here `leave` is enough, which wakes the object's own loop."""

    @in_group(WAITS)
    async def leave(self, grace_s: float, stops: bool) -> None:
        """End the process when the object has been closed, or after `grace_s`; never returns.

        With `stops` no further call begins, and the object is closed now, which may take DRAIN_S;
        else by a message, END.
        """
        self._is_leaving = True
        if stops and self._hosted is not None:
            self._hosted.stop()
        self._over = self._over or asyncio.Event()
        self._leaving = asyncio.get_running_loop()
        if not (
            self._is_over
            or await self._is_over_within(grace_s)
            or (stops and self.is_closing and await self._is_over_within(DRAIN_S))
        ):
            os._exit(1)
        if self._watched is not None:
            self._watched.set()  # Ray lets the calls that run come to their end
        ray.actor.exit_actor()

    async def _is_over_within(self, seconds: float) -> bool:
        assert self._over is not None
        try:
            await asyncio.wait_for(self._over.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # --- on any thread ----------------------------------------------------------------------------

    def reply(self, route: bytes, frames: Frames) -> None:
        number = wire.call_id_of(frames[0])
        # Ray reads the buffers later, on another thread, when the object may have changed them.
        head, *buffers = frames
        data = sendable([head, *map(writable, buffers)])
        assert self._loop is not None
        if threading.get_ident() == self._thread:
            self._answer(route, number, data)
        else:
            self._loop.call_soon_threadsafe(self._answer, route, number, data)

    def over(self) -> None:
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
