"""The worker's end of the line to its zygote (zygote.py), and the zygote's process.

When the zygote ends, another is started, now or as soon as the machine has room for it.
"""

import contextlib
import errno
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from remotely.machine import daemons, processes
from remotely.protocol import control
from remotely.protocol.control import MAX_MESSAGE
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.loop import Loop

AGAIN_S = 1.0  # after which that is tried again for which the machine had no room


class ZygoteLine:
    """`hear` gets each message and what came with it; `lost` is told when no more will come."""

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        worker: str,
        hear: Callable[[object, list[int]], None],
        lost: Callable[[], None],
        throttled: ThrottledLog,
    ) -> None:
        self._loop = loop
        self._arguments = [str(folder), worker]
        self._hear = hear
        self._lost = lost
        self._throttled = throttled
        self._decoder = control.Decoder(control.FromZygote)
        self._preloaded: set[str] = set()
        self.is_closing = False  # no other is started when this one ends
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def preload(self, modules: list[str]) -> None:
        """Have modules imported before the next fork."""
        if (new := set(modules) - self._preloaded) and self._is_open:
            self._preloaded |= new
            with contextlib.suppress(OSError):  # its end is seen by `_receive`
                self._socket.send(control.encode(control.Preload(modules=sorted(new))))

    def fork(self, actor: str, descriptors: list[int]) -> None:
        """Ask for a process that is to have these.  Raises OSError where none can be had."""
        if not self._is_open:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        message = control.encode(control.Fork(actor=actor))
        socket.send_fds(self._socket, [message], descriptors)

    def stop(self) -> None:
        """Start no other zygote when this one ends."""
        self.is_closing = True

    def kill(self) -> None:
        """End it now; `lost` will be told."""
        self._process.kill()

    def close(self) -> None:
        """End the zygote.

        Not asked to end: it may be in the middle of an import of many seconds.  What it was about
        to tell of is a child of the worker's now, and is killed like the rest.
        """
        self._process.kill()
        self._process.wait()
        self._socket.close()

    @property
    def _is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            # The zygote removes the folder if we cannot; it is a child of ours, so that actors
            # that lose it fall to us.
            self._process = subprocess.Popen(
                daemons.module_command(
                    "remotely.actor.zygote", str(theirs.fileno()), *self._arguments
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # ours goes to whoever started us
                start_new_session=True,
                env={**os.environ, processes.TAG: processes.ROOM},
            )
            undo.pop_all()
        ours.setblocking(False)  # it has room by the nursery's rule; if not, we had rather be told
        self._socket = ours
        self._loop.watch(ours.fileno(), self._receive)
        self._preloaded.clear()  # asked for again by who needs them: one may be what ended the last

    def _receive(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE, 1)
        except ConnectionResetError:  # it ended before it had read all that we asked for
            data, descriptors = b"", []
        if data:
            self._hear(self._decoder.decode(data), descriptors)
            return
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._process.returncode = 0  # the worker reaps it, like all its children
        if not self.is_closing:
            self._throttled.add("zygote", "the zygote ended; starting another", time.monotonic())
            self._start_again()
        self._lost()

    def _start_again(self) -> None:
        try:
            self._start()
        except OSError as error:
            sentence = f"no zygote could be started: {error.strerror}"
            self._throttled.add(sentence, sentence, time.monotonic())
            self._loop.after(AGAIN_S, self._start_again)
