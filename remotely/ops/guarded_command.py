"""A command that ends, with all that it has started, when this process does, however it does.

A guard is forked off before anything else is started.  It is the parent of the command, and adopts
what that leaves behind (PR_SET_CHILD_SUBREAPER), and holds one end of a socket whose other end is
this process: when that closes, it ends them all, and does first what it was given to do then.

PR_SET_PDEATHSIG would reach the command alone, and not what that has started, so it is used only
for the case that the guard itself is killed.  The process group stays that of the terminal, for
Ctrl-C.
"""

import contextlib
import ctypes
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

from remotely.machine import processes, signal_pipe
from remotely.ops.foreground import is_ignored

# How all are ended, in seconds for each: in good order, then by force, and again whom the list of
# processes did not show while others ended.
ENDINGS = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0), (signal.SIGKILL, 1.0))
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as of a shell
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl
_MAX_BYTES = 1 << 21  # more than the arguments of a process may be


class GuardedCommand:
    """Forks the guard; `start` has it start the command.  Use it from the main thread."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = os.fork()
        if not pid:
            code = 1
            with contextlib.suppress(BaseException):
                self._line.close()
                code = _Guard(theirs, at_end).run()
            os._exit(code)
        theirs.close()
        self._pid = pid
        self._code: int | None = None
        self.pidfd = os.pidfd_open(pid)

    def start(self, words: list[str], variables: dict[str, str]) -> None:
        """Start the command, with these environment variables beside those of this process."""
        with contextlib.suppress(OSError):  # the guard has ended: `end` tells
            self._line.sendall(msgspec.json.encode([words, variables]) + b"\n")

    def has_ended(self) -> bool:
        """Return whether the guard has ended, and so the command, if it had begun."""
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def end(self) -> int:
        """End the command if it still runs; return its exit code, 128 + N if signal N ended it."""
        if self._code is None:
            self._line.close()
            _, status = os.waitpid(self._pid, 0)
            os.close(self.pidfd)
            code = os.waitstatus_to_exitcode(status)
            self._code = 128 - code if code < 0 else code
        return self._code


class _Guard:
    """The forked process."""

    def __init__(self, line: socket.socket, at_end: Callable[[], None]) -> None:
        self._line = line
        self._at_end = at_end
        self._command: subprocess.Popen[bytes] | None = None
        self._asked = False  # to end, by SIGTERM
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # SIGINT is for the command.  What is ignored stays so in it: that is for nohup to decide.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            if not is_ignored(number):
                signal.signal(number, self._ask if number == signal.SIGTERM else lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._signals = signal_pipe.open_signal_pipe()

    def run(self) -> int:
        """Return the exit code of the command, when it and all that it has started have ended.

        `at_end` comes first: it removes the folder of the job, which may then start again while
        they end, and make it anew.
        """
        try:
            code = self._run_command()
        finally:
            try:
                self._at_end()
            finally:
                ended = self._end_all()
        return next((each for each in (code, ended) if each is not None), 0)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _run_command(self) -> int | None:
        """Return the exit code of the command; None if it is to be ended."""
        request = self._read_request()
        if not request:
            return None
        words, variables = msgspec.json.decode(request, type=tuple[list[str], dict[str, str]])
        try:
            self._command = subprocess.Popen(
                words, env={**os.environ, **variables}, preexec_fn=_end_with_parent
            )
        except OSError as error:
            print(f"remotely run: {words[0]}: {error.strerror}", file=sys.stderr, flush=True)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        code: int | None = None
        while code is None and not self._asked:
            ready = self._sleep()
            code = self._reap()
            if ready:
                break
        return code

    def _read_request(self) -> bytes:
        data = b""
        while not data.endswith(b"\n") and not self._asked:
            if self._sleep():
                if not (piece := self._line.recv(_MAX_BYTES)):
                    return b""
                data += piece
        return b"" if self._asked else data

    def _sleep(self) -> bool:
        """Wait for a signal or the other end of the line; return whether it was the latter."""
        line = self._line.fileno()
        ready, _, _ = select.select([line, self._signals], [], [])
        signal_pipe.drain(self._signals)
        return line in ready

    def _reap(self) -> int | None:
        """Collect who has ended; return the exit code of the command if it is among them."""
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
        """End the command and all that it has started; return its exit code if it still ran."""
        code = None
        for number, within_s in ENDINGS:
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            until = time.monotonic() + within_s
            while processes.children_of(os.getpid()) and time.monotonic() < until:
                select.select([self._signals], [], [], 0.05)
                signal_pipe.drain(self._signals)
                ended = self._reap()
                code = ended if code is None else code
        return code


def _end_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
