"""The channels of a client: one for each actor that it calls, opened at the first call."""

import errno
from collections.abc import Callable
from typing import Any, cast

import msgspec
import zmq

from remotely.client.actor_state import ActorState
from remotely.client.back_pressure import ByteBudget
from remotely.client.channel import Channel
from remotely.client.deadlock import WaitReporter
from remotely.client.end_errors import EndError, connection_error, end_error
from remotely.client.question import Question
from remotely.client.stores import Stores
from remotely.errors import NoResources, RemotelyError, WorkerLost
from remotely.futures import wakeup
from remotely.protocol import control
from remotely.protocol.address import parse_address, unreachable
from remotely.protocol.control import Obituary, StoreAddress
from remotely.transport import sockets
from remotely.transport.keys import KeyPair
from remotely.transport.listening import here
from remotely.transport.loop import Loop
from remotely.transport.port_probe import PortProbe

OBITUARY_WAIT_S = 1.5  # after a connection broke: the news why is on its way

Ask = Callable[[Callable[[int], Any]], Question]


class Channels:
    """Any thread may open one; the loop's thread hears that they are broken."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        pair: KeyPair,
        host: str,
        waits: WaitReporter | None,
        ask: Ask,
        tell: Callable[[msgspec.Struct], None],
        stores: Stores,
    ) -> None:
        self._context = context
        self._loop = loop
        self._pair = pair
        self._host = host
        self._waits = waits
        self._ask = ask
        self._tell = tell
        self._stores = stores
        self._budget = ByteBudget()
        self._open: set[Channel] = set()

    def of(self, actor: ActorState) -> Channel:
        """Return a new channel to an actor that has no open one.

        Waits while the actor is being restarted, and raises an error if it has ended.
        """
        if self._loop.is_own_thread():  # all that follows waits for what this thread receives
            raise _cannot_wait(actor)
        if actor.ended is None:
            wakeup.sleep_until(lambda: actor.settled, about=actor)
        with actor.lock:
            if actor.ended is not None:
                raise actor.ended(False)
            channel = actor.channel
            if channel is None or channel.ended:
                self.locate(actor)
                channel = self.open(actor)
            return channel

    def is_on_loop(self) -> bool:
        """Tell whether this is the thread that receives for all channels."""
        return self._loop.is_own_thread()

    def store_of(self, actor: ActorState) -> StoreAddress | None:
        """Return the store of an actor's machine; None for this machine.  Raises as `of` does."""
        channel = actor.channel
        if channel is None or channel.ended:
            channel = self.of(actor)
        return None if channel.location.host == self._host else channel.location.store

    def is_apart(self, actor: ActorState) -> bool:
        """Tell whether an actor is elsewhere and has no store: it may reach none."""
        location = actor.location
        return location is not None and location.host != self._host and location.store is None

    def unanswered(self) -> dict[str, int]:
        """Return how many calls each actor still has to answer, without those that have none."""
        channels = [(channel.location.actor, channel.unanswered) for channel in list(self._open)]
        return {actor: calls for actor, calls in channels if calls}

    def locate(self, actor: ActorState) -> None:
        """Ask the master where an actor lives.  Raises an error if it has ended."""
        located = self._ask(lambda t: control.Locate(ticket=t, actor=actor.actor)).result()
        if located.location is None:
            gone = located.obituary or Obituary(actor=actor.actor, life=0, asked=True)
            raise end_error(actor.name, actor.location, gone)(False)
        actor.location = located.location
        actor.expect_life(located.location.life)

    def open(self, actor: ActorState) -> Channel:
        """Open a channel to where an actor is known to live."""
        location = actor.location
        assert location is not None
        same_host = location.host == self._host
        try:
            channel = Channel(
                self._context,
                self._loop,
                location,
                same_host,
                self._pair,
                self._budget,
                self._broken,
                self._tell,
                self._stores,
                self._waits,
            )
        except (zmq.ZMQError, OSError) as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise NoResources(
                f"this process may have no more open files, and a channel to {actor.name} needs a "
                "few: raise the limit (ulimit -n), or drop some handles"
            ) from None
        self._open.add(channel)
        actor.channel = channel
        if not same_host and location.store is not None:
            channel.fetch_results(True)
        return channel

    def end_all(self, how: EndError) -> None:
        for channel in list(self._open):
            channel.end(how, now=True)

    def tend(self) -> None:
        """On the loop's thread, each second."""
        for channel in list(self._open):
            if channel.ended:
                self._open.discard(channel)
            else:
                channel.tend()

    def _broken(self, channel: Channel) -> None:
        """A connection broke; the master may be about to say why, or its machine may."""
        probe = None
        if sockets.is_remote(channel.endpoint):
            probe = PortProbe(*parse_address(channel.endpoint))
        self._loop.after(OBITUARY_WAIT_S, lambda: self._give_up(channel, probe))

    def _give_up(self, channel: Channel, probe: PortProbe | None) -> None:
        code = probe.code() if probe else 0
        if not channel.ended:
            why = ""
            if probe:
                host, port = parse_address(channel.endpoint)
                why = unreachable(here(host, port), host, port, code)
            channel.end(connection_error(channel.location, channel.connected, why))


def _cannot_wait(actor: ActorState) -> RemotelyError:
    if actor.ended is not None:
        return cast(RemotelyError, actor.ended(False))
    why = (
        f"{actor.name} cannot be called from the done-callback of a future while it has no "
        "connection: the callback runs where connections are made; the call did not run. Call "
        "from a thread of your own, or mark the method @remotely.idempotent"
    )
    return WorkerLost(why, may_have_run=False)
