"""A process that serves an object of its own, as a worker with one actor.

To the master it is a worker without a Python version and without resources, so no actor is placed
there.  To the actor, in the same process, it acts as the worker.  Callers on other machines reach
the actor through the relay of a worker (transport/relay.py).

    it asks the master for a relay      the master names a worker, on its own machine if possible
    the relay has opened a port         the object becomes an actor: Register, with its address
    the master accepts it               the object is served; on a refusal, the reason is raised
    the connection to the master fails  calls continue; Register is sent again, also to a new master
    the relay is lost                   the actor has ended; the process may dial in again
    a client or the master ends it      the actor gets Leave; when the grace period is over, its
                                        callers are disconnected.  The process lives on
    the actor ends                      its last replies leave first, then the news of its end
"""

import logging
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from remotely.errors import (
    ActorDied,
    MasterLost,
    NotConnected,
    RemotelyError,
    WorkerLost,
)
from remotely.machine import this_machine, threads
from remotely.protocol import control
from remotely.protocol.address import join_address, no_master, parse_address
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import CONNECT_S
from remotely.protocol.resources import Resources
from remotely.transport import own_metrics, sockets
from remotely.transport.access_list import AccessRelay
from remotely.transport.keys import MemberKey
from remotely.transport.line import OnMessage
from remotely.transport.listening import nearest, reach
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink
from remotely.transport.relay import Home
from remotely.worker.gauge import CPU_AT_LEAST_S, Gauge

log = logging.getLogger("remotely")

OWN_TERMINAL = "remotely: it has dialled in, and its output stays on its own terminal\n"  # as a log
LAST_REPLIES_S = 2.0
STOP_WAIT_S = 0.5  # a stopping cluster ends the relay too, and its Leave arrives soon after
DRAIN_EVERY_S = 0.01


class Guest:
    """One connection to a cluster, from the request for a relay to the end of the actor.

    The constructor raises MasterLost if the master does not answer, NotAllowed, NoResources if no
    worker can relay, and WorkerLost if the relay fails.  `before` is the nonce of the last one.
    """

    def __init__(self, address: str, key: MemberKey, before: str, path: Path) -> None:
        self.why: RemotelyError | None = None  # the reason, if it was ended from outside
        self.was_served = False
        self.nonce = secrets.token_hex(16)
        self.id = bound_id("worker", key.pair.public, self.nonce)  # of both worker and actor
        self._before = [before] if before else []
        self._status: control.ActorStatus | None = None  # once there is an actor
        self._is_registered = False
        self._has_left = False  # the actor
        self._obituary = control.Obituary(actor=self.id, life=0)
        self._calls = 0
        self._gauge: Gauge | None = None  # once there is an actor
        self._relay: control.Relay | None = None
        self._tell_actor: Callable[[object], None] = lambda message: None
        self._master, port = parse_address(address)
        reached = reach(self._master, port, or_else="")
        self._loop = Loop()
        self._context = sockets.new_context()
        self._link = MasterLink(
            self._loop,
            self._context,
            f"tcp://{reached}",
            key,
            self._introduce,
            self._on_message,
            self._on_refused,
        )
        self._access = AccessRelay(self._link.send, lambda _, caller: self._tell_actor(caller))
        self._thread: threading.Thread | None = None  # once there is an actor
        try:
            relay = self._find_relay(reached)
            place = self._place_of(relay)
            self._home = Home(self._loop, place, relay.token, str(path), self._on_relay_lost)
        except BaseException:  # Ctrl-C too: the caller has no guest to close
            self._release()
            raise

    def _find_relay(self, reached: str) -> control.Relay:
        deadline = time.monotonic() + CONNECT_S
        while self._relay is None and (left_s := deadline - time.monotonic()) > 0:
            self._loop.turn(left_s)
            if self.why:
                raise self.why
        if self._relay is None:
            raise MasterLost(no_master(reached, "it does not answer as a master", or_else=""))
        return self._relay

    def _place_of(self, relay: control.Relay) -> str:
        """Return the address of the relay.

        On the master's machine, use the name by which the master was reached: the relay's own
        addresses may be unreachable from outside its network.
        """
        try:
            address = nearest(relay.address)
            return (
                join_address(self._master, parse_address(address)[1]) if relay.is_near else address
            )
        except ValueError as error:  # the worker has reported a malformed address
            raise WorkerLost(f"{relay.address!r} is not the address of a worker: {error}") from None

    def start(self, request: control.Request, ipc: str, public_key: bytes, page: mmap.mmap) -> None:
        """Register the actor, which takes calls at these addresses.

        If the master refuses it, the actor ends.
        """
        location = control.Location(
            actor=self.id,
            name=request.name,
            class_name=request.class_name,
            life=0,
            pid=os.getpid(),
            host=this_machine.identity(),
            machine=this_machine.machine_name(),
            ipc=ipc,
            tcp=self._home.endpoints,
            public_key=public_key,
        )
        self._status = control.ActorStatus(location=location, request=request, since=time.time())
        self._gauge = Gauge(page)
        self._link.send(self._introduce())
        self._thread = threads.start("guest", self._loop.run)

    def close(self, why: str) -> None:
        """The actor has ended: forward its last replies, report its end, and disconnect.

        Its callers get `why` as the reason, unless one was noted before.
        """
        if self._thread is not None and self._thread.is_alive():
            self._loop.call(lambda: self._finish(why, time.monotonic() + LAST_REPLIES_S))
            self._thread.join()
        self._home.close()
        self._release()

    def _release(self) -> None:
        self._link.close(linger_ms=int(1000 * LAST_REPLIES_S) if self._is_registered else 0)
        self._context.term()
        self._loop.close()

    # --- the master -------------------------------------------------------------------------------

    def _introduce(self) -> msgspec.Struct:
        if self._status is None:
            return control.AskRelay()
        return control.Register(
            worker=self.id,
            nonce=self.nonce,
            predecessors=self._before,
            python="",
            host=self._status.location.host,
            machine=self._status.location.machine,
            address="",
            pid=os.getpid(),
            resources=Resources(),
            actors=[] if self._has_left else [self._status],
        )

    def _on_message(self, message: object) -> None:
        match message:
            case control.Relay() if self._relay is None:
                self._relay = message
            case control.Registered(client_keys=keys, seal=seal):
                self._on_registered(seal)
                self._access.list_keys(keys)
            case control.Caller():
                self._access.handle_reply(message)
            case control.Cancel() | control.Attend():
                self._tell_actor(message)
            case control.End(actor=self.id):
                self._on_end(message)
            case control.AskFigures():
                if self._gauge is not None and self._gauge.start_measuring(
                    os.getpid(), time.monotonic()
                ):
                    self._loop.after(CPU_AT_LEAST_S, self._report)
                else:
                    self._report()
            case control.ReadLog():
                self._link.send(self._piece_of_log(message))
            case control.Leave():
                self._end(NotConnected("the cluster was stopped"))

    def _piece_of_log(self, asked: control.ReadLog) -> control.LogPiece:
        is_own = asked.actor == self.id
        text = OWN_TERMINAL if is_own and asked.offset <= 0 else ""
        end = len(OWN_TERMINAL)
        return control.LogPiece(asked.ticket, text, offset=end, known=is_own, ended=False)

    def _report(self) -> None:
        if self._gauge is not None:
            figures = self._gauge.figures(self.id, os.getpid(), self._calls, 0)
            # Its own metrics are those of the whole process, which counts before it serves, too.
            figures = msgspec.structs.replace(figures, metrics=own_metrics.of_process())
            self._link.send(control.Report(actors=[figures]))

    def _on_registered(self, seal: bytes) -> None:
        if self._status is not None:
            self._status = msgspec.structs.replace(self._status, seal=seal)
        if not self.was_served and self._status is not None:
            request = self._status.request
            log.info("serving %s as %r", request.class_name, request.name)
            self.was_served = True
        self._is_registered = self._status is not None

    def _on_refused(self, error: RemotelyError) -> None:
        self._is_registered = False
        self._end(error)

    def _on_end(self, end: control.End) -> None:
        self._died(f"killed by {end.by}" if end.by else "closed", asked=True)
        error = ActorDied(self._obituary.why)
        if end.kill or not end.grace_s:
            self._end(error)
        else:
            self._tell_actor(control.Leave())
            self._loop.after(end.grace_s, lambda: self._end(error))

    # --- the relay --------------------------------------------------------------------------------

    def _on_relay_lost(self, why: str) -> None:
        self._died(why, lost=True)
        self._loop.after(STOP_WAIT_S, lambda: self._end(WorkerLost(why)))

    # --- the actor's `WorkerLine` -----------------------------------------------------------------

    has_sent_all = True

    def watch(self, loop: Loop, on_message: OnMessage, on_lost: Callable[[], object]) -> None:
        self._tell_actor = lambda message: loop.call(lambda: on_message(message, []))

    def send(self, message: control.ControlMessage) -> None:
        self._loop.call(lambda: self._on_actor_message(message))

    def _on_actor_message(self, message: control.ControlMessage) -> None:
        match message:
            case control.MayCall():
                self._access.handle_question("", message)
            case control.CallerHeard(key=key):
                self._access.handle_heard("", key)
            case control.Meet():  # there is no store here
                self._tell_actor(message)
            case control.Count(calls=calls):
                self._calls = calls
            case control.Ending(why=why):
                self._died(why, asked=why == "closed")
            case control.Exiting():
                self._died("", exited=True)

    # --- the end ----------------------------------------------------------------------------------

    def _died(
        self, why: str, asked: bool = False, exited: bool = False, lost: bool = False
    ) -> None:
        """Update the obituary of the actor; the first reason counts."""
        known = self._obituary
        self._obituary = msgspec.structs.replace(
            known,
            why=known.why or why,
            asked=known.asked or asked,
            exited=known.exited or exited,
            lost=known.lost or lost,
        )

    def _end(self, error: RemotelyError) -> None:
        """End the actor: report it, disconnect its callers, and tell it to leave."""
        if self.why is None and not self._has_left:
            self.why = error
            if self._status is not None:
                self._died(str(error))
                self._leave()
                self._home.close()
                self._tell_actor(control.Leave())

    def _finish(self, why: str, deadline: float) -> None:
        """Leave once the replies of the actor are forwarded, or at the deadline."""
        if len(self._home) and self.why is None and time.monotonic() < deadline:
            self._loop.after(DRAIN_EVERY_S, lambda: self._finish(why, deadline))
            return
        self._died(why)
        self._leave()
        self._loop.stop()

    def _leave(self) -> None:
        if not self._has_left and self._is_registered:
            self._link.send(control.Died(obituary=self._obituary))
            self._link.send(control.Left())
        self._has_left = True
