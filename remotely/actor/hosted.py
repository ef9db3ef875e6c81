"""An actor in a process that Ray has started: the same servant, with a host instead of a socket.

It does what the main thread of a remotely actor does (actor.py), and runs messages in the same
order (dispatch.py).  The host (engines/ray/host.py) owns the process, its end and its memory, and
imports this module by name.
"""

import asyncio
import contextlib
import mmap
import os
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from remotely.actor import exiting, startup
from remotely.actor.dispatch import Cancellations, Dispatcher
from remotely.actor.plasma_values import PlasmaValues
from remotely.actor.preparation import Preparation
from remotely.actor.servant import RoutedReply, Servant
from remotely.api import connection, current_actor
from remotely.calling.engine import CallEngine
from remotely.engines.ray.carrier import RayCarrier, engine_on
from remotely.engines.ray.host import Entries, Frames, HostBirth, HostPlace, RayHost, session_folder
from remotely.machine import gpus, threads
from remotely.protocol import control, wire
from remotely.protocol.lease import ACTOR_TIDY_S
from remotely.reporting.cluster_status import metric_status
from remotely.transport import activity, own_metrics
from remotely.transport.activity import OneByOne
from remotely.values.maker_state import THREAD_VARIABLES
from remotely.values.shipping import Shipment


def start(birth: HostBirth, place: HostPlace, host: RayHost) -> "Hosted":
    """Start to serve; called on the thread on which the host receives messages."""
    if not birth.options.gpus:
        os.environ[gpus.VARIABLE] = ""  # else Ray leaves all of them visible
    if not set(birth.options.env) & set(THREAD_VARIABLES):  # else the user has set them
        startup.warm()
        startup.set_threads(max(1, int(birth.options.cores)))
    if not os.environ.get("PYTHONBREAKPOINT"):  # Ray names its own debugger there
        sys.breakpointhook = _no_debugger
    current_actor.become(birth.actor, birth.name, birth.class_name, birth.life, place.machine)
    return (SerialHosted if birth.is_serial else LoopHosted)(birth, place, host)


def _no_debugger(*args: Any, **kwargs: Any) -> None:
    print(
        "remotely: breakpoint() was ignored, because 'remotely debug' does not reach actors of "
        "Ray: use its own debugger ('ray debug' with RAY_DEBUG=legacy, or its extension for VS "
        "Code), or run the script with REMOTELY_LOCAL=1",
        file=sys.stderr,
    )


class Hosted(ABC):
    """The servant as the host uses it; the subclasses differ in where messages run."""

    def __init__(self, birth: HostBirth, place: HostPlace, host: RayHost) -> None:
        self._host = host
        self._pid = os.getpid()
        self._values = PlasmaValues()
        self._page = mmap.mmap(-1, activity.SIZE)
        preparation = Preparation(
            place.host,
            session_folder() / "remotely",
            self._values,
            lambda prepare: self._engine(birth, prepare),
            given=birth.options.env,
        )
        self._servant = Servant(self._values, preparation, OneByOne(self._page))
        self._cancellations = Cancellations(
            self._page, lambda reply: True, lambda after_s, action: None
        )
        send = self._send
        line = SimpleNamespace(send=send, send_soon=send, send_beside=send, wake=self._wake)
        self._dispatcher = Dispatcher(self._servant, line, self._cancellations, lambda: None)
        self.is_closing = False  # no call runs, and the object is being closed
        self._has_ended = False

    def take(self, route: bytes, frames: Frames, entries: Entries, names: Sequence[str]) -> None:
        """Run a message; `RayHost.reply` receives its reply."""
        if entries:
            self._values.refer(route, wire.call_id_of(frames[0]), entries, names)
        self._handle(route, wire.decode(frames, "client"))

    def cancel(self, route: bytes, call_id: int) -> bool:
        """Cancel a call; return whether that was in time."""
        return self._cancellations.cancel(route, call_id)

    def stop(self) -> None:
        """Begin no further call, and close the object."""
        self._dispatcher.stop()

    @abstractmethod
    def end_if_stopped(self) -> None:
        """Close the object if `stop` was called.  On the thread that runs messages."""

    def is_made(self) -> bool:
        """Return whether the object exists or its constructor runs."""
        return self._servant.is_made

    def state(self) -> dict[str, Any]:
        """Return the running method, the calls, the errors and the user's own metrics, as fields of
        ActorStatus."""
        seen = activity.look(self._page)
        running = {"running": seen.running, "method": seen.method, "method_s": seen.method_s}
        metrics = [metric_status(each) for each in own_metrics.of_process()]
        counts = {"calls": self._servant.calls, "errors": activity.measured(self._page).errors}
        return {**running, **counts, "metrics": metrics}

    @abstractmethod
    def _handle(self, route: bytes, message: wire.Message) -> None:
        """Run a message, or schedule it."""

    @abstractmethod
    def _wake(self) -> None:
        """Wake the thread that runs messages after `stop`.  Any thread may call this."""

    def _engine(self, birth: HostBirth, prepare: control.Prepare) -> CallEngine:
        shipment = Shipment.from_tree(connection.shipped_root(), prepare.files)
        return engine_on(RayCarrier(birth.cluster, shipment, inside=birth.name))

    def _send(self, reply: RoutedReply) -> None:
        if os.getpid() != self._pid:
            exiting.end_fork()
        self._host.reply(reply.route, reply.frames)

    def _tidy(self) -> None:
        self._servant.tidy()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if not self._servant.is_async:  # else its loop has done so
            self._dispatcher.end_calls()
            self.is_closing = True
            self._dispatcher.close()
        self._servant.release()
        connection.shutdown()
        exiting.flush_files()
        self._host.over()


class SerialHosted(Hosted):
    """Runs each message at once, on the thread that delivers it, which is always the same."""

    def __init__(self, birth: HostBirth, place: HostPlace, host: RayHost) -> None:
        super().__init__(birth, place, host)
        self._lock = threading.Lock()
        threads.start("tidy", self._keep_tidy)

    def end_if_stopped(self) -> None:
        self._run(lambda: None)

    def _handle(self, route: bytes, message: wire.Message) -> None:
        self._run(self._dispatcher.handle, route, message)

    def _wake(self) -> None:
        """Nothing to wake: the host calls `end_if_stopped` after `stop`."""

    def _run(self, work: Callable[..., object], *args: Any) -> None:
        try:
            with self._lock:
                work(*args)
                if self._dispatcher.is_over():
                    self._end()
        except BaseException as error:  # also an exit of the user's: Ray would go on
            _exit(error)

    def _keep_tidy(self) -> None:
        while True:
            time.sleep(ACTOR_TIDY_S)
            with self._lock:
                self._tidy()


class LoopHosted(Hosted):
    """Serves several calls at a time.

    A class without async methods is served on the host's event loop, which receives no message
    while a method runs, just as a remotely actor does not read its socket.  A class with async
    methods has a loop on a thread of its own: a SystemExit in a method ends its loop, and Ray's
    loop must keep running until the process exits.
    """

    def __init__(self, birth: HostBirth, place: HostPlace, host: RayHost) -> None:
        super().__init__(birth, place, host)
        self._hosts_loop = self._loop = asyncio.get_running_loop()
        self._tidy()

    def end_if_stopped(self) -> None:
        """Nothing to do: `stop` has woken its loop."""

    def _handle(self, route: bytes, message: wire.Message) -> None:
        if self._loop is self._hosts_loop:
            self._run(self._handle_unless_over, route, message)
        else:
            self._post(self._handle_unless_over, route, message)

    def _handle_unless_over(self, route: bytes, message: wire.Message) -> None:
        """Run a message, unless the object is about to be closed: then the host replies to it."""
        if not self._dispatcher.is_over():
            self._dispatcher.handle(route, message)

    def _post(self, work: Callable[..., object], *args: Any) -> None:
        """Schedule `_run` on the object's loop.

        If the loop has closed, nothing is left to do: `_end` has told the host.
        """
        with contextlib.suppress(RuntimeError):  # "Event loop is closed"
            self._loop.call_soon_threadsafe(self._run, work, *args)

    def _run(self, work: Callable[..., object], *args: Any) -> None:
        """Run users' code, and what follows: the end, the async loop, or a batch that is due."""
        hides = not self._servant.is_async  # so that a plain method can run its own event loop
        if hides:
            asyncio._set_running_loop(None)
        try:
            work(*args)
            if self._dispatcher.is_over() and not self._servant.is_async:
                self._end()
        except BaseException as error:
            _exit(error)
        finally:
            if hides:
                asyncio._set_running_loop(self._loop)
        if self._servant.is_async and self._loop is self._hosts_loop:
            self._begin_async()
        elif (due_ms := self._dispatcher.until_due_ms()) is not None:
            self._loop.call_later(due_ms / 1000, self._run, self._dispatcher.run_due)
        elif self._servant.is_async and self._dispatcher.is_over():
            self._over.set()

    def _wake(self) -> None:
        self._post(lambda: None)

    def _tidy(self) -> None:
        super()._tidy()
        self._hosts_loop.call_later(ACTOR_TIDY_S, self._tidy)

    # --- a class with async methods ---------------------------------------------------------------

    def _begin_async(self) -> None:
        self._loop = self._dispatcher.loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._post(self._dispatcher.run_early)
        threads.start("actor", self._serve_async)

    def _serve_async(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_over())
            self._end()
        except BaseException as error:
            _exit(error)

    async def _until_over(self) -> None:
        if not self._dispatcher.is_over():
            await self._over.wait()
        await self._dispatcher.before_end()
        await self._dispatcher.end_calls_on_loop()
        self.is_closing = True
        await self._dispatcher.close_on_loop()


def _exit(error: BaseException) -> None:
    """End the process: after SystemExit in a method, or after an internal error."""
    if isinstance(error, SystemExit):
        exiting.flush_files()
        os._exit(exiting.exit_code(error))
    traceback.print_exception(error)
    os._exit(1)
