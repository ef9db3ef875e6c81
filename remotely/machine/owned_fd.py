"""A file descriptor that is closed when its last reference is gone."""

import os
from collections.abc import Callable


class OwnedFd:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def take(self) -> int:
        """Return the descriptor, which from now on is the caller's to close."""
        fd, self.fd = self.fd, -1
        return fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)  # a default argument, since `os` may be None at interpreter shutdown
