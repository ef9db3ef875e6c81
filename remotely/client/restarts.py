"""What a client does when an actor has died: it restarts the actor, or tells its calls.

The master decides whether an actor is restarted.  The owner makes the next life, since it keeps the
class and the arguments.
"""

import functools
import threading
from collections import deque

from remotely.calling.actor import restart
from remotely.client.actor_directory import ActorDirectory
from remotely.client.actor_factory import ActorFactory
from remotely.client.actor_state import ActorState
from remotely.client.end_errors import end_error
from remotely.client.termination import Terminations
from remotely.protocol.control import Obituary


class Restarts:
    def __init__(
        self,
        actors: ActorDirectory,
        factory: ActorFactory,
        terminations: Terminations,
    ) -> None:
        self._actors = actors
        self._factory = factory
        self._terminations = terminations

    def hear_of_death(self, obituary: Obituary) -> None:
        """On the loop's thread: the master says that a life of an actor has ended."""
        if not obituary.restarting:
            self._terminations.confirm(obituary.actor)
        actor = self._actors.get(obituary.actor)
        if actor is None or (obituary.restarting and obituary.life < actor.request.life):
            return
        error = end_error(actor.name, actor.location, obituary)
        if not obituary.restarting:
            actor.ended = error
            actor.gone = True
        elif actor.made_from is not None and (actor.owned or obituary.lost):
            with actor.lock:
                # If it was given up, the master was told to end it.
                is_given_up = actor.ended is not None or actor.is_released
                if not is_given_up:
                    actor.settled = False
                    actor.expect_life(obituary.life + 1)
            if not is_given_up:
                threading.Thread(
                    target=self.restart, args=(actor,), name="remotely-restart", daemon=True
                ).start()
        else:  # the next call asks where it is, and gets the answer once it is there again
            actor.expect_life(obituary.life + 1)
        actor.wake()
        channel = actor.channel
        is_over = not obituary.restarting or (channel and channel.location.life <= obituary.life)
        if channel is None or not is_over:
            return
        if obituary.exited:
            actor.channel = None  # calls to come find no open one
            channel.end_after_replies(error, obituary)
        else:
            channel.end(error, obituary)

    def restart(self, actor: ActorState) -> None:
        """Give an actor that died its next life; its handles stay valid."""

        def make() -> None:
            assert actor.made_from is not None
            place = self._factory.ask_for_place(actor)
            made = deque(self._factory.start(actor, place, *actor.made_from))
            while made:
                made.popleft().result()

        # Maybe before it had a place: then the master has ended its last life only.
        end = functools.partial(self._terminations.request, [actor.actor], 0.0)
        restart(actor, actor.life, make, end)
