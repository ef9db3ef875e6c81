"""How a client ends actors: it requests that of the master, and waits until the master confirms."""

import time
from collections.abc import Sequence

from remotely.client.actor_state import ActorState
from remotely.client.channels import Channels
from remotely.client.end_errors import end_error
from remotely.client.master_session import MasterSession
from remotely.protocol import control
from remotely.protocol.control import Obituary
from remotely.protocol.lease import TERM_S
from remotely.transport.loop import Loop

KILLED_WAIT_S = 5.0  # for the news that a killed actor has ended; a core dump may take long
GONE_WAIT_S = 1.0  # after the worker has killed an actor, for the news to arrive


class Terminations:
    """The requests to end actors, which are kept until the master confirms them."""

    def __init__(self, loop: Loop, session: MasterSession, channels: Channels) -> None:
        self._loop = loop
        self._session = session
        self._channels = channels
        self._requested: dict[str, control.End] = {}

    def request(self, actors: Sequence[str], grace_s: float, kill: bool = False) -> None:
        """Have the master end actors.

        Do so too for an actor that was asked for and then given up: it may have a place by now.
        """
        ends = {actor: control.End(actor=actor, grace_s=grace_s, kill=kill) for actor in actors}

        def send() -> None:
            self._requested.update(ends)
            for end in ends.values():
                self._session.link.send(end)

        self._loop.call(send)

    def repeat(self) -> None:
        """On the loop's thread: tell a new master what the last one has not confirmed."""
        for end in self._requested.values():
            self._session.link.send(end)

    def confirm(self, actor: str) -> None:
        """The master says that the actor has ended."""
        self._requested.pop(actor, None)

    def wait_for_end(self, actor: ActorState, deadline: float) -> None:
        """Return when the process of an actor has ended; have it killed after the deadline."""
        if self._loop.is_own_thread():  # a done-callback: this thread receives the news
            return
        if not actor.wait_for_end(deadline):
            self.request([actor.actor], 0.0)
            actor.wait_for_end(time.monotonic() + TERM_S + GONE_WAIT_S)

    def kill(self, actors: Sequence[ActorState]) -> None:
        for actor in actors:
            if not actor.owned:  # the master tells us of its end if we ask where it is
                self._channels.locate(actor)
            self.request([actor.actor], 0.0, kill=True)
        for actor in actors:
            actor.is_gone(KILLED_WAIT_S)
            self.mark_closed(actor)

    def mark_closed(self, actor: ActorState) -> None:
        """Fail all calls of an actor that was closed, those in flight and those to come."""
        if actor.ended is None:
            gone = Obituary(actor=actor.actor, life=actor.request.life, asked=True)
            actor.ended = end_error(actor.name, actor.location, gone)
            actor.wake()
            if actor.channel is not None:
                actor.channel.end(actor.ended, gone)
