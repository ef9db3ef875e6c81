"""What a client knows of one actor: where it lives now, or how it ended."""

import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from remotely.client.channel import Channel
from remotely.client.end_errors import EndError
from remotely.engine import Engine, Options, RemoteActor
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.protocol import control
from remotely.protocol.control import Location
from remotely.values import codec

if TYPE_CHECKING:  # it knows actors
    from remotely.client.departures import Departure

LOOK_FOR_END_S = 0.2


class ActorState(RemoteActor):
    """One actor, as all its handles in this process share it.

    location      where it lives, as far as this process has been told
    channel       the last one that was opened to it
    ended         makes the error of its calls, once it has ended for good
    gone          the master has said that it has ended
    made_from     the class and the arguments, if it may be restarted
    settled       false while this process restarts it
    is_released   its last handle in this process is gone
    departures    the calls that cannot leave yet, and those after them; None if there are none
    """

    def __init__(self, engine: Engine, request: control.Request, owned: bool) -> None:
        super().__init__(engine, request.actor, request.name, owned)
        self.request = request
        self.lock = threading.RLock()  # a signal handler may call in the middle of a call
        self.location: Location | None = None
        self.channel: Channel | None = None
        self.ended: EndError | None = None
        self.gone = False
        self.made_from: tuple[codec.Encoded, Options] | None = None
        self.settled = True
        self.life_lock = threading.Lock()
        self.is_released = False
        self.departures: OrderedDict[CallFuture[Any], Departure] | None = None

    def expect_life(self, life: int) -> None:
        """From now on, news of an earlier life is outdated."""
        if life > self.request.life:
            self.request = msgspec.structs.replace(self.request, life=life)

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
