"""The store process of this machine (remotely/store), as its worker starts and uses it.

The worker itself listens at the store's port.  When the first client connects or the first actor
asks, it starts the process and passes it the socket.  So a cluster that never sends large values
between machines has no store process.  If the store ends, the next request starts another.
"""

import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable

from remotely.machine import daemons, processes
from remotely.protocol import control
from remotely.protocol.control import StoreAddress
from remotely.protocol.lease import START_AGAIN_S
from remotely.protocol.listening import Listening
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport.keys import fresh_pair
from remotely.transport.line import Line
from remotely.transport.listening import listen_for_bytes
from remotely.transport.loop import Loop

log = logging.getLogger("remotely.worker")


class StoreLine:
    """`ask` receives what the store asks and confirms about keys; `on_lost` is called at its end.

    address   where clients reach the store, whether or not it runs
    """

    def __init__(
        self,
        loop: Loop,
        listening: Listening,
        machine: str,
        ask: Callable[[control.MayCall | control.CallerHeard], object],
        on_lost: Callable[[], object],
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._machine = machine
        self._ask = ask
        self._on_lost = on_lost
        self._pair = fresh_pair()
        self._throttled = ThrottledLog(log.warning)
        self._line: Line | None = None  # while a store runs
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = control.Decoder("store > worker")
        self._listener, endpoints = listen_for_bytes(listening)
        self.address = StoreAddress(tcp=endpoints, public_key=self._pair.public)
        self._pause = loop.after(0.0, self._watch)

    def tell(self, caller: control.Caller) -> None:
        """Tell the store whether a key may call."""
        if self._line is not None:
            self._line.send(caller)

    def meet(self) -> socket.socket | None:
        """Return a socket for an actor that is connected to the store; None if there is none."""
        if self._line is None and not self._start():
            return None
        assert self._line is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._line.send(control.Meet(), [theirs.fileno()])
        return ours

    def close(self) -> None:
        """Kill the store and stop listening."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._line is not None:
            self._line.close()
        self._listener.close()

    # Always exactly one: the port is watched, a pause before that runs, or a store runs.

    def _watch(self) -> None:
        self._loop.watch(self._listener.fileno(), self._knocked)

    def _knocked(self) -> None:
        self._loop.unwatch(self._listener.fileno())
        if not self._start():
            self._pause = self._loop.after(START_AGAIN_S, self._watch)

    def _start(self) -> bool:
        """Start the process; return false if that fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        birth = control.StoreBirth(
            listening=self._listening,
            machine=self._machine,
            public_key=self._pair.public,
            secret_key=self._pair.secret,
        )
        line = Line(ours, self._decoder)
        with theirs:
            try:
                line.send(birth)
                fds = theirs.fileno(), self._listener.fileno()
                self._process = subprocess.Popen(
                    daemons.module_command("remotely.store", *map(str, fds)),
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # this process's own is read by its launcher
                    start_new_session=True,
                    env={**os.environ, processes.TAG: processes.TAG_PLACEHOLDER},
                )
            except OSError as error:
                log.warning("no store for large values could be started: %s", error)
                line.close()
                return False
        self._line = line
        self._pause.cancel()
        self._loop.unwatch(self._listener.fileno())
        line.watch(self._loop, self._receive, self._lost)
        return True

    def _receive(self, message: object, _: object) -> None:
        assert isinstance(message, control.MayCall | control.CallerHeard)
        self._ask(message)

    def _lost(self) -> None:
        assert self._process is not None
        self._throttled.add("store", "the store for large values ended", time.monotonic())
        self._line = None
        self._process.returncode = 0  # the worker's Reaper waits for it, not `subprocess`
        self._process = None
        self._on_lost()
        self._pause = self._loop.after(START_AGAIN_S, self._watch)
