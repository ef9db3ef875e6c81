"""Processes that have dialled in to a worker, each to serve an object of its own.

Towards the master the worker speaks for such an actor as it does for those that it has started,
and towards the process it says what it says to these, but over the connection that the process
has made.  Over the same connection go the calls, as ciphertext (tunnel.py).  Who may call, the
master tells the process itself.

    the process says Arrived          the master is asked, and answers Hosted or NotHosted
    a caller connects to its port     a stream of its tunnel
    the process says that it exits    the actor was closed, or its process has stopped serving it
    its connection ends               the actor has died; nobody here can tell of what
    the master asks for its end       the process is told, and what it does not do in time is done
                                      here: it is cut off.  It is the user's process: it lives on

The class is over 250 lines: each message and each end changes the same table of guests.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import zmq

from remotely.errors import RemotelyError, WireError
from remotely.machine import guest_folder
from remotely.protocol import control
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import sockets
from remotely.transport.keys import fresh_pair
from remotely.transport.listening import bind_within, listen
from remotely.transport.loop import Loop, Timer
from remotely.transport.tunnel import Part, Tunnel, head_of, read_head
from remotely.worker.nursery import Home

log = logging.getLogger("remotely.worker")

LOOK_EVERY_S = 1.0  # whether each is still there
LOOK_AFTER_CUT_S = 0.05  # the monitor may hear of a cut before the socket
LAST_WORDS_S = 0.2  # what came before a connection was cut is still to be read
MOST_GUESTS = 10_000
MOST_STREAMS = 10_000  # of one guest
MOST_UNPROVEN = 256  # of these, callers that the guest has not let in: they may be strangers
BACKLOG = 128
_TICK = control.encode(control.Tick())


class Tell(Protocol):
    def __call__(self, message: msgspec.Struct, /) -> object: ...


@dataclass
class Guest:
    """A process that serves an object, or asks whether it may."""

    route: bytes
    fd: int  # of its connection
    key: bytes  # with which it came
    arrived: control.Arrived
    tunnel: Tunnel
    port: socket.socket  # at which callers connect
    seal: bytes = b""  # once the master has taken it
    calls: int = 0
    why: str = ""  # it ends
    asked: bool = False  # to end
    is_cut: bool = False  # its connection has ended
    streams: int = 0  # so many there were
    timers: list[Timer] = field(default_factory=list)  # of its end

    @property
    def actor(self) -> str:
        return self.arrived.request.actor


class Guests:
    """Those at one worker.  `send` takes what the master is to hear."""

    def __init__(
        self, loop: Loop, context: "zmq.Context[zmq.Socket[bytes]]", home: Home, send: Tell
    ) -> None:
        self._loop = loop
        self._listening = home.listening
        self._send = send
        self._guests: dict[str, Guest] = {}  # by actor
        self._routes: dict[bytes, Guest] = {}
        self._connections: dict[int, Guest] = {}  # by the descriptor; perhaps one of before
        self._worker_keys: frozenset[bytes] = frozenset()
        self._decoder = control.Decoder(control.FromGuest)
        self._throttled = ThrottledLog(log.warning)
        self._is_closed = False
        pair = fresh_pair()
        self.public_key = pair.public
        self._zap = sockets.ZapHandler(context, self._admit, self._throttled)
        self._socket = sockets.server(context, pair)
        self.address = listen(self._socket, home.listening)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        loop.watch_socket(self._zap.socket, self._zap.answer)
        loop.watch_socket(self._socket, self._hear)
        loop.watch_socket(self._monitor, self._see_cut)
        loop.every(LOOK_EVERY_S, self._look)

    # --- what there is ----------------------------------------------------------------------------

    def statuses(self) -> list[control.ActorStatus]:
        """Return the actors that the master may take for living."""
        return [
            control.ActorStatus(
                location=guest.arrived.location,
                request=guest.arrived.request,
                calls=guest.calls,
                since=guest.arrived.since,
                seal=guest.seal,
            )
            for guest in self._guests.values()
            if guest.seal
        ]

    def figures(self) -> list[control.Figures]:
        return [
            control.Figures(actor=actor, calls=guest.calls)
            for actor, guest in self._guests.items()
            if guest.seal
        ]

    # --- the master -------------------------------------------------------------------------------

    def list_keys(self, worker_keys: Iterable[bytes]) -> None:
        """From now on these keys may dial in."""
        self._worker_keys = frozenset(worker_keys)
        for guest in list(self._guests.values()):
            if guest.key not in self._worker_keys:
                self._turn_away(guest, "NotAllowed", "the key with which it came was revoked")

    def ask_again(self) -> None:
        """The connection to the master is new: what it has not answered is said again."""
        for guest in self._guests.values():
            if not guest.seal:
                self._send(guest.arrived)

    def hear_hosted(self, hosted: control.Hosted) -> None:
        """The master has taken one."""
        if guest := self._guests.get(hosted.actor):
            guest.arrived = msgspec.structs.replace(guest.arrived, request=hosted.request)
            guest.seal = hosted.seal
            self.tell(hosted.actor, msgspec.structs.replace(hosted, seal=b""))
        else:  # it ended while the master was asked, and so nobody was told
            why = "the process that served it ended as it arrived"
            obituary = control.Obituary(actor=hosted.actor, life=0, why=why)
            self._send(control.Died(obituary=obituary))

    def hear_not_hosted(self, refusal: control.NotHosted) -> None:
        """The master has not taken one."""
        if guest := self._guests.get(refusal.actor):
            self._turn_away(guest, refusal.error, refusal.why)

    def end(self, end: control.End) -> bool:
        """End an actor, if it is one of these."""
        if (guest := self._guests.get(end.actor)) is None:
            return False
        guest.asked = True
        guest.why = guest.why or (f"killed by {end.by}" if end.by else "closed")
        if end.kill or not end.grace_s:
            self._turn_away(guest, "ActorDied", guest.why)
        else:
            self.tell(end.actor, control.Leave())
            cut_off = lambda: self._turn_away(guest, "ActorDied", guest.why)
            guest.timers.append(self._loop.after(end.grace_s, cut_off))
        return True

    def give_up(self, why: str) -> None:
        """End every actor at once, as the master may take it for lost."""
        for guest in list(self._guests.values()):
            self._turn_away(guest, "WorkerLost", why)

    def close(self, for_good: bool) -> None:
        """Send all away; `for_good`: the cluster ends, and they need not dial in elsewhere."""
        self._is_closed = True
        for guest in list(self._guests.values()):
            guest.asked = for_good
            if for_good:
                self._turn_away(guest, "NotConnected", "the cluster was stopped")
            else:
                self._turn_away(guest, "WorkerLost", "the worker there was stopped")
        self._loop.unwatch_socket(self._monitor)
        self._socket.disable_monitor()  # first, or libzmq would wait for us to read
        self._monitor.close(linger=0)

    def tell(self, actor: str, message: msgspec.Struct) -> None:
        """Send a message to the process of an actor."""
        if guest := self._guests.get(actor):
            self._say(guest.route, message)

    # --- a guest ----------------------------------------------------------------------------------

    def _admit(self, key: bytes) -> str | None:
        return "worker" if key in self._worker_keys else None

    def _hear(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        guest = self._routes.get(route)
        try:
            if len(frames) != 3:
                raise WireError("not a message of a tunnel")
            part, number = read_head(frames[1].bytes)
            if part is Part.LINE:
                self._hear_line(frames[0], guest, self._decoder.decode(frames[2].buffer))
            elif guest is not None:
                guest.tunnel.hear(part, number, frames[2].bytes)
        except RemotelyError as error:
            whence = sockets.address_of(frames[0])
            self._throttled.add(whence, f"from a guest at {whence}: {error}", time.monotonic())
            self._refuse(route, "", type(error).__name__, str(error))
            if guest is not None:
                self._bury(guest, f"it broke the protocol: {error}")

    def _hear_line(self, sender: zmq.Frame, guest: Guest | None, message: object) -> None:
        match message:
            case control.Arrived() if guest is None:
                self._arrive(sender, message)
            case _ if guest is None:  # it was sent away, and has yet to hear of it
                pass
            case control.Count(calls=calls):
                guest.calls = calls
            case control.Ending(why=why):
                guest.asked = guest.asked or why == "closed"
                guest.why = guest.why or why
            case control.Exiting(calls=calls):
                guest.calls = calls
                self._bury(guest, guest.why, exited=True)

    def _arrive(self, sender: zmq.Frame, arrived: control.Arrived) -> None:
        route, request = sender.bytes, arrived.request
        actor = request.actor
        if self._is_closed or actor in self._guests or len(self._guests) >= MOST_GUESTS:
            self._refuse(route, actor, "NoResources", "there is no room for another guest here")
            return
        try:
            port = bind_within(self._listening.ports, self._new_port)
        except (OSError, RemotelyError) as error:
            self._refuse(route, actor, "NoResources", f"no port for it: {error}")
            return
        port.setblocking(False)
        location = msgspec.structs.replace(
            arrived.location,
            actor=actor,
            name=request.name,
            class_name=request.class_name,
            life=0,
            tcp=self._listening.endpoints(port.getsockname()[1]),
        )
        send = lambda head, body: self._pass_on(route, head, body)
        guest = Guest(
            route,
            sockets.fd_of(sender),
            sockets.sender_of(sender)[1],
            control.Arrived(request=request, location=location, since=time.time()),
            Tunnel(self._loop, send),
            port,
        )
        self._guests[actor] = self._routes[route] = self._connections[guest.fd] = guest
        self._loop.watch(port.fileno(), lambda: self._accept(guest))
        self._send(guest.arrived)

    def _new_port(self, number: int) -> socket.socket:
        """Return a socket at which callers connect."""
        host = self._listening.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, number), family=family, backlog=BACKLOG)

    def _accept(self, guest: Guest) -> None:
        """A caller connects."""
        with contextlib.suppress(OSError):
            end, _ = guest.port.accept()
            if len(guest.tunnel) >= MOST_STREAMS or guest.tunnel.unproven >= MOST_UNPROVEN:
                end.close()
                return
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest.streams += 1
            guest.tunnel.open(guest.streams, end)

    # --- an end -----------------------------------------------------------------------------------

    def _turn_away(self, guest: Guest, error: str, why: str) -> None:
        """Tell a process that it serves no actor of this cluster any more."""
        if self._guests.get(guest.actor) is guest:
            self._refuse(guest.route, guest.actor, error, why)
            self._bury(guest, why)

    def _bury(self, guest: Guest, why: str, exited: bool = False) -> None:
        """Take away all that is here of an actor, and tell.

        If it `exited` in good order, its last replies are still passed on to its callers.
        """
        actor = guest.actor
        if self._guests.get(actor) is not guest:
            return
        del self._guests[actor], self._routes[guest.route]
        if self._connections.get(guest.fd) is guest:
            del self._connections[guest.fd]
        for timer in guest.timers:
            timer.cancel()
        self._loop.unwatch(guest.port.fileno())
        guest.port.close()
        guest.tunnel.finish() if exited else guest.tunnel.close()
        guest_folder.sweep()
        if guest.seal:
            asked = guest.asked
            obituary = control.Obituary(actor=actor, life=0, asked=asked, exited=exited, why=why)
            self._send(control.Died(obituary=obituary))

    def _see_cut(self, frames: list[zmq.Frame]) -> None:
        """A connection has ended, also of a stranger.

        If it was a guest's, see to that when libzmq's socket has heard of it too.
        """
        if guest := self._connections.get(sockets.event_fd(frames[0].buffer)):
            self._loop.after(LOOK_AFTER_CUT_S, lambda: self._look_at(guest))

    def _look(self) -> None:
        for guest in list(self._guests.values()):
            self._look_at(guest)

    def _look_at(self, guest: Guest) -> None:
        if not self._send_frames(guest.route, head_of(Part.LINE), _TICK) and not guest.is_cut:
            guest.is_cut = True
            guest.timers.append(self._loop.after(LAST_WORDS_S, self._undertaker_of(guest)))

    def _undertaker_of(self, guest: Guest) -> Callable[[], None]:
        location = guest.arrived.location
        process = f"pid {location.pid} on {location.machine}"
        why = f"the connection of the process that served it ({process}) ended"
        return lambda: self._bury(guest, why)

    # --- the socket -------------------------------------------------------------------------------

    def _say(self, route: bytes, message: msgspec.Struct) -> None:
        self._pass_on(route, head_of(Part.LINE), control.encode(message))

    def _refuse(self, route: bytes, actor: str, error: str, why: str) -> None:
        self._say(route, control.NotHosted(actor=actor, error=error, why=why))

    def _pass_on(self, route: bytes, head: bytes, body: bytes) -> None:
        self._send_frames(route, head, body)  # if it is gone, `_look` will see it

    def _send_frames(self, route: bytes, head: bytes, body: bytes) -> bool:
        try:
            sockets.send(self._socket, (route, head, body))
        except zmq.ZMQError:
            return False
        return True
