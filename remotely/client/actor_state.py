"""What a client knows of one actor: where it lives now, or how it ended."""

import threading
import time
from typing import TYPE_CHECKING

import msgspec

from remotely.client.channel import Channel
from remotely.client.end_errors import EndError
from remotely.engine import Options, RemoteActor
from remotely.futures import wakeup
from remotely.protocol import control
from remotely.protocol.control import Location
from remotely.values import codec

if TYPE_CHECKING:
    from remotely.client.client import Client

LOOK_FOR_END_S = 0.2


class ActorState(RemoteActor):
    def __init__(self, client: "Client", request: control.Request, owned: bool) -> None:
        super().__init__(client, request.actor, request.name, owned)
        self.request = request
        self.lock = threading.RLock()  # a signal handler may call amid a call
        self.location: Location | None = None
        self.channel: Channel | None = None
        self.ended: EndError | None = None
        self.gone = False  # its death was told
        self.remade_from: tuple[codec.Encoded, Options] | None = None
        self.settled = True  # not while it is made anew
        self.life_lock = threading.Lock()
        self.is_released = False  # its last handle is gone

    def expect_life(self, life: int) -> None:
        """From now on, news of an earlier life is old."""
        if life > self.request.life:
            self.request = msgspec.structs.replace(self.request, life=life)

    def wait_for_end(self, deadline: float) -> bool:
        """Return whether it was seen to end; the master may be gone, who would tell of it."""
        while not self.is_gone(max(0.0, min(LOOK_FOR_END_S, deadline - time.monotonic()))):
            if self.channel is not None and self.channel.ended:
                return True
            if time.monotonic() >= deadline:
                return False
        return True

    def is_gone(self, timeout_s: float) -> bool:
        """Wait so long for the word that it has ended."""
        wakeup.sleep_until(lambda: self.gone, timeout_s, self)
        return self.gone
