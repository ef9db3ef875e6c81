"""The shared state of one actor in a process, on any engine: its name, lives and queue."""

import itertools
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from remotely.calling.back_pressure import BackPressure
from remotely.engine import Engine, Options, RemoteActor
from remotely.futures import wakeup
from remotely.machine.shield import RLock
from remotely.protocol.control import MakerState
from remotely.values.owned import Owned


class Names:
    """Names for actors without one: their class and a number."""

    def __init__(self, inside: bool = False) -> None:
        # The names of actors that several actors make must differ.
        self._prefix = f"{secrets.token_hex(2)}." if inside else ""
        self._counts: dict[str, itertools.count[int]] = {}

    def of(self, cls: type, options: Options) -> str:
        number = self._counts.setdefault(cls.__name__, itertools.count(1))
        return options.name or f"{self._prefix}{cls.__name__}-{next(number)}"


class MadeFrom(NamedTuple):
    """What an actor is made from: its class and arguments, its options, its maker's state."""

    encoded: Owned
    options: Options
    state: MakerState


EndError = Callable[[bool], BaseException]  # takes may_have_run, returns the error to raise


class CalledActor(RemoteActor):
    """The state that all handles of an actor in this process share.

    life          the number of its current life, or of the one that is being made
    channel       the last channel that was opened to it (`carrier.CallChannel`)
    ended         makes the errors of its calls, once it has ended permanently: see `end_with`
    restarting    whether this process is making its next life
    made_from     what each of its lives is made from, if it may be restarted
    is_released   whether its last handle in this process is gone
    queue         calls that cannot be sent yet, and those made after them; None if there are none
    lock          guards the fields above except the queue; never held while waiting
    """

    def __init__(self, engine: Engine, actor: str, name: str, owned: bool) -> None:
        super().__init__(engine, actor, name, owned)
        self.life = 0
        self.channel: Any = None
        self.lock = RLock()
        self.ended: EndError | None = None
        self.restarting = False
        self.made_from: MadeFrom | None = None
        self.is_released = False
        self.queue: Any = None  # send_queue.Queue
        self.back_pressure = BackPressure()

    def end_with(self, ended: EndError) -> None:
        """Record that it has ended permanently.  Its queued calls fail, whatever they wait for."""
        self.ended = ended
        if (queue := self.queue) is not None:
            queue.check(self)
        wakeup.wake(self)

    @property
    def unanswered(self) -> int:
        """The number of its calls without an outcome."""
        channel, queue = self.channel, self.queue
        return (len(queue) if queue else 0) + (len(channel.pending) if channel else 0)

    def check_alive(self) -> None:
        """Raise the error of its end, if it has ended permanently."""
        if self.ended is not None:
            raise self.ended(False)

    def wait_until_alive(self) -> None:
        """Wait while this process makes its next life.  Raises the error if it has ended."""
        wakeup.sleep_until(lambda: not self.restarting or self.ended is not None, about=self)
        self.check_alive()
