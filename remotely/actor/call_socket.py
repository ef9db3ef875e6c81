"""The socket over which an actor receives calls and sends replies.

Small results of calls that came in one message go back in one message: while the next of these
calls runs, they are held.  So are those of tasks that end in one turn of an event loop.  The next
call may be a long one, so for as long as results are held, the background thread looks every LOOK_S
and sends what was there at its last look.  It also answers cancellations, and calls that run on
threads send their replies themselves.  These uses outside of the main thread are the reason for the
lock.
"""

import os
import threading
from collections.abc import Sequence

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

LOOK_S = 0.002
LOOKS_IN_VAIN = 10  # after which the background thread stops looking
_ARE_YOU_THERE = wire.encode(Kind.RESULT, 0)  # of no call: the client drops it


class CallSocket:
    """A bound ROUTER.  `background` is the loop of the thread that looks after held results."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", birth: control.Birth, background: Loop
    ) -> None:
        self._background = background
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: list[bytes | memoryview] = []  # results that go back together
        self._held_route = b""
        self._is_old = False  # what is held was there at the last look
        self._looks_left = 0
        self.holds = False  # the call that runs came together with others
        self._wake = OwnedFd(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.wake_fd = self._wake.fd
        self._socket = sockets.server(context, KeyPair(birth.public_key, birth.secret_key))
        sockets.bind(self._socket, birth.ipc)
        self.tcp = ""  # where other machines reach it
        if birth.listening.host:
            self.tcp = listen(self._socket, birth.listening)
        self.fd: int = self._socket.FD

    def wake(self) -> None:
        """Make `wake_fd` readable.  Any thread may call this."""
        os.eventfd_write(self.wake_fd, 1)

    def clear_wake(self) -> None:
        os.eventfd_read(self.wake_fd)

    def receive(self, with_key: bool) -> tuple[bytes, bytes, list[bytes | memoryview]] | None:
        """Return the route, key and frames of the next message; None if there is none.

        The key is empty unless it is asked for: to look it up costs time.
        """
        with self._lock:
            if not sockets.readable(self._socket):
                return None
            if with_key:
                return sockets.receive_identified(self._socket)
            route, frames = sockets.receive_routed(self._socket)
            return route, b"", frames

    def send(self, reply: RoutedReply) -> None:
        """Send a reply, or hold it if it is small and other calls of its message follow."""
        self._check_process()
        with self._lock:
            if self.holds and reply.is_small:
                self._hold(reply)
                return
            if self._held:
                self._send_held()
            self._send_reply(reply)

    def send_beside(self, reply: RoutedReply) -> bool:
        """Send a reply on any thread, whatever the main thread does; return if it arrives."""
        self._check_process()
        with self._lock:
            arrives = self._send_reply(reply)
        self.wake()  # sending may have swallowed the socket's edge
        return arrives

    def send_soon(self, reply: RoutedReply) -> None:
        """Send a reply from a task of the event loop; a small one is held until the loop wakes, and
        leaves with those of other tasks."""
        self._check_process()
        with self._lock:
            if reply.is_small:
                self._hold(reply)
            else:
                self._send_reply(reply)
        self.wake()

    def end_batch(self) -> None:
        """All calls of a message have run, or the event loop has woken: send what is held."""
        self.holds = False
        if self._held:  # only this thread adds to it
            with self._lock:
                self._send_held()

    def reaches(self, route: bytes) -> bool:
        """Return whether a client is still connected.  Any thread may call this."""
        with self._lock:
            return self._send((route, *_ARE_YOU_THERE))

    def close(self, linger_s: float) -> None:
        self._socket.close(linger=int(linger_s * 1000))

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # a method has forked, and returns in the child too
            exiting.end_fork()
        if faults.ON:
            faults.at("actor.reply")

    # --- with the lock ----------------------------------------------------------------------------

    def _send_reply(self, reply: RoutedReply) -> bool:
        """Send a copy, since the next call may change an array that the object keeps."""
        arrives = self._send((reply.route, *reply.frames))
        if not arrives and reply.loan and (ours := arena.ours()):
            ours.take_back(reply.loan)
        return arrives

    def _send(self, frames: Sequence[bytes | memoryview]) -> bool:
        """Return whether the client is still there."""
        try:
            sockets.send(self._socket, frames)
            return True
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False

    def _hold(self, reply: RoutedReply) -> None:
        if reply.route != self._held_route:  # a batch answers calls of several clients
            self._send_held()
        self._held_route = reply.route
        self._held.append(reply.frames[0])
        if not self._looks_left:
            self._looks_left = LOOKS_IN_VAIN
            self._background.call(self._look_later)

    def _send_held(self) -> None:
        if self._held:
            held, self._held, self._is_old = self._held, [], False
            self._send((self._held_route, *wire.batch(Kind.RESULTS, held)))

    # --- on the background thread -----------------------------------------------------------------

    def _look_later(self) -> None:
        self._background.after(LOOK_S, self._look)

    def _look(self) -> None:
        with self._lock:
            self._looks_left = LOOKS_IN_VAIN if self._held else self._looks_left - 1
            if self._held and self._is_old:
                self._send_held()
                self.wake()  # sending may have swallowed the socket's edge
            self._is_old = bool(self._held)
            if self._looks_left:
                self._look_later()
