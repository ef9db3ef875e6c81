"""Sends a client's files to the workers on which its actors are made; to each worker once.

An actor says what its worker lacks.  Of several that are made on a worker at once, each says so
before the first has stored anything.  So a file that is on its way to a worker is waited for, and
sent again only if the actor that was to store it failed.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from remotely.errors import RemotelyError
from remotely.futures.future import CallFuture
from remotely.values.shipping import Shipment

UNDER_WAY_BYTES = 64 << 20  # read into memory and not stored yet, for one actor


class _Upload:
    """One file on its way to one worker."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.failed = False

    def end(self, future: Future[None]) -> None:
        self.failed = future.exception() is not None
        self.is_over.set()


class FileUploads:
    """What this client has sent or is sending to each worker; safe to use from any thread."""

    def __init__(self, shipment: Shipment) -> None:
        self.files = shipment.files
        self._shipment = shipment
        self._sent: dict[tuple[str, str], _Upload] = {}  # by worker and hash
        self._lock = threading.RLock()  # a signal handler may make an actor meanwhile

    def deliver(
        self,
        worker: str,
        missing: Iterable[str],
        send: Callable[[str, bytes, CallFuture[None]], object],
    ) -> list[CallFuture[None]]:
        """Send what a worker lacks, by one of its actors, and wait for what others send there.

        Returns the futures of what is not known to be stored.  Raises RemotelyError for a file that
        is not any more what it was.
        """
        under_way: deque[tuple[CallFuture[None], int]] = deque()
        left = list(missing)
        while left:
            others = []
            for digest in left:
                future: CallFuture[None] = CallFuture("the actor")
                try:
                    if other := self._claim((worker, digest), future):
                        others.append((digest, other))
                        continue
                    content = self._shipment.read(digest)
                    send(digest, content, future)
                    under_way.append((future, len(content)))
                except BaseException:  # or we are interrupted: others may wait for it
                    future.lose(RemotelyError("it was not sent"))
                    future.tell()
                    raise
                del future  # see future.py
                while sum(size for _, size in under_way) > UNDER_WAY_BYTES:
                    under_way.popleft()[0].result()
            for _, other in others:
                other.is_over.wait()
            left = [digest for digest, other in others if other.failed]
        return [future for future, _ in under_way]

    def _claim(self, key: tuple[str, str], future: CallFuture[None]) -> _Upload | None:
        """Return what another actor sends already, or None: then it is ours to send."""
        ours = _Upload()
        future.add_done_callback(ours.end)  # before others can find it
        with self._lock:
            other = self._sent.get(key)
            if other is not None and not other.failed:
                return other
            self._sent[key] = ours
        return None
