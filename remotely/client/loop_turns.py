"""How the client's loop acts under the lock of a channel without waiting for the lock.

A signal handler may have interrupted a thread that holds the lock, and may itself wait for
something that only the loop can do.  If the loop waited for the lock, neither would go on.  So the
loop tries for TURN_S, and comes back RETRY_S later if it did not get the lock.  Meanwhile further
actions queue up; they run in the order in which they were requested.
"""

import threading
from collections import deque
from collections.abc import Callable

from remotely.client import delivery
from remotely.client.delivery import Arrived
from remotely.transport.loop import Loop

TURN_S = 0.005  # hardly any thread holds the lock for so long
RETRY_S = 0.002

Action = Callable[[Arrived], object]


class LoopTurns:
    """Runs actions on the loop's thread, with the lock of a channel held."""

    def __init__(self, loop: Loop, lock: "threading.RLock") -> None:
        self._loop = loop
        self._lock = lock
        self._actions: deque[Action] = deque()
        self._is_late = False  # the last try did not get the lock

    def take(self, action: Action) -> None:
        """On the loop's thread: run `action` now, or a little later if the lock is taken.

        `action` gets the deque for the replies that it takes in; they are handed over afterwards,
        without the lock.
        """
        self._actions.append(action)
        if self._is_late:
            delivery.hand_over(delivery.this_thread())
        else:
            self._run()

    def _run(self) -> None:
        me = delivery.this_thread()
        has_lock = self._lock.acquire(timeout=TURN_S)
        self._is_late = not has_lock
        if has_lock:
            try:
                while self._actions:
                    self._actions.popleft()(me.arrived)
            finally:
                self._lock.release()
                if self._actions:  # one of them raised; the others still have to run
                    self._loop.call(self._run)
        else:
            self._loop.after(RETRY_S, self._run)
        delivery.hand_over(me)
