"""Daemons in the foreground: they end with this process, however it ends.

The standard input of each is a pipe.  The kernel closes the other end when this process ends, even
by SIGKILL, and the daemon then ends gracefully: a master ends all its workers first, a worker its
actors.

If one of them ends, so do the others; but a worker may leave its own master, as a machine that was
drained does.  After SIGTERM, workers without a master beside them have
their machine drained first: any byte on their standard input asks for that.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from remotely.machine import pid_file
from remotely.machine.watched_process import WatchedProcess, wait_for_any
from remotely.ops import daemon_process
from remotely.ops.daemon_process import END_S, Daemon
from remotely.protocol.lease import LEAVE_S


class _Hurry(Exception):
    """A second signal."""


def _hurry(number: int, frame: object) -> None:
    raise _Hurry


class Foreground:
    """The daemons of this process, until `close`."""

    def __init__(self) -> None:
        self._kept: list[tuple[Daemon, Path]] = []

    def keep(self, daemon: Daemon, file: Path) -> None:
        """Add a daemon whose standard input is a pipe; `file` is its pid file."""
        self._kept.append((daemon, file))

    @property
    def keeps_any(self) -> bool:
        return bool(self._kept)

    def wait(self, *also: WatchedProcess) -> None:
        """Return when a daemon, or one of these processes, has ended; at once if none exist."""
        while self._kept or also:
            if self.any_ended() or any(process.has_ended() for process in also):
                return
            living = [daemon for daemon, _ in self._kept if daemon.poll() is None]
            wait_for_any([*(WatchedProcess(daemon.pid) for daemon in living), *also])

    def any_ended(self) -> bool:
        """Return whether one of the daemons has ended.  A worker that has left its own master does
        not count: the cluster goes on."""
        ends = {file.stem: daemon.poll() for daemon, file in self._kept}
        if "master" in ends:
            ends = {stem: code for stem, code in ends.items() if stem == "master" or code != 0}
        return any(code is not None for code in ends.values())

    def drain(self, grace_s: float) -> None:
        """Have the machine drained; return when a worker has ended, or at a second signal."""
        if not self._kept or any(file.stem == "master" for _, file in self._kept):
            return
        for daemon, _ in self._kept:
            if daemon.stdin is not None:
                with contextlib.suppress(OSError):
                    daemon.stdin.write(b"\n")
                    daemon.stdin.flush()
        ends = [WatchedProcess(daemon.pid) for daemon, _ in self._kept if daemon.poll() is None]
        if len(ends) < len(self._kept):
            return
        before = {n: signal.signal(n, _hurry) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            wait_for_any(ends, round(1000 * grace_s))
        except _Hurry:
            pass
        finally:
            for number, handler in before.items():  # the first has had later ones ignored
                signal.signal(number, handler)

    def close(self) -> bool:
        """End all; return whether each of them ended gracefully."""
        for daemon, _ in self._kept:
            daemon_process.close_input(daemon)
        deadline = time.monotonic() + LEAVE_S + END_S
        ended_well = True
        for daemon, file in self._kept:
            daemon_process.wait_or_kill(daemon, deadline - time.monotonic())
            # `remotely stop` may signal one that has left and is about to exit.
            if daemon.returncode not in (0, -signal.SIGTERM, -signal.SIGINT):
                ended_well = False
                pid_file.forget(file)
                pid_file.leave(file)  # it did not do so itself
        return ended_well


@contextlib.contextmanager
def drained_at_sigterm(keeper: Foreground, grace_s: float) -> Iterator[None]:
    """Have the machine drained if the block, in `exiting_on_signals`, is ended by SIGTERM."""
    try:
        yield
    except SystemExit as end:
        if end.code == 128 + signal.SIGTERM:
            keeper.drain(grace_s)
        raise


def is_ignored(number: signal.Signals) -> bool:
    """Return whether this process was started with a signal ignored."""
    return signal.getsignal(number) is signal.SIG_IGN


@contextlib.contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Turn the first SIGTERM, SIGINT or SIGHUP into SystemExit; later ones are ignored.

    Signals that are ignored stay so: SIGHUP under nohup, SIGINT if a script started this by `&`.
    """
    numbers = [n for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if not is_ignored(n)]

    def leave(number: int, frame: object) -> None:
        for each in numbers:  # so that they do not interrupt the cleanup
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
