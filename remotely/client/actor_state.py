"""What a client knows of one actor: where it lives now, or how it ended."""

import time

import msgspec

from remotely.calling.actor import CalledActor
from remotely.client.channel import Channel
from remotely.engine import Engine
from remotely.futures import wakeup
from remotely.machine.shield import RLock
from remotely.protocol import control
from remotely.protocol.control import Location

LOOK_FOR_END_S = 0.2


class ActorState(CalledActor):
    """One actor, as all its handles in this process share it.

    location      where it lives, as far as this process has been told
    channel       the last one that was opened to it
    opening       is held by the thread that opens one, and waits for the master meanwhile.
                  Threads that do sleep about it, as a channel does not keep its actor
    gone          the master has said that it has ended
    """

    def __init__(self, engine: Engine, request: control.Request, owned: bool) -> None:
        super().__init__(engine, request.actor, request.name, owned)
        self.request = request
        self.life = request.life
        self.location: Location | None = None
        self.channel: Channel | None = None
        self.opening = RLock()
        self.gone = False

    @property
    def unanswered(self) -> int:
        channel, queue = self.channel, self.queue
        return (len(queue) if queue else 0) + (channel.unanswered if channel else 0)

    def expect_life(self, life: int) -> None:
        """From now on, news of an earlier life is outdated."""
        if life > self.life:
            self.life = life
            self.request = msgspec.structs.replace(self.request, life=life)

    def wake(self) -> None:
        """Wake who waits for news of it: of its end or its next life, or to be connected."""
        wakeup.wake(self)
        wakeup.wake(self.opening)

    def wait_for_end(self, deadline: float) -> bool:
        """Return whether it was seen to end.  The master, which would report it, may be gone."""
        while not self.is_gone(max(0.0, min(LOOK_FOR_END_S, deadline - time.monotonic()))):
            if self.channel is not None and self.channel.ended:
                return True
            if time.monotonic() >= deadline:
                return False
        return True

    def is_gone(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the news that it has ended; return whether it came."""
        wakeup.sleep_until(lambda: self.gone, timeout_s, self)
        return self.gone
