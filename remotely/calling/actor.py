"""One actor, as its callers in one process share it, on any engine: its name and its lives."""

import itertools
from collections.abc import Callable
from typing import Any

from remotely.calling.back_pressure import BackPressure
from remotely.engine import Engine, Options, RemoteActor
from remotely.errors import ActorDied, RemotelyError
from remotely.futures import wakeup
from remotely.machine.shield import RLock
from remotely.values.owned import Owned


class Names:
    """The names of actors whose maker gives them none: their class, and a number."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._counts: dict[str, itertools.count[int]] = {}

    def of(self, cls: type, options: Options) -> str:
        number = self._counts.setdefault(cls.__name__, itertools.count(1))
        return options.name or f"{self._prefix}{cls.__name__}-{next(number)}"


EndError = Callable[[bool], BaseException]  # takes may_have_run, returns what to raise


class CalledActor(RemoteActor):
    """What all handles of an actor in this process share.

    life          the number of its present life, or of the one that is on its way
    ended         makes the error of its calls, once it has ended for good
    settled       false while this process makes its next life
    made_from     the class and the arguments, if it may be restarted
    is_released   its last handle in this process is gone
    queue         the calls that cannot leave yet, and those after them; None if there are none
    lock          guards the fields above, but for the queue; nobody waits while holding it
    """

    def __init__(self, engine: Engine, actor: str, name: str, owned: bool) -> None:
        super().__init__(engine, actor, name, owned)
        self.life = 0
        self.lock = RLock()
        self.ended: EndError | None = None
        self.restarting = False
        self.made_from: tuple[Owned, Options] | None = None
        self.is_released = False
        self.queue: Any = None  # send_queue.Queue
        self.back_pressure = BackPressure()

    @property
    def unanswered(self) -> int:
        """How many of its calls have no outcome."""
        raise NotImplementedError

    def check_alive(self) -> None:
        """Raise why it has ended, if it has for good."""
        if self.ended is not None:
            raise self.ended(False)

    def wait_until_alive(self) -> None:
        """Wait while this process makes its next life.  Raises why there will be none."""
        wakeup.sleep_until(lambda: not self.restarting or self.ended is not None, about=self)
        self.check_alive()


def restart(
    actor: CalledActor, life: int, make: Callable[[], object], end: Callable[[], object]
) -> None:
    """On a thread of its own: give an actor that died its next life.

    `make` waits for a place and runs the constructor; what it raises ends the actor.  `end` takes
    away what there is of a life that nobody wants: its constructor raised, or the actor was closed
    or released meanwhile.  It may be called before there was a place.
    """
    try:
        make()
    except Exception as error:
        said = error if isinstance(error, RemotelyError) else repr(error)
        why = f"{actor.name} died, and could not be restarted: {said}"
        with actor.lock:
            # Otherwise its next life is on the way, or it was closed meanwhile, which says more.
            if actor.life == life and actor.ended is None:
                actor.ended = lambda may: ActorDied(why, may_have_run=may)
    finally:
        if actor.is_released or actor.ended is not None:
            end()
        with actor.lock:
            if actor.life == life:
                actor.restarting = False
        wakeup.wake(actor)
