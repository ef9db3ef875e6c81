"""Byte streams through one connection of messages: how a process behind NAT is reached.

A process that serves an object dials out, to a worker.  Whoever calls the object connects to a port
of that worker.  The worker passes on what arrives there, byte for byte, in messages of the one
connection; at its other end the same class passes them on to the socket on which the object takes
calls.  So caller and object speak CURVE with each other, end to end.  What is between them sees
ciphertext, and could at most cut it off.

A message is a head and a body:

    head    5 bytes: kind, number of the stream
    LINE    not of a stream: a control message between the two ends
    OPEN    a caller has connected; this is its number from now on
    DATA    bytes of it
    MORE    so many of its bytes have left towards their reader: there is room for as many again
    CLOSE   it is at its end; answered with CLOSE, unless both ends say it at the same time

A stream has WINDOW_BYTES on their way at most.  So a reader that is slow holds up its own stream
and no other, and the memory of neither end fills.

When a stream has ended over there, its last bytes are still passed on here.  Then the socket is
shut for writing, and what comes from it is dropped until its peer has closed too: a TCP socket
that is closed with unread input resets the connection, and the kernel discards what it has not yet
sent.  All of this has DRAIN_S.

Whoever connects may be a stranger.  So a new stream has UNPROVEN_BYTES on their way at most, until
the other end has sent more than the object says before it has checked the caller's key.  How many
such streams there are, also of callers that have gone since, is for the owner to limit.
"""

import enum
import socket
import struct
from collections import deque
from typing import Protocol

from remotely.errors import WireError
from remotely.protocol.lease import DRAIN_S
from remotely.transport.loop import Loop, Timer

WINDOW_BYTES = 1 << 20
PIECE_BYTES = 1 << 18
UNPROVEN_BYTES = 1 << 12  # a caller's part of the CURVE handshake is below 1 KiB
BEFORE_KEY_BYTES = 64 + 170  # greeting and WELCOME; READY follows the check of the key
_MORE_AT_BYTES = WINDOW_BYTES // 4
_HEAD = struct.Struct(">BI")
_COUNT = struct.Struct(">I")


class Part(enum.IntEnum):
    LINE = 0
    OPEN = 1
    DATA = 2
    MORE = 3
    CLOSE = 4


class Send(Protocol):
    def __call__(self, head: bytes, body: bytes, /) -> None:
        """Send a message to the other end, or drop it if that is gone.  Never waits."""


def head_of(part: Part, number: int = 0) -> bytes:
    return _HEAD.pack(part, number)


def read_head(head: bytes) -> tuple[Part, int]:
    """Return what a message is, and of which stream.  Raises WireError."""
    try:
        part, number = _HEAD.unpack(head)
        return Part(part), number
    except (struct.error, ValueError):
        raise WireError("not a message of a tunnel") from None


class _Stream:
    """One end of a stream: a socket here, and what is on its way to it."""

    def __init__(self, number: int, end: socket.socket) -> None:
        self.number = number
        self.socket = end
        self.credit = WINDOW_BYTES  # that the other end has room for
        self.received = 0
        self.unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self.untold = 0  # bytes that have left, of which the other end has not heard
        self.end: Timer | None = None  # set once the stream has ended over there


class Tunnel:
    """One end of a tunnel; all of it runs on the thread of `loop`."""

    def __init__(self, loop: Loop, send: Send) -> None:
        self._loop = loop
        self._send = send
        self._streams: dict[int, _Stream] = {}
        self._unproven: set[int] = set()  # opened here, and the other end may not have let them in

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def unproven(self) -> int:
        """How many streams were opened here of which the other end has not shown that it knows the
        caller, nor confirmed the end."""
        return len(self._unproven)

    def add(self, number: int, end: socket.socket) -> None:
        """Connect a socket of this side with the stream of this number."""
        end.setblocking(False)
        stream = self._streams[number] = _Stream(number, end)
        if number in self._unproven:
            stream.credit = UNPROVEN_BYTES
        pump = lambda: self._pump(stream)
        self._loop.watch(end.fileno(), pump, edge=True, writable=True)

    def open(self, number: int, end: socket.socket) -> None:
        """Begin a stream: tell the other end, and connect a socket of this side with it."""
        self._unproven.add(number)
        self._send(head_of(Part.OPEN, number), b"")
        self.add(number, end)

    def hear(self, part: Part, number: int, body: bytes) -> None:
        """Take in a message of a stream.  Raises WireError if its sender breaks the rules."""
        stream = self._streams.get(number)
        if part is Part.CLOSE:
            self._unproven.discard(number)
            if stream is not None:
                self._send(head_of(Part.CLOSE, number), b"")
        if stream is None:  # it has ended here
            return
        if part is Part.DATA:
            self._prove(stream, len(body))
            stream.unsent.append(memoryview(body))
            stream.unsent_bytes += len(body)
            if stream.unsent_bytes > WINDOW_BYTES:
                self.refuse(number)
                raise WireError("more in a tunnel than there is room for")
        elif part is Part.MORE:
            if len(body) != _COUNT.size:
                raise WireError("not a count of bytes")
            if number not in self._unproven:
                stream.credit = min(WINDOW_BYTES, stream.credit + _COUNT.unpack(body)[0])
        elif part is Part.CLOSE:
            self._end(stream)
        self._pump(stream)

    def refuse(self, number: int) -> None:
        """End a stream, or one that cannot begin."""
        self._send(head_of(Part.CLOSE, number), b"")
        if (stream := self._streams.get(number)) is not None:
            self._drop(stream)

    def finish(self) -> None:
        """The other end has gone in good order: pass on what came before, then end all streams."""
        for stream in list(self._streams.values()):
            self._end(stream)
            self._pump(stream)

    def close(self) -> None:
        """End all streams of this side; the other end is gone."""
        for stream in list(self._streams.values()):
            self._drop(stream)

    def _prove(self, stream: _Stream, nbytes: int) -> None:
        """The other end has sent so many bytes more."""
        stream.received += nbytes
        if stream.received > BEFORE_KEY_BYTES and stream.number in self._unproven:
            self._unproven.remove(stream.number)
            stream.credit += WINDOW_BYTES - UNPROVEN_BYTES

    def _pump(self, stream: _Stream) -> None:
        """Pass on what can be: to the socket as far as it has room, from it as far as there is
        credit."""
        if self._streams.get(stream.number) is not stream:
            return
        try:
            while stream.unsent:
                self._write(stream)
        except BlockingIOError:
            pass  # called again when there is room
        except OSError:
            self.refuse(stream.number)
            return
        if stream.untold >= _MORE_AT_BYTES:
            self._send(head_of(Part.MORE, stream.number), _COUNT.pack(stream.untold))
            stream.untold = 0
        if stream.end:
            self._pump_out(stream)
            return
        while stream.credit:
            try:
                piece = stream.socket.recv(min(PIECE_BYTES, stream.credit))
            except BlockingIOError:
                return
            except OSError:
                piece = b""
            if not piece:
                self.refuse(stream.number)
                return
            stream.credit -= len(piece)
            self._send(head_of(Part.DATA, stream.number), piece)

    def _end(self, stream: _Stream) -> None:
        """No more will come for it."""
        if stream.end is None:
            stream.end = self._loop.after(DRAIN_S, lambda: self._drop(stream))

    def _pump_out(self, stream: _Stream) -> None:
        """The stream has ended over there: drop it when its reader has all, and has closed too."""
        try:
            if not stream.unsent:
                stream.socket.shutdown(socket.SHUT_WR)
            for _ in range(WINDOW_BYTES // PIECE_BYTES):
                if not stream.socket.recv(PIECE_BYTES):
                    break
            else:  # other streams have their turn
                self._loop.call(lambda: self._pump(stream))
                return
        except BlockingIOError:
            return
        except OSError:  # its reader is gone
            self._drop(stream)
            return
        if not stream.unsent:
            self._drop(stream)

    def _write(self, stream: _Stream) -> None:
        piece = stream.unsent[0]
        sent = stream.socket.send(piece)
        stream.untold += sent
        stream.unsent_bytes -= sent
        if sent == len(piece):
            stream.unsent.popleft()
        else:
            stream.unsent[0] = piece[sent:]

    def _drop(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        if stream.end:
            stream.end.cancel()
        self._loop.unwatch(stream.socket.fileno())
        stream.socket.close()
