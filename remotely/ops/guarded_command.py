"""A command that ends, with all its descendants, when this process ends, however it ends.

This process forks a guard before it starts anything else.  The guard is the parent of the command
and adopts orphaned descendants (PR_SET_CHILD_SUBREAPER).  A socket connects it with this process:
when the socket closes, or the command exits, the guard calls `at_end`, then ends all of them.

PR_SET_PDEATHSIG reaches the command alone, not its descendants, so it only covers the case that the
guard itself is killed.  The command stays in the process group of the terminal, for Ctrl-C.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec
import psutil

from remotely.machine import prctl, processes, signal_pipe
from remotely.machine.watched_process import WatchedProcess
from remotely.ops.foreground import is_ignored

# The signals that end all processes, with the seconds to wait after each.  The second SIGKILL is
# for processes that the list did not show while others ended.
ENDINGS = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0), (signal.SIGKILL, 1.0))
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes of a shell
_MAX_BYTES = 1 << 21  # above the kernel's limit on the arguments of a process


class GuardedCommand:
    """The guard, forked by the constructor, and its command.  Use it from the main thread."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._socket, guard_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = os.fork()
        if not pid:
            code = 1
            with contextlib.suppress(BaseException):
                self._socket.close()
                code = _Guard(guard_socket, at_end).run()
            os._exit(code)
        guard_socket.close()
        self._pid = pid
        self._code: int | None = None
        self.process = WatchedProcess(pid)

    def start(self, command: list[str], variables: dict[str, str]) -> None:
        """Start the command, with these environment variables added to those of this process."""
        with contextlib.suppress(OSError):  # the guard has ended: `end` returns its exit code
            self._socket.sendall(msgspec.json.encode([command, variables]) + b"\n")

    def has_ended(self) -> bool:
        """Return whether the guard has ended, and so the command if it was started."""
        return self.process.has_ended()

    def end(self) -> int:
        """End the command if it still runs; return its exit code, 128 + N if signal N ended it."""
        if self._code is None:
            self._socket.close()
            _, status = os.waitpid(self._pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self._code = 128 - code if code < 0 else code
        return self._code


class _Guard:
    """The forked process."""

    def __init__(self, parent: socket.socket, at_end: Callable[[], None]) -> None:
        self._parent = parent
        self._at_end = at_end
        self._command: subprocess.Popen[bytes] | None = None
        self._is_terminated = False  # by SIGTERM
        prctl.adopt_orphans()
        # SIGINT is for the command.  The command inherits ignored signals, as nohup intends.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            if not is_ignored(number):
                signal.signal(
                    number, self._terminate if number == signal.SIGTERM else lambda *_: None
                )
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._signals = signal_pipe.open_signal_pipe()

    def run(self) -> int:
        """Return the exit code of the command, once it and its descendants have ended.

        `at_end` runs first: it removes the folder of the job, so that the job may be started again
        while the old processes are still ending.
        """
        try:
            code = self._run_command()
        finally:
            try:
                self._at_end()
            finally:
                ended = self._end_all()
        return next((each for each in (code, ended) if each is not None), 0)

    def _terminate(self, *_: object) -> None:
        self._is_terminated = True

    def _run_command(self) -> int | None:
        """Start the command and wait for it; return its exit code, None if it is still to end."""
        request = self._read_request()
        if not request:
            return None
        command, variables = msgspec.json.decode(request, type=tuple[list[str], dict[str, str]])
        try:
            self._command = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                preexec_fn=lambda: prctl.end_with_parent(signal.SIGKILL),
            )
        except OSError as error:
            print(f"remotely run: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        code: int | None = None
        while code is None and not self._is_terminated:
            is_closed = self._sleep()
            code = self._reap()
            if is_closed:
                break
        return code

    def _read_request(self) -> bytes:
        """Return the line of `start`; empty if the parent or this process is to end first."""
        data = b""
        while not data.endswith(b"\n") and not self._is_terminated:
            if self._sleep():
                if not (piece := self._parent.recv(_MAX_BYTES)):
                    return b""
                data += piece
        return b"" if self._is_terminated else data

    def _sleep(self) -> bool:
        """Wait for a signal or the parent's socket; return whether the socket is readable."""
        parent = self._parent.fileno()
        ready, _, _ = select.select([parent, self._signals], [], [])
        signal_pipe.drain(self._signals)
        return parent in ready

    def _reap(self) -> int | None:
        """Reap all children that have ended; return the command's exit code if it is one."""
        code = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if self._command and pid == self._command.pid:
                    ended = os.waitstatus_to_exitcode(status)
                    code = 128 - ended if ended < 0 else ended
                    self._command.returncode = code
        return code

    def _end_all(self) -> int | None:
        """End the command and its descendants; return its exit code if it was still running."""
        code = None
        for number, timeout_s in ENDINGS:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            deadline = time.monotonic() + timeout_s
            while processes.children_of(os.getpid()) and time.monotonic() < deadline:
                select.select([self._signals], [], [], 0.05)
                signal_pipe.drain(self._signals)
                ended = self._reap()
                code = ended if code is None else code
        return code
