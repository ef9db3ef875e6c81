"""Connections to peers, each used by one thread at a time and kept for the next.

1  taken    by a use: one that is idle, or else a new one
2  kept     when the use is over -> 1
3  stale    the peer has closed it while it was idle, so its use fails with OSError: it is
            closed, and the use is repeated with another.  With a new one, the error is raised
4  closed   after any other error, after `idle_s` without a use, or at the end
"""

import math
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from remotely.machine.gate import Gate


class Closable(Protocol):
    def close(self) -> object: ...


Peer = TypeVar("Peer")
C = TypeVar("C", bound=Closable)
T = TypeVar("T")


class ConnectionPool(Generic[Peer, C]):
    """`connect` opens a connection.  Thread-safe."""

    def __init__(self, connect: Callable[[Peer], C], idle_s: float = math.inf) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self._idle: dict[Peer, list[tuple[float, C]]] = {}
        self._gate = Gate()

    def use(self, peer: Peer, work: Callable[[C], T]) -> T:
        """Call `work` with a connection, perhaps again with another.  Raises what that raises."""
        while True:
            idle = self._take(peer)
            connection = idle or self._connect(peer)
            try:
                result = work(connection)
            except BaseException as error:  # it may be in the middle of a message: 3 or 4
                connection.close()
                if idle is None or not isinstance(error, OSError):
                    raise
                continue
            self._put(peer, connection)
            return result

    def tidy(self) -> None:
        """Close the connections that have been idle for too long."""
        self._close(time.monotonic() - self._idle_s)

    def close(self) -> None:
        """Close the idle connections; those in use are closed after it."""
        with self._gate:
            self._gate.close()
            self._close(math.inf)

    def _take(self, peer: Peer) -> C | None:
        with self._gate:
            idle = self._idle.get(peer)
            return idle.pop()[1] if idle else None

    def _put(self, peer: Peer, connection: C) -> None:
        with self._gate:
            if self._gate.is_open:
                self._idle.setdefault(peer, []).append((time.monotonic(), connection))
                return
        connection.close()

    def _close(self, before: float) -> None:
        with self._gate:
            for peer, idle in list(self._idle.items()):
                for since, connection in idle:
                    if since < before:
                        connection.close()
                self._idle[peer] = [(s, c) for s, c in idle if s >= before]
                if not self._idle[peer]:
                    del self._idle[peer]
