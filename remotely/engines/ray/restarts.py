"""What the owner of an actor does when it has died: it gives the actor its next life.

Ray can restart actors by itself, but counts the lives of all time, and fails the calls that are
made meanwhile.  Here those wait, as on our own cluster.
"""

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from remotely.calling.actor import EndError, restart
from remotely.engine import Options
from remotely.engines.ray import ends
from remotely.engines.ray.remote import HostedActor
from remotely.machine.shield import shield
from remotely.protocol.lease import RESTARTS_WITHIN_S
from remotely.values.codec import Encoded

Make = Callable[[list[HostedActor], Encoded, Options], None]
Run = Callable[[Callable[[], object]], None]


class Restarts:
    """`make` makes the next life, and `run` does something where no caller waits.

    If `make` raises RayError, that life has ended before there was an object.
    """

    def __init__(self, make: Make, run: Run) -> None:
        self._make = make
        self._run = run

    def watch(self, actor: HostedActor) -> None:
        """Restart this actor when its present life ends."""
        host, life = actor.host, actor.life
        if host is None:  # it was ended meanwhile
            return
        watched = host.watch.remote().future()
        actor_ref = weakref.ref(actor)

        def hear(done: Any) -> None:
            error = done.exception()
            if (found := actor_ref()) is None or not isinstance(error, RayError):
                return
            if ends.ends_actor(error):
                end = ends.end_error(found.name, found.place, error)
                self._run(lambda: self.hear_of_death(found, life, end))
            elif found.host is not None and found.life == life:  # only out of reach for a moment
                self._run(lambda: self.watch(found))

        with shield:  # an interrupt could leave a lock held for which a thread of Ray's waits
            watched.add_done_callback(hear)

    def hear_of_death(self, actor: HostedActor, life: int, end: EndError) -> None:
        """A life of an actor has ended.  Of an actor of others, the next call looks for the next.

        Any thread may call this, and more than one may.
        """
        with actor.lock:
            if actor.ended is not None or actor.life != life:
                return
            host, actor.host = actor.host, None
            if actor.owned and host is not None:
                with contextlib.suppress(RayError):
                    ray.kill(host)  # else Ray keeps the name as long as there is a handle
            if actor.made_from is None:
                if actor.owned:
                    actor.ended = end
                return
            if not self._may_restart(actor):
                actor.ended = end
                return
            actor.life = next_life = life + 1
            actor.settled = False
        make = functools.partial(self._make_next, actor, next_life)
        threading.Thread(
            target=restart,
            args=(actor, next_life, make, functools.partial(_free, actor)),
            name="remotely-restart",
            daemon=True,
        ).start()

    def _may_restart(self, actor: HostedActor) -> bool:
        """Count one more life; false if the actor has had as many as it may."""
        assert actor.made_from is not None
        _, options = actor.made_from
        now = time.monotonic()
        actor.lives = [began for began in actor.lives if now - began < RESTARTS_WITHIN_S]
        if len(actor.lives) >= options.max_restarts:
            return False
        actor.lives.append(now)
        return True

    def _make_next(self, actor: HostedActor, life: int) -> None:
        """Make a life.  It may die meanwhile: then another thread makes the next one."""
        assert actor.made_from is not None
        try:
            self._make([actor], *actor.made_from)
        except RayError as error:
            self.hear_of_death(actor, life, ends.end_error(actor.name, None, error))
        else:
            self.watch(actor)


def _free(actor: HostedActor) -> None:
    """End what there is of a life that nobody wants."""
    with actor.lock:
        host, actor.host = actor.host, None
    if host is not None:
        with contextlib.suppress(RayError):
            ray.kill(host)
