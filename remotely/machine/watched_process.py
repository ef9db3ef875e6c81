"""A process of this machine whose end is noticed at once, by its pidfd."""

import contextlib
import os
import select
import signal

from remotely.machine.owned_fd import OwnedFd


class WatchedProcess:
    """Raises OSError if there is no such process, or no descriptor is left.

    `pidfd` is that of a process whose parent has opened it.
    """

    def __init__(self, pid: int, pidfd: OwnedFd | None = None) -> None:
        self._pidfd = OwnedFd(os.pidfd_open(pid)) if pidfd is None else pidfd

    def fileno(self) -> int:
        """Return a descriptor that is readable once the process has ended."""
        return self._pidfd.fd

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._pidfd.fd, signal.SIGKILL)

    def has_ended(self) -> bool:
        return bool(wait_for_any([self], 0))


def wait_for_any(
    processes: "list[WatchedProcess]", timeout_ms: int | None = None
) -> list[tuple[int, int]]:
    """Wait until one of these processes has ended; return the descriptors of those that have."""
    poll = select.poll()
    for process in processes:
        poll.register(process, select.POLLIN)
    return poll.poll(timeout_ms)
