"""A file descriptor that is closed when its last reference is gone."""

import os
from collections.abc import Callable


class OwnedFd:
    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)  # a default argument, since `os` may be None at interpreter shutdown
