"""The channels of a client: one for each actor that it calls, opened at the first call."""

import errno
from contextlib import suppress
from functools import partial
from typing import Any

import zmq

from remotely.client.actor_state import ActorState
from remotely.client.bulk_transfer import Stores
from remotely.client.channel import Channel
from remotely.client.deadlock import WaitReporter
from remotely.client.end_errors import EndError, connection_error, end_error
from remotely.client.master_session import MasterSession
from remotely.client.question import Question
from remotely.errors import NoResources, RemotelyError
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.protocol import control
from remotely.protocol.address import parse_address, unreachable
from remotely.protocol.control import Location, Obituary, StoreAddress
from remotely.transport import sockets
from remotely.transport.keys import KeyPair
from remotely.transport.listening import here
from remotely.transport.loop import Loop
from remotely.transport.port_probe import PortProbe

OBITUARY_WAIT_S = 1.5  # after a connection broke: the news why is on its way


class Channels:
    """Any thread may open one; the loop's thread hears that they are broken."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        loop: Loop,
        pair: KeyPair,
        session: MasterSession,
        waits: WaitReporter | None,
        stores: Stores,
    ) -> None:
        self._context = context
        self._loop = loop
        self._pair = pair
        self._session = session
        self._host = session.host
        self._waits = waits
        self._stores = stores
        stores.on_choice = self._choose_path
        self._open: set[Channel] = set()

    def of(self, actor: ActorState) -> Channel:
        """Return a channel to an actor that is connected to it, a new one if it has none.

        Waits while the actor is being restarted, or its machine cannot be reached, and raises an
        error if it has ended.

            asked       the master says where it lives
            connecting  it answers: the channel is its own. It has died: asked. Nobody is there:
                        asked, and the master says so once it has reached the machine itself
            refused     nobody is there, although the master has reached the machine: an error
        """
        refused: Location | None = None
        with actor.opening:
            while True:
                if channel := self._present(actor):
                    return channel
                self.locate(actor, unreached=refused is not None)
                if channel := self._present(actor):  # it is ours, and has a next life
                    return channel
                assert actor.location is not None
                is_last = actor.location == refused
                refused = actor.location
                if channel := self._connected(actor, is_last):
                    return channel

    def _present(self, actor: ActorState) -> Channel | None:
        """Return the open channel of an actor.  Waits if that is broken, until it is known how."""
        actor.wait_for_life()
        if (before := actor.channel) is not None and not before.is_open:
            wakeup.sleep_until(lambda: before.ended or actor.ended, about=actor.opening)
            actor.wait_for_life()
        channel = actor.channel
        return channel if channel is not None and channel.is_open else None

    def _connected(self, actor: ActorState, is_last: bool) -> Channel | None:
        """Connect to where an actor lives; return None if it has died, or nobody is there.

        If this `is_last`, an error says why nobody is there.
        """
        channel = self._open_at(actor)
        life = channel.location.life

        def is_over() -> bool:
            return actor.life > life or actor.ended is not None or channel.ended is not None

        wakeup.sleep_until(
            lambda: channel.connected or is_over() or not (channel.is_open or is_last),
            about=actor.opening,
        )
        if channel.connected:
            actor.channel = channel  # if we do not see now that it died, its death sees this
        if channel.connected and not is_over():
            return channel
        if channel.ended is not None and is_last:
            raise channel.ended(False)
        channel.end(connection_error(channel.location, False, ""))
        return None

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

    def locate(self, actor: ActorState, unreached: bool = False) -> None:
        """Ask the master where an actor lives.  Raises an error if it has ended.

        `unreached`: nobody was found where it was.  Then this waits for news of its machine.
        """
        located = self._session.ask(
            lambda t: control.Locate(ticket=t, actor=actor.actor, unreached=unreached)
        ).result()
        if located.location is None:
            gone = located.obituary or Obituary(actor=actor.actor, life=0, asked=True)
            raise end_error(actor.name, actor.location, gone)(False)
        actor.location = located.location
        actor.expect_life(located.location.life)

    def open(self, actor: ActorState) -> Channel:
        """Open the channel of an actor to where it was just placed."""
        channel = actor.channel = self._open_at(actor)
        return channel

    def _open_at(self, actor: ActorState) -> Channel:
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
                partial(wakeup.wake, actor.opening),
                self._broken,
                self._session.tell,
                self._stores,
                self._session.complain,
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
        if not same_host and location.store is not None:
            channel.fetch_results(self._stores.is_usable(location.store))
        return channel

    def _choose_path(self, store: StoreAddress, is_usable: bool) -> None:
        """On the loop's thread: large results are to go through this store from now on, or not."""
        for channel in list(self._open):
            location = channel.location
            if location.store == store and location.host != self._host and not channel.ended:
                channel.fetch_results(is_usable)

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
        end = partial(self._give_up, channel)
        if sockets.is_remote(channel.endpoint):
            reached = None
            with suppress(RemotelyError):  # it answers nothing any more
                actor = channel.location.actor
                reached = self._session.questions.ask(
                    lambda t: control.Locate(ticket=t, actor=actor, unreached=True)
                )
            end = partial(end, PortProbe(*parse_address(channel.endpoint)), reached)
        self._loop.after(OBITUARY_WAIT_S, end)

    def _give_up(
        self, channel: Channel, probe: PortProbe | None = None, reached: Question | None = None
    ) -> None:
        """End it.  Its port is to blame if it is silent and the master has reached the machine."""
        code = probe.code() if probe else 0
        is_reached = reached is not None and reached.done()
        if reached is not None:
            reached.cancel()
        if not channel.ended:
            why = ""
            if probe and is_reached:
                host, port = parse_address(channel.endpoint)
                why = unreachable(here(host, port), host, port, code)
            error = connection_error(channel.location, channel.connected, why, bool(probe))
            channel.end(error)
