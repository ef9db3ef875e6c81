"""The host of an object with plain methods, which run one after the other on one thread.

Ray runs the calls of a plain actor in the order in which each client made them, and waits itself
for what their arguments refer to.  So nothing here has to.  It also reads a result before the next
call begins, which may change it.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray

from remotely.engines.ray.frames import LATER, NOT_RUN, ROUTE_BYTES, Frames, sendable, writable
from remotely.engines.ray.host import WAITS, Host, in_group
from remotely.protocol import wire
from remotely.protocol.lease import DRAIN_S


class SerialHost(Host):
    def __init__(self, name: str, made_within_s: float) -> None:
        super().__init__(name, made_within_s)
        self._replies: dict[tuple[bytes, int], Any] = {}
        # Messages that came before there was an object, as a client may have it by its name.
        self._early: dict[tuple[bytes, int], Future[Any]] = {}
        self._over = threading.Event()
        self._watched = threading.Event()

    def begin(self, birth: bytes) -> bytes:
        return self._begin(birth)

    def do(
        self,
        data: bytes,
        buffers: Sequence[Any] = (),
        names: Sequence[str] = (),
        *entries: Any,
    ) -> Any:
        """Run one message: a route and the head of the message, and the buffers beside it.

        `entries` are what the arguments refer to, and `names` the arguments.  Returns the reply.
        """
        if self._is_over:
            return NOT_RUN
        assert self._hosted is not None
        route, head = data[:ROUTE_BYTES], memoryview(data)[ROUTE_BYTES:]
        call = route, wire.call_id_of(head)
        self._hosted.take(
            route, [head, *(memoryview(buffer) for buffer in buffers)], entries, names
        )
        reply = self._replies.pop(call, None)
        if reply is None:
            self._early[call] = Future()
            return LATER
        return reply

    @in_group(WAITS)
    def later(self, route: bytes, number: int) -> Any:
        """Return the reply to a message that came before there was an object."""
        try:
            return self._early[route, number].result()
        finally:
            del self._early[route, number]

    def forget(self, route: bytes) -> None:
        """Nobody calls by this route any more; nothing is kept for one."""

    @in_group(WAITS)
    def watch(self) -> None:
        """Fail when this process dies; return when it ends in good order, or is watched anew."""
        self._watched.set()
        self._watched = watched = threading.Event()
        watched.wait()

    def stop(self) -> None:
        """Close the object, here where messages run; `leave` may come before or after."""
        if self._hosted is not None:
            self._hosted.stop()
            self._hosted.end_if_stopped()

    @in_group(WAITS)
    def leave(self, grace_s: float, stops: bool) -> None:
        """End the process when the object has been closed, or after `grace_s`; never returns.

        With `stops` no further call begins, and the object is closed by `stop`, which may take
        DRAIN_S; else by a message, END.
        """
        self._is_leaving = True
        if stops and self._hosted is not None:
            self._hosted.stop()
        if not self._over.wait(grace_s) and not (
            stops and self.is_closing and self._over.wait(DRAIN_S)
        ):
            os._exit(1)
        self._watched.set()  # Ray lets the calls that run come to their end
        ray.actor.exit_actor()

    # --- where messages run -----------------------------------------------------------------------

    def reply(self, route: bytes, frames: Frames) -> None:
        call = route, wire.call_id_of(frames[0])
        if (early := self._early.get(call)) is not None:  # read when others have run
            head, *buffers = frames
            early.set_result(sendable([head, *map(writable, buffers)]))
        else:
            self._replies[call] = sendable(frames)

    def over(self) -> None:
        self._is_over = True
        for early in list(self._early.values()):
            if not early.done():
                early.set_result(NOT_RUN)
        self._over.set()
