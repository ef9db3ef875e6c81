"""The connection of a worker or client to the master.

It outlives the master: if the connection breaks or the master restarts, the master asks for an
introduction (`WhoAreYou`), and the link sends it again.

A refusal is reported once.  libzmq itself would retry forever in silence: a master that does not
know the key cuts the handshake, and a master with another key than expected cannot even read it.
Only libzmq's monitor shows either.  The second case looks like any handshake that is cut, for
example by a master that ends, so it counts only if it repeats, and only before the first handshake
has succeeded.

    the key is of a file     the master knows the list: it was revoked, perhaps while the connection
                             was broken
    it is an actor's own     reported only before the first handshake; later it is waited out: a
                             restarted master may not know it until that actor's worker is back

libzmq gives up on a socket that was refused, and then accepts no messages.  So the next beat
creates a new socket, with a monitor, about as often as libzmq would have retried.  Messages sent in
between are lost, as with any connection that breaks: a worker's introduction reports all that it
has, and a client repeats all its requests.
"""

import functools
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

# None of these occurs if the master is not up yet: libzmq then tries to connect again.
_SHAKEN = zmq.EVENT_HANDSHAKE_SUCCEEDED
_UNLISTED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_CUT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # followed by DISCONNECTED; libzmq tries again
_LEFT = zmq.EVENT_DISCONNECTED  # alone: the peer uses another protocol, and libzmq gives up
CUTS = 3  # consecutive ones: not by chance
CUT_AGAIN_S = 3.0  # the longest time between consecutive cuts; libzmq retries within 2 s

HANDLED_BY_LINK = (control.Tick, control.WhoAreYou, control.Refused)


@functools.cache
def from_master(role: str) -> control.Decoder:
    """Return the decoder of what the master sends to a role; it takes milliseconds to make."""
    return control.Decoder(f"master > {role}")


class MasterLink:
    """A DEALER to the master.  Everything runs on the thread of `loop`.

    `on_connection` is called with false when the connection has broken, at once if the master was
    killed, and with true when it is there again.
    """

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
        on_connection: Callable[[bool], object] | None = None,
    ) -> None:
        self.heard = time.monotonic()
        self._on_renewed = on_renewed
        self._on_connection = on_connection
        self._was_shaken = False  # any socket; and the present one
        self._is_shaken = False
        self._context = context
        self._address = address
        self._key = key
        self._loop = loop
        self._decoder = from_master(key.role)
        self._introduce = introduce
        self._on_message = on_message
        self._on_refused = on_refused
        self._is_given_up = False  # by libzmq, after a refusal
        self._may_return = True
        self._cuts = 0  # consecutive
        self._cut_at = 0.0
        self._is_cut = False
        self._connect(_SHAKEN | _UNLISTED | _CUT | _LEFT)
        self._sent_at = 0.0
        # The master of an embedded cluster watches each process, and is never restarted.
        self._beat = loop.every(BEAT_EVERY_S if is_remote(address) else math.inf, self._send_beat)
        self.send(introduce())

    def _connect(self, monitored: int) -> None:
        """Connect with a new socket, and handle these events of its handshake."""
        key = self._key
        self._is_shaken = False
        self.socket = client(self._context, key.pair, key.master_public, Reconnect.BACKING_OFF)
        self._monitor = self.socket.get_monitor_socket(monitored)
        self._loop.watch_socket(self._monitor, self._handle_handshake)
        connect(self.socket, self._address)
        self._loop.watch_socket(self.socket, self._receive)

    def _reconnect(self) -> None:
        """Connect with a new socket, on which libzmq has not given up."""
        self._is_given_up = False
        self._end_monitor()
        self._loop.unwatch_socket(self.socket)
        self.socket.close(linger=0)
        monitored = _SHAKEN | _UNLISTED if self._key.file else _SHAKEN
        self._connect(monitored | _LEFT if self._was_shaken and self._on_connection else monitored)
        self.send(self._introduce())

    def _send_beat(self) -> None:
        """Send a Beat, unless another message has renewed the lease since the last one.

        A worker tracks its own lease, so it asks each time for a Tick that names the Beat.
        """
        if self._is_given_up and self._may_return:
            self._reconnect()
        elif self._on_renewed is not None:
            self.send(control.Beat(asked=fence.now()))
        elif time.monotonic() - self._sent_at >= BEAT_EVERY_S:
            self.send(control.Beat())

    def send(self, message: msgspec.Struct) -> None:
        self._sent_at = time.monotonic()
        try:
            self.socket.send(control.encode(message), zmq.NOBLOCK)
        except zmq.Again:  # not a full queue, which is unbounded: libzmq has given up
            self._is_given_up = True

    def silent_s(self) -> float:
        """Return for how long the master has been silent; it sends a Tick every TICK_EVERY_S."""
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

    def _handle_handshake(self, frames: list[zmq.Frame]) -> None:
        event = event_of(frames[0].buffer)
        if self._on_connection is not None:
            if event == _SHAKEN:
                self._is_shaken = self._was_shaken = True
                self._on_connection(True)
                return
            if self._is_shaken and event == _LEFT:
                self._on_connection(False)
            if self._is_shaken or (self._was_shaken and event == _LEFT):
                return  # as if it were no longer monitored
        self._may_return &= event != _UNLISTED
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
        """Stop monitoring the handshake.  Idempotent.

        libzmq's one I/O thread blocks until a monitor has room for an event, forever if nobody
        reads it.  So libzmq must stop sending events before we stop reading them.
        """
        if not self._monitor.closed:
            self._loop.unwatch_socket(self._monitor)
            self.socket.disable_monitor()
            self._monitor.close(linger=0)


def _wrong_key(address: str, key: MemberKey, is_unlisted: bool) -> str:
    """Return the error for a refused key; `is_unlisted`: the master does not list the key."""
    role, place = key.role, address.removeprefix("tcp://")
    which = f"this key ({key.file})" if key.file else "this key"
    if is_unlisted:
        return (
            f"{place} refused {which}: it was revoked, or made for another cluster. Ask the "
            f"administrator for another (`remotely keys add {role} FILE` on the master's machine)"
        )
    named = "--key FILE" if role == "worker" else "remotely.connect(..., key=FILE), --key FILE"
    return (
        f"{place} refused {which}: the key is for another cluster, or {place} is not a remotely "
        f"master; copy {role}.key from the master's machine, where {WHERE_KEYS_ARE}, and name it "
        f"by {named} or REMOTELY_KEY"
    )
