"""The connections of a process that serves an object, on a thread of its own.

To the actor in this process (remotely/actor/) it is what a worker is: the other end of its socket.
There are two connections, and each of the other ends has its say.

    the master   tells where to dial in, and who may call the object.  It alone does: the worker is
                 one machine of many, and what callers send runs as code here
    the worker   relays the byte streams of the callers (tunnel.py), and speaks for the actor
                 towards the master

    the worker has us end            the actor is told to leave, and with it the serving ends
    the connection to it ends        the same, but the process may dial in again
    the actor ends                   its last replies go out first, and then the news of its end
    the master is away               calls go on; callers with the keys of actors, which it has
                                     not vouched for yet, wait
"""

import contextlib
import logging
import socket
import threading
import time
from collections import deque

import msgspec
import zmq

from remotely.errors import (
    MasterLost,
    NotAllowed,
    RemotelyError,
    WireError,
    WorkerLost,
    error_class,
)
from remotely.protocol import control
from remotely.protocol.address import join_address, nobody, parse_address
from remotely.protocol.lease import CONNECT_S, LEASE_S
from remotely.transport import sockets
from remotely.transport.access_list import AccessRelay
from remotely.transport.keys import MemberKey
from remotely.transport.listening import nearest, reach
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink
from remotely.transport.sockets import Reconnect
from remotely.transport.tunnel import Part, Tunnel, head_of, read_head

log = logging.getLogger("remotely")

LOOK_EVERY_S = 1.0
LAST_REPLIES_S = 2.0
DRAIN_EVERY_S = 0.01
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
# The last of them: nobody listens there, and libzmq would try again in a day (Reconnect.NEVER).
_ENDS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | _REFUSED
    | zmq.EVENT_CONNECT_RETRIED
)


class Line:
    """`end` is ours of the socket of the actor, `ipc` the path at which it takes calls.

    The constructor finds the worker.  It raises MasterLost if the master does not answer,
    NotAllowed, NoResources if no worker is there, and WorkerLost for one with an address or a key
    that cannot be.
    """

    def __init__(
        self,
        address: str,
        key: MemberKey,
        ask: control.AskHost,
        end: socket.socket,
        ipc: str,
    ) -> None:
        self.why: RemotelyError | None = None  # it has ended
        self.was_hosted = False
        self.nonce = ask.nonce
        self._ask = ask
        self._actor = end
        self._ipc = ipc
        self._has_ended = False
        self._untold: deque[bytes] = deque()  # messages for the actor
        self._last_word = b""  # the news of the actor's end
        self._decoder = control.Decoder(control.ToGuest)
        self._from_actor = control.Decoder(control.FromActor)
        end.setblocking(False)
        self._master, port = parse_address(address)
        reached = reach(self._master, port, or_else="")
        self._loop = Loop()
        self._context = sockets.new_context()
        self._host: control.Host | None = None
        self._link = MasterLink(
            self._loop,
            self._context,
            f"tcp://{reached}",
            key,
            lambda: self._ask,
            self._hear_master,
            self._be_refused,
        )
        self._access = AccessRelay(self._link.send, self._tell_caller)
        try:
            host = self._find_host(reached)
            try:
                self._dial(host, key)
            except (ValueError, zmq.ZMQError) as error:  # whatever that worker has said of itself
                raise WorkerLost(f"a worker cannot be at {host.address!r}: {error}") from None
        except BaseException:
            self._link.close()
            self._context.destroy(linger=0)
            self._loop.close()
            raise

    def _find_host(self, reached: str) -> control.Host:
        deadline = time.monotonic() + CONNECT_S
        while self._host is None and (left_s := deadline - time.monotonic()) > 0:
            self._loop.turn(left_s)
            if self.why:
                raise self.why
        if self._host is None:
            raise MasterLost(nobody(reached, "it does not answer as a master", or_else=""))
        return self._host

    def _dial(self, host: control.Host, key: MemberKey) -> None:
        """Connect to the worker.

        On the master's machine it is at the name by which the master was reached: from outside of
        its network, its own addresses may lead nowhere.
        """
        address = nearest(host.address)
        if host.is_near:
            address = f"tcp://{join_address(self._master, parse_address(address)[1])}"
        self._place = address.removeprefix("tcp://")
        self._socket = sockets.client(self._context, key.pair, host.public_key, Reconnect.NEVER)
        self._monitor = self._socket.get_monitor_socket(_ENDS)
        sockets.connect(self._socket, address)
        self._heard = time.monotonic()
        self._tunnel = Tunnel(self._loop, self._pass_on)
        self._loop.watch(self._actor.fileno(), self._hear_actor)
        self._loop.watch_socket(self._socket, self._hear)
        self._loop.watch_socket(self._monitor, self._see_end)
        self._loop.every(LOOK_EVERY_S, self._look)
        self._thread = threading.Thread(target=self._loop.run, name="remotely-guest", daemon=True)

    def start(self, arrived: control.Arrived) -> None:
        """Say there what is served.  What becomes of it is seen by the end of the actor."""
        self._pass_on(head_of(Part.LINE), control.encode(arrived))
        self._thread.start()

    def close(self, why: str) -> None:
        """The actor has ended: send what it has said, and hang up.

        `why` goes to those who call it, unless the actor has said why itself.
        """
        self._loop.call(lambda: self._finish(why, time.monotonic() + LAST_REPLIES_S))
        if self._thread.is_alive():
            self._thread.join()
        self._tunnel.close()
        self._link.close()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        is_cut = isinstance(self.why, WorkerLost)  # nobody hears what waits to leave
        self._socket.close(linger=0 if is_cut else int(1000 * LAST_REPLIES_S))
        self._context.term()
        self._loop.close()
        self._actor.close()

    # --- the master -------------------------------------------------------------------------------

    def _hear_master(self, message: object) -> None:
        match message:
            case control.Host() if self._host is None:
                self._host = message
                self._ask = msgspec.structs.replace(self._ask, worker=message.worker)
            case control.Registered(client_keys=keys):
                self._tell_actor(control.encode(control.Admit(client_keys=keys)))
                self._access.ask_again()
            case control.Caller():
                self._access.hear_master(message)

    def _be_refused(self, error: RemotelyError) -> None:
        """The master refuses the key; or it has no place for us, and we may have one by now."""
        if self._host is None or isinstance(error, NotAllowed):
            self._end(error)

    def _tell_caller(self, _: str, caller: control.Caller) -> None:
        self._tell_actor(control.encode(caller))

    # --- the worker -------------------------------------------------------------------------------

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
            case control.Cancel() | control.Leave():
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

    # --- the actor --------------------------------------------------------------------------------

    def _hear_actor(self) -> None:
        while True:
            try:
                data = self._actor.recv(control.MAX_MESSAGE)
            except OSError:  # there is no more for now
                return
            if not data:
                self._loop.unwatch(self._actor.fileno())
                return
            match message := self._from_actor.decode(data):
                case control.MayCall():
                    self._access.hear_actor("", message)
                case control.Meet():  # there is no store here
                    self._tell_actor(data)
                case control.Count() | control.Ending():
                    self._pass_on(head_of(Part.LINE), data)
                case control.Exiting():
                    self._last_word = data  # after its last replies

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
