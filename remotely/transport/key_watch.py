"""The watch over master.key: what was added to it or revoked, within a second.

The content is compared, not the time of its change, which a restored file or a network disk may
keep.  A thread reads it: such a disk may hang, and the master must not.

A list that cannot be read changes nothing, nor does that of another master.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from remotely.errors import NotAllowed
from remotely.machine import threads
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import key_files
from remotely.transport.keys import MasterKey

log = logging.getLogger("remotely.master")

READ_KEYS_EVERY_S = 1.0  # reading and comparing 100 KiB takes 50 us


class KeyWatch:
    """Calls `on_change`, on a thread of its own, with each list that differs from the last."""

    def __init__(
        self, file: Path, known: MasterKey, on_change: Callable[[MasterKey], object]
    ) -> None:
        self._file = file
        self._known = known
        self._content = b""
        self._on_change = on_change
        self._throttled = ThrottledLog(log.warning)
        self._wanted = threading.Event()
        threads.start("keys", self._watch)

    def look_now(self) -> None:
        """Read the file now rather than within a second."""
        self._wanted.set()

    def _watch(self) -> None:
        while True:
            self._look()
            self._wanted.wait(READ_KEYS_EVERY_S)
            self._wanted.clear()

    def _look(self) -> None:
        try:
            content = key_files.read_master(self._file)
            if content == self._content:
                return
            keys = key_files.master_of(content, self._file)
            if keys.pair != self._known.pair:
                raise NotAllowed(f"{self._file} is the key of another master now")
        except (NotAllowed, OSError) as error:
            if not self._file.exists():  # the job is over, or the folder is being replaced
                return
            line = f"the keys stay as they are: {error}"
            self._throttled.add(str(error), line, time.monotonic())
            return
        self._content = content
        if keys != self._known:
            self._known = keys
            self._on_change(keys)
