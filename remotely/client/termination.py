"""How a client ends actors: it has the master do it, and waits for the word that it is done."""

import time
from collections.abc import Sequence

from remotely.client.actor_state import ActorState
from remotely.client.channels import Channels
from remotely.client.end_errors import end_error
from remotely.protocol import control
from remotely.protocol.control import Obituary
from remotely.protocol.lease import TERM_S
from remotely.transport.loop import Loop
from remotely.transport.master_link import MasterLink

KILLED_WAIT_S = 5.0  # for a killed actor's end to be told; a busy machine takes long over a core
GONE_WAIT_S = 1.0  # after an actor was killed, for us to be told


class Terminations:
    def __init__(self, loop: Loop, link: MasterLink, channels: Channels) -> None:
        self._loop = loop
        self._link = link
        self._channels = channels
        self._asked: dict[str, control.End] = {}  # for, and not told yet

    def ask_for(self, actors: Sequence[str], grace_s: float, kill: bool = False) -> None:
        """Have the master end actors; a new one is told again until it says that they have ended.

        Of actors that were asked for and are given up as well: they may have a place by now.
        """
        ends = {actor: control.End(actor=actor, grace_s=grace_s, kill=kill) for actor in actors}

        def tell() -> None:
            self._asked.update(ends)
            for end in ends.values():
                self._link.send(end)

        self._loop.call(tell)

    def ask_again(self) -> None:
        for end in self._asked.values():
            self._link.send(end)

    def told(self, actor: str) -> None:
        """The master says that it has ended."""
        self._asked.pop(actor, None)

    def see_off(self, actor: ActorState, deadline: float) -> None:
        """Return when its process has ended, and have it made to after the deadline."""
        if self._loop.is_own_thread():  # a done-callback: this is the thread that would be told
            return
        if not actor.wait_for_end(deadline):
            self.ask_for([actor.actor], 0.0)
            actor.wait_for_end(time.monotonic() + TERM_S + GONE_WAIT_S)

    def kill(self, actors: Sequence[ActorState]) -> None:
        for actor in actors:
            if not actor.owned:  # who asks where it is, is told of its end
                self._channels.locate(actor)
            self.ask_for([actor.actor], 0.0, kill=True)
        for actor in actors:
            actor.is_gone(KILLED_WAIT_S)
            self.mark_closed(actor)

    def mark_closed(self, actor: ActorState) -> None:
        if actor.ended is None:
            gone = Obituary(actor=actor.actor, life=actor.request.life, asked=True)
            actor.ended = end_error(actor.name, actor.location, gone)
            if actor.channel is not None:
                self._channels.end(actor.channel, actor.ended, asked=True)
