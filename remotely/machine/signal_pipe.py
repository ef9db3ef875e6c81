"""A pipe that wakes a loop when a signal arrives.

Python runs a signal's handler only when the main thread is back from poll or epoll.  So the loop
watches the pipe, to which the interpreter writes at once.
"""

import contextlib
import os
import signal


def open_signal_pipe() -> int:
    """Return a descriptor that becomes readable when a signal arrives.  Main thread only.

    It is for signals that have a handler, even one that does nothing.
    """
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd


def drain(fd: int) -> None:
    """Take what the pipe holds, so that it becomes readable once more at the next signal."""
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)
