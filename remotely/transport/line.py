"""A line: one end of a Unix socket between two processes of a machine.

Messages arrive whole and in order, with descriptors if they need any.  The kernel ends the line
when either process ends.  Lines join a worker to its zygote, its store and each of its actors, and
an actor to the store.

A message that is sent:

    1  sent      the socket takes it
    2  kept      the socket is full: its reader is stopped or busy.  The thread of the loop that
                 watches the line never waits, so the message is kept, and behind it what this
                 thread sends later.  Any other thread waits until there is room
    3  flushed   there is room again: what was kept leaves, in order -> 1
    4  dropped   the line has ended; or `most_kept` messages are kept already

The line:

    5  watched   `on_message` receives each message, and its descriptors, which are closed unless
                 they are taken
    6  lost      the peer has ended, or closed its end; what it had sent before was received.  The
                 socket is closed, and `on_lost` is called once
    7  closed    by this process; nothing is called any more

Before 5 only one thread may use the line, and waits: `receive`, `ask`.
"""

import array
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from remotely.errors import RemotelyError
from remotely.machine.owned_fd import OwnedFd
from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE
from remotely.transport.loop import Loop

MAX_FDS = 3  # with one message
# socket.send_fds and socket.recv_fds are not used here: they ignore flags in Python 3.11.
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)

OnMessage = Callable[[object, list[OwnedFd]], object]


class LineLost(ConnectionError):
    """The peer of a line has ended, or has not answered in time."""


class _End(socket.socket):
    """Closed with the last reference to it, in a garbage cycle too, and without a warning."""

    def __del__(self) -> None:
        self.close()


class Line:
    """`decoder` decodes what the peer may send.  A line that nobody refers to is closed."""

    def __init__(
        self, end: socket.socket, decoder: control.Decoder, most_kept: int | None = None
    ) -> None:
        self._end = _End(fileno=end.detach())
        self.is_open = True
        self._decoder = decoder
        self._most_kept = most_kept
        self._kept: deque[tuple[bytes, list[OwnedFd]]] = deque()
        self._loop: Loop | None = None
        self._on_message: OnMessage = _ignore
        self._on_lost: Callable[[], object] = _ignore

    def fileno(self) -> int:
        return self._end.fileno()

    def watch(self, loop: Loop, on_message: OnMessage, on_lost: Callable[[], object]) -> None:
        """-> 5.  These are called on the loop's thread; either may close the line."""
        self._on_message, self._on_lost = on_message, on_lost
        self._loop = loop
        loop.watch(self._end.fileno(), self._on_event)

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """Send a message and copies of these descriptors.  Any thread may call this.

        Raises OSError for a message that no socket can take.
        """
        if not self.is_open:
            return  # -> 4
        data = control.encode(message)
        may_wait = self._loop is None or not self._loop.is_own_thread()
        if self._kept and not may_wait:
            self._keep(data, fds)
            return
        try:
            self._write(data, fds, 0 if may_wait else socket.MSG_DONTWAIT)  # -> 1
        except BlockingIOError:
            self._keep(data, fds)
        except ConnectionError:
            pass  # -> 4; 6 follows

    @property
    def has_sent_all(self) -> bool:
        """Whether nothing is kept."""
        return not self._kept

    def receive(self) -> tuple[object, list[OwnedFd]] | None:
        """Wait for the next message, and return it with its descriptors; None if the peer ended."""
        data, fds = self._read(0)
        return (self._decoder.decode(data), fds) if data else None

    def ask(self, question: msgspec.Struct, within_s: float) -> object:
        """Send a message and return the answer.  Raises LineLost."""
        self._end.settimeout(within_s)
        try:
            self._write(control.encode(question), (), 0)
            answer = self.receive()
        except OSError as error:
            raise LineLost(str(error)) from None
        if answer is None:
            raise LineLost("it has ended")
        return answer[0]

    def rest(self, at_most: int) -> Iterator[tuple[object, list[OwnedFd]]]:
        """Yield what has arrived and was not received, without waiting; skip what is malformed."""
        with contextlib.suppress(OSError):  # BlockingIOError: nothing is left
            for _ in range(at_most):
                data, fds = self._read(socket.MSG_DONTWAIT)
                if not data:
                    break
                with contextlib.suppress(RemotelyError):
                    yield self._decoder.decode(data), fds

    def close(self) -> None:
        """-> 7."""
        if self.is_open:
            self.is_open = False
            if self._loop is not None:
                self._loop.unwatch(self._end.fileno())
            self._end.close()
            self._kept.clear()
            self._on_message = self._on_lost = _ignore  # they often refer to the line's owner

    # --- on the loop's thread, or before it watches ---------------------------------------------

    def _on_event(self) -> None:
        if self._kept:
            self._flush()
        try:
            data, fds = self._read(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if data:
            self._on_message(self._decoder.decode(data), fds)
            return
        on_lost = self._on_lost
        self.close()
        on_lost()  # 6

    def _read(self, flags: int) -> tuple[bytes, list[OwnedFd]]:
        """Return the next message and its descriptors; no bytes once the peer has ended."""
        flags |= socket.MSG_CMSG_CLOEXEC
        while self.is_open:
            try:
                data, ancillary, _, _ = self._end.recvmsg(MAX_MESSAGE, _ANCILLARY_BYTES, flags)
                return data, [OwnedFd(fd) for fd in _fds_of(ancillary)]
            except ConnectionResetError:
                # The peer has ended without reading everything.  The kernel says so once, and then
                # hands over what the peer has sent.
                continue
        return b"", []

    def _write(self, data: bytes, fds: Sequence[int], flags: int) -> None:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._end.sendmsg([data], passed, flags | socket.MSG_NOSIGNAL)

    def _keep(self, data: bytes, fds: Sequence[int]) -> None:
        """-> 2, or 4 if too much is kept."""
        assert self._loop is not None
        if self._most_kept is None or len(self._kept) < self._most_kept:
            self._kept.append((data, [OwnedFd(os.dup(fd)) for fd in fds]))
            self._loop.await_room(self._end.fileno())

    def _flush(self) -> None:
        """-> 3."""
        assert self._loop is not None
        try:
            while self._kept:
                data, fds = self._kept[0]
                self._write(data, [fd.fd for fd in fds], socket.MSG_DONTWAIT)
                self._kept.popleft()
        except BlockingIOError:
            return
        except ConnectionError:
            self._kept.clear()  # -> 4; 6 follows
        self._loop.await_room(self._end.fileno(), False)


def _fds_of(ancillary: list[tuple[int, int, bytes]]) -> "array.array[int]":
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds


def _ignore(*_: object) -> None: ...
