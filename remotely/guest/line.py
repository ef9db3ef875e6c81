"""The connection of a process that serves an object, on a thread of its own.

To the actor in this process (remotely/actor/) it is what a worker is: the other end of its socket.
To the worker at which the process has dialled in, it is what an actor's process is.  It passes on
what the two say to each other, and the byte streams of the callers (tunnel.py).

    the worker has us end          the actor is told to leave, and with it the serving ends
    the connection ends            the same, but the process may dial in again
    the actor ends                 its last replies go out first, and then the news of its end
"""

import contextlib
import logging
import socket
import threading
import time
from collections import deque

import zmq

from remotely.errors import NotAllowed, RemotelyError, WireError, WorkerLost, error_class
from remotely.protocol import control
from remotely.protocol.lease import LEASE_S
from remotely.transport import sockets
from remotely.transport.keys import MemberKey
from remotely.transport.loop import Loop
from remotely.transport.sockets import Reconnect
from remotely.transport.tunnel import Part, Tunnel, head_of, read_head

log = logging.getLogger("remotely")

LOOK_EVERY_S = 1.0
LAST_REPLIES_S = 2.0
DRAIN_EVERY_S = 0.01
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_ENDS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | _REFUSED


class Line:
    """`end` is ours of the socket of the actor, `ipc` the path at which it takes calls."""

    def __init__(
        self,
        host: control.Host,
        key: MemberKey,
        arrive: control.Arrive,
        end: socket.socket,
        ipc: str,
    ) -> None:
        self.why: RemotelyError | None = None  # it has ended
        self.was_hosted = False
        self.actor = arrive.request.actor
        self._arrive = arrive
        self._place = host.address.removeprefix("tcp://")
        self._actor = end
        self._ipc = ipc
        self._heard = time.monotonic()
        self._has_ended = False
        self._untold: deque[bytes] = deque()  # messages for the actor
        self._last_word = b""  # the news of the actor's end
        self._decoder = control.Decoder(control.ToGuest)
        self._from_actor = control.Decoder(control.FromActor)
        self._loop = Loop()
        self._context = sockets.new_context()
        self._socket = sockets.client(self._context, key.pair, host.public_key, Reconnect.NEVER)
        self._monitor = self._socket.get_monitor_socket(_ENDS)
        sockets.connect(self._socket, host.address)
        self._tunnel = Tunnel(self._loop, self._pass_on)
        end.setblocking(False)
        self._loop.watch(end.fileno(), self._hear_actor)
        self._loop.watch_socket(self._socket, self._hear)
        self._loop.watch_socket(self._monitor, self._see_end)
        self._loop.every(LOOK_EVERY_S, self._look)
        self._thread = threading.Thread(target=self._loop.run, name="remotely-guest", daemon=True)

    def start(self) -> None:
        """Dial in.  What becomes of it is seen by the end of the actor."""
        self._pass_on(head_of(Part.LINE), control.encode(self._arrive))
        self._thread.start()

    def close(self, why: str) -> None:
        """The actor has ended: send what it has said, and hang up.

        `why` goes to those who call it, unless the actor has said why itself.
        """
        self._loop.call(lambda: self._finish(why, time.monotonic() + LAST_REPLIES_S))
        if self._thread.is_alive():
            self._thread.join()
        self._tunnel.close()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(1000 * LAST_REPLIES_S))
        self._context.term()
        self._loop.close()
        self._actor.close()

    # --- on the thread ----------------------------------------------------------------------------

    def _hear(self, frames: list[zmq.Frame]) -> None:
        self._heard = time.monotonic()
        try:
            if len(frames) != 2:
                raise WireError("not a message of a tunnel")
            part, number = read_head(frames[0].bytes)
            if part is Part.LINE:
                self._hear_line(frames[1].bytes)
            elif part is Part.OPEN:
                self._open(number)
            else:
                self._tunnel.hear(part, number, frames[1].bytes)
        except RemotelyError as error:
            self._end(WorkerLost(f"{self._place} broke the protocol: {error}"))

    def _hear_line(self, data: bytes) -> None:
        match self._decoder.decode(data):
            case control.Hosted(request=request):
                self.was_hosted = True
                log.info("serving %s as %r", request.class_name, request.name)
            case control.NotHosted(error=kind, why=why):
                self._end((error_class(kind) or RemotelyError)(why))
            case (
                control.Admit()
                | control.Caller()
                | control.Cancel()
                | control.Leave()
                | control.Meet()
            ):
                self._tell_actor(data)

    def _open(self, number: int) -> None:
        """A caller has connected over there: connect to the actor for it."""
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        try:
            end.connect(self._ipc)
        except OSError:
            end.close()
            self._tunnel.refuse(number)
        else:
            self._tunnel.add(number, end)

    def _hear_actor(self) -> None:
        while True:
            try:
                data = self._actor.recv(control.MAX_MESSAGE)
            except OSError:  # there is no more for now
                return
            if not data:
                self._loop.unwatch(self._actor.fileno())
                return
            if isinstance(self._from_actor.decode(data), control.Exiting):
                self._last_word = data  # after its last replies
            else:
                self._pass_on(head_of(Part.LINE), data)

    def _see_end(self, frames: list[zmq.Frame]) -> None:
        refused = sockets.event_of(frames[0].buffer) == _REFUSED
        if refused:
            why = f"{self._place} refused this key: it was revoked, or made for another cluster"
            self._end(NotAllowed(why))
        else:
            self._end(WorkerLost(f"the connection to {self._place} broke, or could not be made"))

    def _look(self) -> None:
        silent_s = time.monotonic() - self._heard
        if silent_s > LEASE_S:
            self._end(WorkerLost(f"{self._place} has said nothing for {silent_s:.0f} s"))

    def _end(self, error: RemotelyError) -> None:
        """The actor is none any more: it has to leave."""
        if self.why is None and not self._has_ended:
            self.why = error
            self._tell_actor(control.encode(control.Leave()))

    def _tell_actor(self, data: bytes) -> None:
        """Send the actor a message after those for which its socket has had no room."""
        self._untold.append(data)
        if len(self._untold) == 1:
            self._go_on()

    def _go_on(self) -> None:
        while self._untold:
            try:
                self._actor.send(self._untold[0])
            except BlockingIOError:
                self._loop.after(DRAIN_EVERY_S, self._go_on)
                return
            except OSError:  # the actor has ended
                pass
            self._untold.popleft()

    def _finish(self, why: str, deadline: float) -> None:
        """Go when the streams have passed on all that the actor has sent."""
        self._has_ended = True
        self._hear_actor()
        if len(self._tunnel) and self.why is None and time.monotonic() < deadline:
            self._loop.after(DRAIN_EVERY_S, lambda: self._finish(why, deadline))
            return
        if self._last_word:
            self._pass_on(head_of(Part.LINE), control.encode(control.Ending(why=why)))
            self._pass_on(head_of(Part.LINE), self._last_word)
        self._loop.stop()

    def _pass_on(self, head: bytes, body: bytes) -> None:
        with contextlib.suppress(zmq.ZMQError):  # the connection has ended, as `_see_end` will hear
            sockets.send(self._socket, (head, body))
