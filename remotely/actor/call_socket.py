"""The socket over which an actor receives calls and sends replies.

Small results of calls that arrived in one message are sent in one message: each is held while the
next of these calls runs.  Small results of tasks that end in the same turn of an event loop are
held too.  Since the next call may be a long one, the background thread checks every HELD_LOOK_S
while results are held, and sends those that were there at its last check.  It also answers
cancellations, and calls that run on threads send their own replies: hence the lock.

While a debugger has stopped the main thread, the background thread receives (debugger.py).  What is
not for the debugger waits in `_ahead`, where the main thread finds it first.
"""

import os
import threading
from collections import deque

import zmq

from remotely.actor import exiting
from remotely.actor.servant import RoutedReply
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind
from remotely.testing import faults
from remotely.transport import sockets
from remotely.transport.keys import KeyPair
from remotely.transport.listening import listen
from remotely.transport.loop import Loop
from remotely.values import arena

HELD_LOOK_S = 0.002
MOST_AHEAD = 256 << 20  # bytes of calls that wait for the main thread beside the socket
MESSAGE_BYTES = 1 << 10  # that the objects of a message take, about
IDLE_LOOKS = 10  # with nothing held, after which the background thread stops checking
Received = tuple[bytes, bytes, list[bytes | memoryview]]  # route, key, frames
_PROBE = wire.encode(Kind.RESULT, 0)  # there is no call 0, so the client drops it


def _size_of(received: Received) -> int:
    return MESSAGE_BYTES + sum(len(frame) for frame in received[2])


class CallSocket:
    """A bound ROUTER.  `background` is the loop of the thread that checks held results."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", birth: control.Birth, background: Loop
    ) -> None:
        self._background = background
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: list[bytes | memoryview] = []  # results to send in one message
        self._held_route = b""
        self._is_old = False  # the held results were there at the last check
        self._looks_left = 0
        self.holds = False  # the running call arrived in one message with others
        self._wake = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.wake_fd = self._wake.fd
        self._socket = sockets.server(context, KeyPair(birth.public_key, birth.secret_key))
        sockets.bind(self._socket, birth.ipc)
        self.tcp = ""  # where other machines reach it
        if birth.listening.host:
            self.tcp = listen(self._socket, birth.listening)
        self.fd: int = self._socket.FD
        self._ahead: deque[Received] = deque()
        self.ahead_bytes = 0  # that these messages hold

    def wake(self) -> None:
        """Make `wake_fd` readable.  Any thread may call this."""
        os.eventfd_write(self.wake_fd, 1)

    def clear_wake(self) -> None:
        os.eventfd_read(self.wake_fd)

    @property
    def is_crowded(self) -> bool:
        """Whether more calls wait for the main thread than there is room for."""
        return self.ahead_bytes > MOST_AHEAD

    def receive_debug(self) -> Received | None:
        """Return the next DEBUG; keep what is before it for the main thread.  With its key.

        Once too much is kept, the rest waits in the socket and at the senders, as it always does
        while a call runs.
        """
        found, keeps = None, False
        with self._lock:
            while found is None and not self.is_crowded and sockets.readable(self._socket):
                received = sockets.receive_identified(self._socket)
                if wire.is_debug(received[2]):
                    found = received
                else:
                    keeps = True
                    self._ahead.append(received)
                    self.ahead_bytes += _size_of(received)
        if keeps:
            self.wake()
        return found

    def receive(self, with_key: bool) -> Received | None:
        """Return the route, key and frames of the next message; None if there is none.

        The key is empty unless `with_key`, because looking it up takes time.
        """
        with self._lock:
            if self._ahead:  # with the lock: else a message that arrives now could overtake them
                received = self._ahead.popleft()
                self.ahead_bytes -= _size_of(received)
                return received
            if not sockets.readable(self._socket):
                return None
            if with_key:
                return sockets.receive_identified(self._socket)
            route, frames = sockets.receive_routed(self._socket)
            return route, b"", frames

    def send(self, reply: RoutedReply) -> None:
        """Send a reply, or hold it if it is small and `holds` is set."""
        self._check_process()
        with self._lock:
            if self.holds and reply.is_small:
                self._hold(reply)
                return
            if self._held:
                self._send_held()
            self._send_reply(reply)

    def send_beside(self, reply: RoutedReply) -> bool:
        """Send a reply at once.  Any thread may call this.  Return whether the client is there."""
        self._check_process()
        with self._lock:
            arrives = self._send_reply(reply)
        self.wake()  # sending may have consumed the socket's edge-triggered event
        return arrives

    def send_soon(self, reply: RoutedReply) -> None:
        """Send a reply from a task of the event loop; hold a small one until the loop wakes."""
        self._check_process()
        with self._lock:
            if reply.is_small:
                self._hold(reply)
            else:
                self._send_reply(reply)
        self.wake()

    def end_batch(self) -> None:
        """Send the held results: all calls of a message have run, or the event loop has woken."""
        self.holds = False
        if self._held:  # only this thread adds to it
            with self._lock:
                self._send_held()

    def reaches(self, route: bytes) -> bool:
        """Return whether a client is still connected.  Any thread may call this."""
        with self._lock:
            return sockets.send_to_peer(self._socket, (route, *_PROBE))

    def close(self, linger_s: float) -> None:
        self._socket.close(linger=int(linger_s * 1000))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # a method has forked, and returned in the child too
            exiting.end_fork()
        if faults.ON:
            faults.at("actor.reply")

    # --- with the lock ----------------------------------------------------------------------------

    def _send_reply(self, reply: RoutedReply) -> bool:
        """Send a copy: the next call may change an array that belongs to the object."""
        arrives = sockets.send_to_peer(self._socket, (reply.route, *reply.frames))
        if not arrives and reply.loan and (ours := arena.ours()):
            ours.take_back(reply.loan)
        return arrives

    def _hold(self, reply: RoutedReply) -> None:
        if reply.route != self._held_route:  # a batch replies to several clients
            self._send_held()
        self._held_route = reply.route
        self._held.append(reply.frames[0])
        if not self._looks_left:
            self._looks_left = IDLE_LOOKS
            self._background.call(self._look_later)

    def _send_held(self) -> None:
        if self._held:
            held, self._held, self._is_old = self._held, [], False
            frames = wire.batch(Kind.RESULTS, held)
            sockets.send_to_peer(self._socket, (self._held_route, *frames))

    # --- on the background thread -----------------------------------------------------------------

    def _look_later(self) -> None:
        self._background.after(HELD_LOOK_S, self._look)

    def _look(self) -> None:
        with self._lock:
            self._looks_left = IDLE_LOOKS if self._held else self._looks_left - 1
            if self._held and self._is_old:
                self._send_held()
                self.wake()  # as in `send_beside`
            self._is_old = bool(self._held)
            if self._looks_left:
                self._look_later()
