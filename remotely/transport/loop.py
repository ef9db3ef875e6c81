"""An event loop over sockets, descriptors and timers, on one thread; each process runs one.

ZeroMQ's descriptor is edge-triggered: after any send or receive it may stay silent although a
message waits.  So the loop checks each watched socket itself before it sleeps, and handlers need
not care.  Handlers run on the loop's thread; only `call` and `stop` are thread-safe.
"""

import heapq
import itertools
import logging
import os
import select
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

import zmq

from remotely.errors import RemotelyError
from remotely.machine.interrupts import is_for_main
from remotely.machine.owned_fd import OwnedFd
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.sockets import readable

log = logging.getLogger("remotely")

MESSAGES_A_TURN = 100  # per socket, so that timers and other sockets get their turn

Handler = Callable[[], object]
OnMessage = Callable[[list[zmq.Frame]], None]


class Timer:
    """A future call of an action; `cancel` may be called at any time."""

    def __init__(self, action: Handler, every_s: float | None) -> None:
        self.action = action
        self.every_s = every_s
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.action = _nothing  # releases what the action refers to now, not when it is due


def _nothing() -> None: ...


class Loop:
    """Runs handlers until `stop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._sockets: dict[zmq.Socket[bytes], OnMessage] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._calls: deque[Handler] = deque()
        # A thread that writes to it holds a reference.  So `close` cannot free the descriptor while
        # another thread writes; those bytes could otherwise end up in a file of the user.
        self._wake: OwnedFd | None = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._wake_fd = self._wake.fd
        self._throttled = ThrottledLog(log.warning)
        self._stopped = False
        self._thread = 0
        self._epoll.register(self._wake_fd, select.EPOLLIN)

    def watch(
        self, fd: int, handler: Handler, *, edge: bool = False, writable: bool = False
    ) -> None:
        """Call `handler` whenever `fd` is readable or at its end.

        `edge`: once per change; the handler must read everything.  `writable`: also when there is
        room to write.  If interrupted, repeat it.
        """
        self._handlers[fd] = handler
        events = select.EPOLLIN
        events |= (select.EPOLLET if edge else 0) | (select.EPOLLOUT if writable else 0)
        try:
            self._epoll.register(fd, events)
        except FileExistsError:
            self._epoll.modify(fd, events)

    def await_room(self, fd: int, awaited: bool = True) -> None:
        """Call the handler of `fd` also whenever there is room to write, or no longer."""
        room = select.EPOLLOUT if awaited else 0
        self._epoll.modify(fd, select.EPOLLIN | room)

    def unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def watch_socket(self, socket: "zmq.Socket[bytes]", on_message: OnMessage) -> None:
        """Call `on_message` with the frames of each message."""
        self._sockets[socket] = on_message
        self._epoll.register(socket.FD, select.EPOLLIN | select.EPOLLET)

    def unwatch_socket(self, socket: "zmq.Socket[bytes]") -> None:
        if self._sockets.pop(socket, None) is not None:
            self._epoll.unregister(socket.FD)

    def every(self, seconds: float, action: Handler) -> Timer:
        return self._set(Timer(action, seconds), seconds)

    def after(self, seconds: float, action: Handler) -> Timer:
        return self._set(Timer(action, None), seconds)

    def call(self, action: Handler) -> None:
        """Run `action` on the loop's thread soon, unless the loop is closed.  Thread-safe."""
        if (wake := self._wake) is not None:
            self._calls.append(action)
            os.eventfd_write(wake.fd, 1)

    def is_own_thread(self) -> bool:
        """Return whether the caller runs on the thread that turns the loop."""
        return self._thread == threading.get_ident()

    def stop(self) -> None:
        self._stopped = True
        if (wake := self._wake) is not None:
            os.eventfd_write(wake.fd, 1)

    def run(self) -> None:
        while not self._stopped:
            self.turn()

    def turn(self, at_most_s: float = 3600.0) -> None:
        """Wait for events, and handle them."""
        self._thread = threading.get_ident()
        busy = self._read_sockets()
        timeout_s = 0.0 if busy or self._calls else min(at_most_s, self._until_next_timer())
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
            elif handler := self._handlers.get(fd):
                self._guard(handler)
        self.run_calls()
        self._run_timers()

    def run_calls(self) -> None:
        """Run the actions of `call` that have come; also after the end of the loop."""
        for _ in range(len(self._calls)):
            self._guard(self._calls.popleft())

    def close(self) -> None:
        """Release everything.  A later `call` does nothing."""
        self._wake = None
        self._epoll.close()
        self._calls.clear()
        self._timers.clear()

    def _set(self, timer: Timer, seconds: float) -> Timer:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def _until_next_timer(self) -> float:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else 3600.0

    def _run_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            if timer.every_s is not None:
                self._set(timer, timer.every_s)
            self._guard(timer.action)

    def _read_sockets(self) -> bool:
        busy = False
        for socket, on_message in list(self._sockets.items()):
            for _ in range(MESSAGES_A_TURN):
                watched = self._sockets.get(socket) is on_message  # a handler may have unwatched it
                if not watched or socket.closed or not readable(socket):
                    break
                busy = True  # check all again: the handler may have consumed another's edge
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                self._guard(lambda: on_message(frames))  # noqa: B023 - called before the next turn
        return busy

    def _guard(self, handler: Handler) -> None:
        """Run a handler.  An error in it must not end the loop."""
        try:
            handler()
        except RemotelyError as error:
            self._throttled.add(str(error), str(error), time.monotonic())
        except BaseException as error:
            if is_for_main(error):
                raise
            trace = f"a handler failed\n{traceback.format_exc().rstrip()}"
            self._throttled.add(repr(error), trace, time.monotonic())
