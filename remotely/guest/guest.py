"""A process that serves an object, as a worker with one actor: that object.

To the master it is a worker without a Python and without resources, so nothing is placed there.
To the actor (remotely/actor/), which is in the same process, it is what a worker is.  Its callers
on other machines reach it through the relay of a worker (transport/relay.py).

    the master is asked for a relay      it names a worker, one of its own machine if it can
    the relay has opened a port          the object is an actor: Register, with where it is called
    the master takes it                  it is served; else the reason is raised
    the connection to the master breaks  calls go on; Register is said again, to a new master too
    the relay is lost                    the actor has ended; the process may dial in again
    a client or the master ends it       the actor is told to leave; if it does not in time, its
                                         callers are cut off.  Its process lives on
    the actor ends                       its last replies go out first, and then the news of its end
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from remotely.actor.actor import Hear
from remotely.errors import (
    ActorDied,
    MasterLost,
    NotConnected,
    RemotelyError,
    WorkerLost,
)
from remotely.machine import this_machine
from remotely.protocol import control
from remotely.protocol.address import join_address, no_master, parse_address
from remotely.protocol.ids import bound_id
from remotely.protocol.lease import CONNECT_S
from remotely.protocol.resources import Resources
from remotely.transport import sockets
from remotely.transport.access_list import AccessRelay
from remotely.transport.keys import MemberKey
from remotely.transport.listening import nearest, reach
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink
from remotely.transport.relay import Home

log = logging.getLogger("remotely")

LAST_REPLIES_S = 2.0
LAST_WORDS_S = 0.5  # a cluster that is stopped takes the relay away, and says so
DRAIN_EVERY_S = 0.01


class Guest:
    """One dialling in, from the question for a relay to the end of the actor.

    The constructor raises MasterLost if the master does not answer, NotAllowed, NoResources if no
    worker can relay, and WorkerLost for one that does not.  `before` is the nonce of the last.
    """

    def __init__(self, address: str, key: MemberKey, before: str, path: Path) -> None:
        self.why: RemotelyError | None = None  # it was ended
        self.was_served = False
        self.nonce = secrets.token_hex(16)
        self.id = bound_id("worker", key.pair.public, self.nonce)  # of the worker, and the actor
        self._before = [before] if before else []
        self._status: control.ActorStatus | None = None  # once there is an actor
        self._is_registered = False
        self._has_left = False  # the actor
        self._obituary = control.Obituary(actor=self.id, life=0)
        self._calls = 0
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
            self._hear,
            self._be_refused,
        )
        self._access = AccessRelay(self._link.send, lambda _, caller: self._tell_actor(caller))
        self._thread = threading.Thread(target=self._loop.run, name="remotely-guest", daemon=True)
        try:
            relay = self._find_relay(reached)
            place = self._place_of(relay)
            self._home = Home(self._loop, place, relay.token, str(path), self._lose_relay)
        except BaseException:
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
        """Return where the relay is.

        On the master's machine it is at the name by which the master was reached: from outside of
        its network, its own addresses may lead nowhere.
        """
        try:
            address = nearest(relay.address)
            return (
                join_address(self._master, parse_address(address)[1]) if relay.is_near else address
            )
        except ValueError as error:  # whatever that worker has said of itself
            raise WorkerLost(f"a worker cannot be at {relay.address!r}: {error}") from None

    def start(self, request: control.Request, ipc: str, public_key: bytes) -> None:
        """There is an actor, which takes calls there: have the master take it.

        What becomes of it is seen by the end of the actor.
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
        self._link.send(self._introduce())
        self._thread.start()

    def close(self, why: str) -> None:
        """The actor has ended: pass on what it has sent, tell of its end, and hang up.

        `why` goes to those who call it, unless it is known why already.
        """
        if self._thread.is_alive():
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
            returns=self.was_served,
            python="",
            host=self._status.location.host,
            machine=self._status.location.machine,
            address="",
            pid=os.getpid(),
            resources=Resources(),
            actors=[] if self._has_left else [self._status],
        )

    def _hear(self, message: object) -> None:
        match message:
            case control.Relay() if self._relay is None:
                self._relay = message
            case control.Registered(client_keys=keys):
                self._be_taken()
                self._tell_actor(control.Admit(client_keys=keys))
                self._access.ask_again()
            case control.Caller():
                self._access.handle_reply(message)
            case control.Cancel():
                self._tell_actor(message)
            case control.End(actor=self.id):
                self._be_ended(message)
            case control.AskFigures():
                figures = control.Figures(actor=self.id, calls=self._calls)
                self._link.send(control.Report(actors=[figures]))
            case control.ReadLog(ticket=ticket):  # it is on the terminal of this process
                piece = control.LogPiece(ticket=ticket, text="", offset=0, known=False, ended=False)
                self._link.send(piece)
            case control.Leave():
                self._end(NotConnected("the cluster was stopped"))

    def _be_taken(self) -> None:
        if not self.was_served and self._status is not None:
            request = self._status.request
            log.info("serving %s as %r", request.class_name, request.name)
            self.was_served = True
        self._is_registered = self._status is not None

    def _be_refused(self, error: RemotelyError) -> None:
        self._is_registered = False
        self._end(error)

    def _be_ended(self, end: control.End) -> None:
        self._died(f"killed by {end.by}" if end.by else "closed", asked=True)
        error = ActorDied(self._obituary.why)
        if end.kill or not end.grace_s:
            self._end(error)
        else:
            self._tell_actor(control.Leave())
            self._loop.after(end.grace_s, lambda: self._end(error))

    # --- the relay --------------------------------------------------------------------------------

    def _lose_relay(self, why: str) -> None:
        self._died(why, lost=True)
        self._loop.after(LAST_WORDS_S, lambda: self._end(WorkerLost(why)))

    # --- the actor: what a worker is to it --------------------------------------------------------

    def watch(self, loop: Loop, hear: Hear, lost: Callable[[], None]) -> None:
        self._tell_actor = lambda message: loop.call(lambda: hear(message, None))

    def tell(self, message: control.FromActor) -> None:
        self._loop.call(lambda: self._hear_actor(message))

    def go_on(self) -> bool:
        return True

    def _hear_actor(self, message: control.FromActor) -> None:
        match message:
            case control.MayCall():
                self._access.handle_question("", message)
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
        """Note what is to be told of its end; the first reason counts."""
        known = self._obituary
        self._obituary = msgspec.structs.replace(
            known,
            why=known.why or why,
            asked=known.asked or asked,
            exited=known.exited or exited,
            lost=known.lost or lost,
        )

    def _end(self, error: RemotelyError) -> None:
        """The object is no actor any more: callers are told and cut off, and it has to leave."""
        if self.why is None and not self._has_left:
            self.why = error
            if self._status is not None:
                self._died(str(error))
                self._leave()
                self._home.close()
                self._tell_actor(control.Leave())

    def _finish(self, why: str, deadline: float) -> None:
        """Go when what the actor has sent is passed on."""
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
