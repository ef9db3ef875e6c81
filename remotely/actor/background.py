"""The second thread of an actor, which never waits for the user's code.

It answers libzmq's questions about keys, listens to the worker, and ends the process when the
worker is gone or its lease is over (fence.py).  So neither a new client nor the worker waits for a
long call.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from remotely.actor import exiting
from remotely.actor.delegation import Delegation
from remotely.actor.machine_store import MachineStore
from remotely.actor.servant import Servant
from remotely.actor.worker_line import Line
from remotely.protocol import control
from remotely.reporting.throttled_log import ThrottledLog
from remotely.transport import sockets
from remotely.transport.access_list import AccessList
from remotely.transport.fence import Fence
from remotely.transport.loop import Loop

TEND_EVERY_S = 2.0  # while calls come; else at growing intervals
TEND_AT_LEAST_EVERY_S = 16.0
FENCED_S = 0.05


class Background:
    """What runs on that thread; of its methods the main thread calls the public ones."""

    def __init__(
        self,
        birth: control.Birth,
        line: Line,
        delegation: Delegation,
        servant: Servant,
        store: MachineStore,
    ) -> None:
        self._line = line
        self._delegation = delegation
        self._servant = servant
        self._store = store
        self._counted = 0
        self._tend_after_s = TEND_EVERY_S
        self.is_resting = False  # it tends at longer intervals, as no calls come
        self._on_leave: Callable[[], None] = lambda: None
        self._on_cancel: Callable[[control.Cancel], None] = lambda cancel: None
        self._fence = Fence(Path(birth.folder))
        self.access = AccessList(birth.client_keys, self._ask_about)
        self.throttled = ThrottledLog(lambda said: print(f"remotely: {said}", file=sys.stderr))
        self.context = sockets.new_context()
        self._zap = sockets.ZapHandler(self.context, self.access.admit, self.throttled)
        self.loop = Loop()
        self._thread = threading.Thread(
            target=self.loop.run, name="remotely-background", daemon=True
        )

    def start(
        self,
        on_leave: Callable[[], None],
        on_cancel: Callable[[control.Cancel], None],
        tidy: Callable[[], None],
    ) -> None:
        """Begin.

        `on_leave` is called when the worker wants the actor to end in good order, `on_cancel` when
        a caller takes a call back, and `tidy` every TEND_EVERY_S while calls come.
        """
        self._tidy = tidy
        self._on_leave = on_leave
        self._on_cancel = on_cancel
        self._line.watch(self.loop, self._hear_worker, exiting.end_group)
        self.loop.watch_socket(self._zap.socket, self._zap.answer)
        self._next_tending = self.loop.after(TEND_EVERY_S, self._tend)
        self.loop.after(self._fence.until_look_s(), self._check_fence)
        self._thread.start()

    def end_rest(self) -> None:
        """A message has come after a rest: tend soon, and regularly."""
        self.is_resting = False
        self.loop.call(self._end_rest)

    def wait_for_lease(self) -> None:
        """Return when the lease is not over.  It is renewed, or this process ends."""
        while self._fence.has_passed:
            time.sleep(FENCED_S)

    def stop(self, within_s: float) -> bool:
        """End the thread; return whether it has ended in time."""
        self.loop.stop()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Return when all that was sent has left, and every socket of the context is closed."""
        self._zap.socket.close()
        self.context.term()

    # --- on the thread ----------------------------------------------------------------------------

    def _hear_worker(self, message: object, end: socket.socket | None) -> None:
        match message:
            case control.Admit(client_keys=client_keys):
                self.access.relist(client_keys)
            case control.Caller(key=key, admitted=admitted) as caller:
                self.access.hear(caller)
                self._zap.decide(key, "client" if admitted else None)
            case control.Delegated():
                self._delegation.confirm()
            case control.Cancel():
                self._on_cancel(message)
            case control.Meet():
                self._store.introduced(end)
            case control.Leave():
                self._on_leave()

    def _ask_about(self, key: bytes) -> None:
        self._line.tell(control.MayCall(key=key))

    def _check_fence(self) -> None:
        if self._fence.look():
            exiting.say("remotely: the worker lost its lease, and its actors end\n")
            exiting.end_group()
        self.loop.after(self._fence.until_look_s(), self._check_fence)

    def _tend(self) -> None:
        """Tidy up and report.  An actor that nobody calls wakes for it more and more seldom."""
        self._tidy()
        self._servant.tidy()
        has_called = self._servant.calls != self._counted
        if (is_told := self._line.go_on()) and has_called:
            self._counted = self._servant.calls
            self._line.tell(control.Count(calls=self._counted))
        if is_told and not has_called:
            self._tend_after_s = min(2 * self._tend_after_s, TEND_AT_LEAST_EVERY_S)
        else:
            self._tend_after_s = TEND_EVERY_S
        self._next_tending = self.loop.after(self._tend_after_s, self._tend)
        self.is_resting = self._tend_after_s > TEND_EVERY_S

    def _end_rest(self) -> None:
        self._tend_after_s = TEND_EVERY_S
        self._next_tending.cancel()
        self._next_tending = self.loop.after(TEND_EVERY_S, self._tend)
