"""Small calls that have not left yet, so that several of them can leave in one message.

While many calls are in flight the actor has work for a while.  A further small call gains nothing
by leaving at once, and costs less if it travels with others.  The channel sends the waiting calls
when there are HOLD_CALLS of them, when a thread waits for a reply, or when the client's loop looks
after the channel (LOOK_S in inbox.py).

Use an outbox only while you hold the lock of its channel.
"""

import zmq

from remotely.machine.shield import shield
from remotely.protocol import wire
from remotely.protocol.wire import Kind
from remotely.transport import sockets

HOLD_CALLS = 32  # at most so many calls leave together


class Outbox:
    """The calls of one channel that have not left.

    held        the encoded calls that wait to be sent, by their ids
    is_broken   the connection is broken, so nothing leaves any more
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self.held: dict[int, bytes | memoryview] = {}
        self.is_broken = False
        self._socket = socket
        self._unsent: set[int] = set()

    def hold(self, call_id: int, call: bytes | memoryview) -> bool:
        """Keep a call for later.  Returns true if all calls that were held have left."""
        self.held[call_id] = call
        if len(self.held) < HOLD_CALLS:
            return False
        self.send_held()
        return True

    def send_held(self) -> None:
        """Send the calls that are held, unless the connection is broken."""
        if self.held and not self.is_broken:
            with shield:
                held, self.held = self.held, {}
                sockets.send(self._socket, wire.together(Kind.CALLS, [*held.values()]))

    def reject(self, call_id: int) -> None:
        """Note a call that cannot leave because the connection is broken."""
        self._unsent.add(call_id)

    def close(self) -> set[int]:
        """Send nothing more.  Returns the ids of all calls that never left."""
        self._unsent.update(self.held)
        self.held.clear()
        return self._unsent
