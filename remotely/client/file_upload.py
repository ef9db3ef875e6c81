"""Sends a client's files to the workers that run its actors; to each worker once.

An actor says which files its worker lacks.  If several actors start on a worker at once, each says
so before the first has stored anything.  So a client waits for a file that is already on its way to
the worker, and sends it again only if the actor that was to store it failed.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from remotely.errors import RemotelyError
from remotely.futures.future import CallFuture
from remotely.machine.shield import RLock
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
    """The files that this client has sent or is sending to each worker.  Thread-safe."""

    def __init__(self, shipment: Shipment) -> None:
        self.files = shipment.files
        self._shipment = shipment
        self._sent: dict[tuple[str, str], _Upload] = {}  # by worker and hash
        self._lock = RLock()

    def deliver(
        self,
        worker: str,
        missing: Iterable[str],
        send: Callable[[str, bytes, CallFuture[None]], object],
    ) -> list[CallFuture[None]]:
        """Send the files that a worker lacks through one of its actors; wait for those that other
        actors are storing there.

        Returns the futures of the files that may not be stored yet.  Raises RemotelyError for a
        file that has changed.
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
        """Return the upload by another actor, or None: then this one has to send the file."""
        ours = _Upload()
        future.add_done_callback(ours.end)  # before others can find it
        with self._lock:
            other = self._sent.get(key)
            if other is not None and not other.failed:
                return other
            self._sent[key] = ours
        return None
