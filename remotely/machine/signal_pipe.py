"""A pipe that wakes a loop when a signal arrives.

Python runs a signal handler only after the main thread has returned from poll or epoll.  So the
loop watches this pipe, to which the interpreter writes immediately.
"""

import contextlib
import os
import signal


def open_signal_pipe() -> int:
    """Return a descriptor that becomes readable when a signal with a handler arrives.

    Main thread only.
    """
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd


def drain(fd: int) -> None:
    """Empty the pipe, so that the next signal makes it readable again."""
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)
