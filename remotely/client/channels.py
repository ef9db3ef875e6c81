"""The channels of a client: one for each actor that it calls, opened at the first call."""

import errno
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from remotely.client.actor_state import ActorState
from remotely.client.channel import Channel
from remotely.client.deadlock import WaitReporter
from remotely.client.end_errors import EndError, connection_error, end_error
from remotely.client.question import Question
from remotely.client.stores import Stores
from remotely.errors import NoResources, RemotelyError
from remotely.futures.future import CallFuture
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
        self._open: set[Channel] = set()

    def of(self, actor: ActorState) -> Channel:
        """Return a new channel to an actor that has no open one.

        Waits while the actor is being restarted, and raises an error if it has ended.
        """
        actor.wait_for_life()
        with actor.opening:
            actor.check_lives()
            channel = actor.channel
            if channel is None or channel.ended:
                self.locate(actor)
                channel = self.open(actor)
            return channel

    def may_wait(self) -> bool:
        """Tell whether this is any other thread than that which receives for all channels."""
        return not self._loop.is_own_thread()

    def check_wait(self, actor: ActorState, future: CallFuture[Any], _: bool = False) -> None:
        """Raise an error if the caller would wait for itself."""
        if self._loop.is_own_thread():
            raise RemotelyError(
                f"{future.what} cannot be waited for here, in the done-callback of a future: its "
                "outcome is received on this very thread. Submit the call and go on, or wait for "
                "it in a thread of your own"
            )
        if self._waits is not None:
            self._waits.refuse(actor.actor, future.what)

    def store_of(self, actor: ActorState) -> StoreAddress | None:
        """Return the store of an actor's machine, as far as is known; None for this machine."""
        location = actor.location
        return None if location is None or location.host == self._host else location.store

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
