"""How a client has an actor take back a call that has left: see actor/dispatch.py.

The request goes by the master, and the answer comes over the connection of the call, as the reply
of a call that was never sent.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from remotely.errors import RemotelyError
from remotely.futures.future import CallFuture, Receiver
from remotely.protocol import control
from remotely.transport.loop import Loop

ANSWER_S = 0.5  # the actor may be stopped, or hold the interpreter


class Cancellation:
    """The cancelled calls of one channel.  `pending` are its calls, by id; `lock` guards them."""

    def __init__(
        self,
        actor: str,
        route: bytes,
        ids: Iterator[int],
        pending: dict[int, CallFuture[Any]],
        lock: "threading.RLock",
        loop: Loop,
        tell_master: Callable[[msgspec.Struct], None],
    ) -> None:
        self._actor = actor
        self._route = route
        self._ids = ids
        self._pending = pending
        self._lock = lock
        self._loop = loop
        self._tell_master = tell_master

    def cancel(self, future: CallFuture[Any], receiver: Receiver, waits: bool) -> bool:
        """Have the actor not begin a call; return whether it never will.  False if unknown.

        With `waits`, this waits for the answer.  Whether or not anybody does, the reply to a call
        that was taken back says so.
        """
        waits = waits and not self._loop.is_own_thread()  # which receives the answer
        asked: CallFuture[bool] = CallFuture("a cancellation")
        with self._lock:
            if self._pending.get(future.call_id) is not future:
                return False
            asked.call_id, asked.receiver = next(self._ids), receiver
            if waits:
                self._pending[asked.call_id] = asked
        self._tell_master(
            control.Cancel(
                actor=self._actor, route=self._route, call=future.call_id, answer=asked.call_id
            )
        )
        if not waits:
            return False
        try:
            never_runs = asked.result(ANSWER_S)
        except RemotelyError:  # no answer, or the connection broke
            never_runs = False
        with self._lock:
            self._pending.pop(asked.call_id, None)
            if never_runs:  # its reply, which says so too, is not waited for
                self._pending.pop(future.call_id, None)
        return never_runs
