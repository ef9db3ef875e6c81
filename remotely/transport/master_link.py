"""The connection to the master, as a worker and a client hold it.

It outlives the master: when the connection breaks or the master is restarted, the master does not
know us and asks (`WhoAreYou`), and we introduce ourselves again.

A refusal is reported once, if nothing has been received before.  libzmq itself would retry for ever
and say nothing: a master that does not know our key cuts the handshake, and a master with another
key than expected cannot even read it.  Only libzmq's monitor shows either.  The second case looks
like any handshake that was cut, as by a master that ends, so it counts when it repeats.

A later refusal is waited out: a restarted master may not know an actor's key until that actor's
worker is back.  But libzmq gives up on a socket that was refused, and accepts nothing for it any
more.  So the next beat makes a new socket, which is as often as libzmq itself would have retried.
What was sent meanwhile is lost, as with any connection that breaks: a worker that introduces itself
reports all that it has, and a client asks all its questions again.
"""

import math
import time
from collections.abc import Callable

import msgspec
import zmq

from remotely.errors import NotAllowed, RemotelyError, VersionMismatch, error_class
from remotely.protocol import control
from remotely.protocol.lease import BEAT_EVERY_S
from remotely.transport import fence
from remotely.transport.key_files import WHERE_KEYS_ARE
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect, client, connect, event_of, is_remote

# A master that is not up yet does none of this: the connection is closed, and tried again.
_SHAKEN = zmq.EVENT_HANDSHAKE_SUCCEEDED
_UNLISTED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_CUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # and then DISCONNECTED; libzmq tries again
_LEFT = zmq.EVENT_DISCONNECTED  # alone: another protocol is spoken there, and libzmq gives up
CUTS = 3  # in a row: it is not by chance
CUT_AGAIN_S = 3.0  # within which of the last one comes the next of a row; libzmq tries within 2 s


class MasterLink:
    """One DEALER to the master; all of it runs on the thread of `loop`."""

    def __init__(
        self,
        loop: Loop,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        key: MemberKey,
        introduce: Callable[[], msgspec.Struct],
        on_message: Callable[[object], None],
        on_refused: Callable[[RemotelyError], None],
        on_renewed: Callable[[float], None] | None = None,
    ) -> None:
        self.heard = time.monotonic()
        self._on_renewed = on_renewed
        self._context = context
        self._address = address
        self._key = key
        self._loop = loop
        self._decoder = control.Decoder(control.FromMaster[key.role])
        self._introduce = introduce
        self._on_message = on_message
        self._on_refused = on_refused
        self._is_given_up = False  # by libzmq, since it was refused
        self._may_return = True
        self._cuts = 0  # in a row
        self._cut_at = 0.0
        self._is_cut = False
        self.socket = self._new_socket()
        self._monitor = self.socket.get_monitor_socket(_SHAKEN | _UNLISTED | _CUT | _LEFT)
        loop.watch_socket(self._monitor, self._see_handshake)
        self._connect()
        self._said = 0.0
        # The master of an embedded cluster sees the end of each process, and is not restarted.
        self._beat = loop.every(BEAT_EVERY_S if is_remote(address) else math.inf, self._keep_up)
        self.send(introduce())

    def _new_socket(self) -> "zmq.Socket[bytes]":
        key = self._key
        return client(self._context, key.pair, key.master_public, Reconnect.BACKING_OFF)

    def _connect(self) -> None:
        connect(self.socket, self._address)
        self._loop.watch_socket(self.socket, self._receive)

    def _come_again(self) -> None:
        """Knock with a socket that was not refused yet."""
        self._is_given_up = False
        self._end_monitor()
        self._loop.unwatch_socket(self.socket)
        self.socket.close(linger=0)
        self.socket = self._new_socket()
        self._connect()
        self.send(self._introduce())

    def _keep_up(self) -> None:
        """Beat, unless we have said something since the last time: that has renewed our lease.

        Who keeps count of its own lease asks each time, and is told which beat was heard.
        """
        if self._is_given_up and self._may_return:
            self._come_again()
        elif self._on_renewed is not None:
            self.send(control.Beat(asked=fence.now()))
        elif time.monotonic() - self._said >= BEAT_EVERY_S:
            self.send(control.Beat())

    def send(self, message: msgspec.Struct) -> None:
        self._said = time.monotonic()
        try:
            self.socket.send(control.encode(message), zmq.NOBLOCK)
        except zmq.Again:  # the queue is unbounded: there is none any more
            self._is_given_up = True

    def silent_s(self) -> float:
        """Return for how long the master has said nothing; it ticks each second."""
        return time.monotonic() - self.heard

    def close(self, linger_ms: int = 0) -> None:
        self._beat.cancel()
        self._end_monitor()
        self._loop.unwatch_socket(self.socket)
        self.socket.close(linger=linger_ms)

    def _receive(self, frames: list[zmq.Frame]) -> None:
        self.heard = time.monotonic()
        try:
            message = self._decoder.decode(frames[0].buffer)
        except VersionMismatch as error:
            self._on_refused(error)
            return
        match message:
            case control.Tick(asked=asked):
                if asked and self._on_renewed is not None:
                    self._on_renewed(asked)
            case control.WhoAreYou():
                self.send(self._introduce())
            case control.Refused(error=kind, why=why):
                self._may_return &= kind != NotAllowed.__name__
                self._on_refused((error_class(kind) or RemotelyError)(why))
            case _:
                self._on_message(message)

    def _see_handshake(self, frames: list[zmq.Frame]) -> None:
        event = event_of(frames[0].buffer)
        if event == _CUT:
            before, self._cut_at = self._cut_at, time.monotonic()
            self._cuts = self._cuts + 1 if self._cut_at < before + CUT_AGAIN_S else 1
            self._is_cut = True
        elif event == _SHAKEN:
            self._end_monitor()
        elif event == _UNLISTED or not self._is_cut or self._cuts == CUTS:
            self._end_monitor()
            self._on_refused(NotAllowed(_wrong_key(self._address, self._key, event == _UNLISTED)))
        else:
            self._is_cut = False

    def _end_monitor(self) -> None:
        """Hear no more of the handshake; harmless when done before.

        libzmq's one I/O thread waits until a monitor has room for an event, and for ever where
        nobody reads: so libzmq has to stop telling before we stop listening.
        """
        if not self._monitor.closed:
            self._loop.unwatch_socket(self._monitor)
            self.socket.disable_monitor()
            self._monitor.close(linger=0)


def _wrong_key(address: str, key: MemberKey, is_unlisted: bool) -> str:
    """Return what to do; `is_unlisted`: the master itself has said that it does not admit it."""
    role, place = key.role, address.removeprefix("tcp://")
    which = f"this key ({key.file})" if key.file else "this key"
    if is_unlisted:
        return (
            f"{place} refused {which}: it was revoked, or made for another cluster. Ask who runs "
            f"the cluster for another, which `remotely keys add {role} FILE` makes there"
        )
    named = "--key FILE" if role == "worker" else "remotely.connect(..., key=FILE), --key FILE"
    return (
        f"{place} refused {which}, which is another cluster's, or is no remotely master: copy "
        f"{role}.key from the master's machine, where {WHERE_KEYS_ARE}, and name it by {named} or "
        "REMOTELY_KEY"
    )
