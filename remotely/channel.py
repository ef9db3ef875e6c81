"""One connection from a client to one life of an actor, and the calls in flight on it.

A ZeroMQ socket belongs to one thread at a time; `_lock` is that time.  Who receives?

    a thread that waits for its own reply leads: it sleeps on the socket's descriptor, outside of
    the lock, and takes in whatever arrives, for everybody
    when nobody leads and calls were submitted, the client's loop takes in what arrives
    a second thread that waits on the same channel leaves it to the leader, or to the loop

So a blocking call leaves from and returns to its own thread.  ZeroMQ's descriptor is edge-triggered
and any operation may swallow its edge; so whoever has held the socket drains it before letting go,
and wakes the leader if something came.

A channel never reconnects.  When its connection breaks, its calls end, typed with doubt, and the
next call opens a new channel: nothing that was queued can reach the next life of an actor, and a
late reply of an older life has nowhere to go.
"""

import itertools
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from remotely import codec, wire
from remotely.control import Location
from remotely.ending import Ended
from remotely.errors import ActorRaised, RemoteTraceback, WireError
from remotely.future import CallFuture
from remotely.keys import KeyPair
from remotely.loop import Loop
from remotely.sockets import Reconnect, client, readable
from remotely.stream import Stream, Token
from remotely.wire import Kind

BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

NOTHING = codec.Encoded(b"", [])

Reply = tuple[CallFuture[Any], wire.Message]


class Channel:
    """Calls to one life of an actor.  `on_broken` is called on the loop's thread."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: Loop,
        location: Location,
        same_host: bool,
        pair: KeyPair,
        on_broken: Callable[["Channel"], None],
    ) -> None:
        self.location = location
        self.connected = False
        self._loop = loop
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._pending: dict[int, CallFuture[Any]] = {}
        self._broken = False
        self._unsent: set[int] = set()
        self._leader: int | None = None  # the wake descriptor of the thread that receives
        self._armed = False
        self._ended: Ended | None = None
        self._on_broken = on_broken
        self._socket = client(context, pair, location.public_key, Reconnect.NEVER)
        self._monitor = self._socket.get_monitor_socket(BROKEN | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._fd = int(self._socket.FD)
        self._socket.connect(location.ipc if same_host else location.tcp)
        loop.watch(self._monitor.FD, self._hear_monitor, edge=True)
        loop.call(self._hear_monitor)

    @property
    def ended(self) -> bool:
        return self._ended is not None

    def send(
        self,
        kind: Kind,
        name: str,
        encoded: codec.Encoded,
        future: CallFuture[Any],
        background: bool,
    ) -> None:
        """Send one call.  With `background` the loop receives its reply if nobody leads."""
        with self._lock:
            if self._ended is None:
                call_id = future.call_id = next(self._ids)
                frames = wire.encode(kind, call_id, name, encoded.payload, encoded.buffers)
                self._pending[call_id] = future
                future.drive = self.wait
                # Who submits may change its arrays at once; who waits for the reply leaves them.
                if self._broken:  # why, we are about to hear
                    self._unsent.add(call_id)
                elif len(frames) == 1:
                    self._socket.send(frames[0], zmq.NOBLOCK)
                else:
                    self._socket.send_multipart(frames, zmq.NOBLOCK, copy=background)
                replies = self._drain()
                if background:
                    self._arm()
                if replies and self._leader is not None:
                    os.eventfd_write(self._leader, 1)
        if not future.call_id:
            assert self._ended is not None
            future.set_exception(self._ended(False))
            return
        self._complete(replies)

    def wait(self, future: CallFuture[Any], timeout: float | None = None) -> None:
        """Return when `future` is done, or after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wake = _wake_descriptor()
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while not future.done():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            with self._lock:
                here = future.call_id in self._pending
                if lead := here and self._leader is None:
                    self._leader = wake
                elif here:
                    self._arm()
            if not lead:  # somebody else receives it, or is completing it at this moment
                future.block(left_s)
                return
            try:
                ready = poll.poll(None if left_s is None else left_s * 1000)
                if any(fd == wake for fd, _ in ready):
                    os.eventfd_read(wake)
            finally:
                with self._lock:
                    self._leader = None
                    replies = self._drain()
                # Not as the leader: a done-callback may call again, and wait.
                self._complete(replies)

    def end(self, ended: Ended) -> None:
        """End every call in flight and close.  Once is enough, twice is harmless."""
        with self._lock:
            if self._ended is not None:
                return
            replies = self._drain()  # what arrived before the end counts
            self._ended = ended
            pending, self._pending = self._pending, {}
            leader = self._leader
            self._disarm()
            self._socket.disable_monitor()
            self._loop.call(self._close_monitor)  # whose thread it belongs to
            self._socket.close(linger=0)
        self._complete(replies)
        for future in pending.values():
            future.set_exception(ended(self.connected and future.call_id not in self._unsent))
        if leader is not None:
            os.eventfd_write(leader, 1)

    def _drain(self) -> list[Reply]:
        """Take in what has arrived.  The lock is held."""
        replies: list[Reply] = []
        if self._ended is not None:
            return replies
        while readable(self._socket):
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            with suppress(WireError):
                message = wire.decode([frame.buffer for frame in frames], "actor")
                if (future := self._pending.pop(message.call_id, None)) is not None:
                    replies.append((future, message))
        if not self._pending:
            self._disarm()
        return replies

    def _arm(self) -> None:
        if not self._armed and self._ended is None:
            self._armed = True
            self._loop.watch(self._fd, self._take_in, edge=True)

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            self._loop.unwatch(self._fd)

    def _complete(self, replies: list[Reply]) -> None:
        """Hand over outcomes.  Outside of the lock: a done-callback may call again."""
        for future, message in replies:
            try:
                if message.kind is Kind.RESULT:
                    value = codec.decode(message.payload, message.buffers)
                    if type(value) is Token:
                        value = self._stream(value.name, future.keep)
                    future.set_result(value)
                else:
                    future.set_exception(_error_of(message))
            except Exception as error:  # a value that does not unpickle here
                future.set_exception(error)

    def _stream(self, name: str, keep: object) -> Stream[Any]:
        def ask() -> CallFuture[Any]:
            future: CallFuture[Any] = CallFuture("a stream", keep)
            self.send(Kind.NEXT, name, NOTHING, future, background=True)
            return future

        def end() -> None:
            # From wherever the last reference went, perhaps amid a call: not on this thread.
            last: CallFuture[Any] = CallFuture("a stream", keep)
            self._loop.call(lambda: self.send(Kind.CLOSE, name, NOTHING, last, background=True))

        return Stream(ask, end)

    def _take_in(self) -> None:
        """On the loop's thread, at an edge."""
        with self._lock:
            if self._leader is not None or self._ended is not None:
                return
            replies = self._drain()
        self._complete(replies)

    def _close_monitor(self) -> None:
        if not self._monitor.closed:
            self._loop.unwatch(self._monitor.FD)
            self._monitor.close(linger=0)

    def _hear_monitor(self) -> None:
        """On the loop's thread."""
        while not self._monitor.closed and readable(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
            elif event & BROKEN and not self._broken:
                self._broken = True
                self._on_broken(self)


def _error_of(message: wire.Message) -> BaseException:
    text = bytes(message.buffers[0]).decode(errors="replace")
    if message.payload:
        with suppress(Exception):  # its class may not exist here, or not take its own arguments
            error = codec.decode(message.payload, [])
            if isinstance(error, BaseException):
                error.__cause__ = RemoteTraceback(text)
                return error
    return ActorRaised(text)


class _Wake:
    """An eventfd that goes with its thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.fd)


_of_thread = threading.local()


def _wake_descriptor() -> int:
    wake = getattr(_of_thread, "wake", None)
    if wake is None:
        wake = _of_thread.wake = _Wake()
    return int(wake.fd)
