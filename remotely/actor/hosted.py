"""An actor in a process that Ray has started: the same servant, with a host for a socket.

It has what the main thread of an actor of ours has (actor.py), and messages run in the same order
(dispatch.py).  The process, its end and its memory are the Host's (engines/ray/host.py), which
finds this module by its name.
"""

import asyncio
import mmap
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from remotely.actor import exiting, startup
from remotely.actor.cancellations import Cancellations
from remotely.actor.dispatch import Dispatcher
from remotely.actor.preparation import Preparation
from remotely.actor.replies import RoutedReply
from remotely.actor.servant import Does, Servant
from remotely.api import connection, current_actor
from remotely.engines.ray.engine import RayEngine
from remotely.engines.ray.host import (
    Birth,
    Entries,
    Frames,
    Host,
    Place,
    received,
    session_folder,
    writable,
)
from remotely.machine import gpus
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.transport import activity
from remotely.transport.activity import OneByOne
from remotely.values import codec, in_transit, raised_error, references
from remotely.values.memory_peer import Unpacked
from remotely.values.shipping import Shipment

TIDY_EVERY_S = 2.0


def start(birth: Birth, place: Place, host: Host) -> "Hosted":
    """Begin to serve; called on the host's event loop."""
    if not birth.gpus:
        os.environ[gpus.VARIABLE] = ""  # Ray would show it all of them
    if not set(birth.env) & set(startup.THREAD_VARIABLES):  # else they are the user's
        startup.warm()
        startup.set_threads(max(1, int(birth.cpus)))
    current_actor.become(birth.actor, birth.name, birth.class_name, birth.life, place.machine)
    return Hosted(birth, place, host)


class PlasmaValues:
    """Values that come with their messages, beside entries that Ray has fetched."""

    does: Mapping[Kind, Does] = {}

    def __init__(self) -> None:
        self._entries: dict[tuple[bytes, int], tuple[Entries, Sequence[str]]] = {}

    def refer(self, route: bytes, call_id: int, entries: Entries, names: Sequence[str]) -> None:
        """The arguments of a call refer to these."""
        self._entries[route, call_id] = entries, names

    def unpack(self, route: bytes, message: Message) -> Unpacked:
        """Return a pickle and its buffers, which are copied: those of Ray's store are shared."""
        return message.payload, [writable(buffer) for buffer in message.buffers]

    def decode(self, route: bytes, message: Message) -> Any:
        entries, names = self._entries.pop((route, message.call_id), ((), ()))
        values = [_value_of(entry, name) for entry, name in zip(entries, names, strict=True)]
        return references.arrive(values, *self.unpack(route, message))

    def decline(self, route: bytes, message: Message) -> None:
        self._entries.pop((route, message.call_id), None)

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        what = f"the result of {message.name}" if message.name else "the result"
        encoded = codec.encode(value, what)
        if encoded.travelling:
            in_transit.keep_result(encoded.travelling, time.monotonic())
        frames = wire.encode(Kind.RESULT, message.call_id, "", encoded.pieces, encoded.buffers)
        return RoutedReply(route, frames)

    def waiting(self, now: float) -> list[bytes]:
        return []  # Ray counts who needs a result

    def forget(self, route: bytes) -> None:
        """Nothing is kept for a client."""

    def tidy(self) -> None:
        in_transit.tidy(time.monotonic())


class Hosted:
    """What the host asks of the servant.

    Plain classes are served on the host's event loop, which then takes in no further message, as
    the socket of an actor of ours is not read meanwhile.  A class with async methods has a loop on
    a thread of its own: SystemExit in a method ends a loop, and Ray's must go on until then.
    """

    def __init__(self, birth: Birth, place: Place, host: Host) -> None:
        self._host = host
        self._pid = os.getpid()
        self._values = PlasmaValues()
        self._page = mmap.mmap(-1, activity.SIZE)
        preparation = Preparation(
            place.host,
            session_folder() / "remotely",
            self._values,
            lambda prepare: self._client(birth, prepare),
        )
        self._servant = Servant(self._values, preparation, OneByOne(self._page))
        self._cancellations = Cancellations(lambda reply: True, lambda after_s, action: None)
        line = SimpleNamespace(send=self._send, wake=self._wake)
        self._dispatcher = Dispatcher(self._servant, line, self._cancellations, lambda: None)
        self._hosts_loop = self._loop = asyncio.get_running_loop()
        self._has_ended = False
        self._tidy()

    def take(self, route: bytes, frames: Frames, entries: Entries, names: Sequence[str]) -> None:
        if entries:
            self._values.refer(route, wire.call_id_of(frames[0]), entries, names)
        message = wire.decode(frames, "client")
        if self._loop is self._hosts_loop:
            self._run(self._dispatcher.handle, route, message)
        else:
            self._loop.call_soon_threadsafe(self._run, self._dispatcher.handle, route, message)

    def cancel(self, route: bytes, call_id: int) -> bool:
        return self._cancellations.cancels(route, call_id)

    def stop(self) -> None:
        self._dispatcher.stop()

    def state(self) -> dict[str, Any]:
        seen = activity.look(self._page)
        return {**seen._asdict(), "calls": self._servant.calls}

    def _client(self, birth: Birth, prepare: control.Prepare) -> RayEngine:
        shipment = Shipment.from_tree(connection.shipped_root(), prepare.files)
        return RayEngine(birth.cluster, shipment, inside=birth.name)

    # --- on the loop that serves ------------------------------------------------------------------

    def _run(self, work: Callable[..., object], *args: Any) -> None:
        """Run users' code, and whatever is due after it."""
        hides = not self._servant.is_async  # a plain method may run an event loop of its own
        if hides:
            asyncio._set_running_loop(None)
        try:
            work(*args)
            self._dispatcher.send_finished()
            if self._dispatcher.is_over() and not self._servant.is_async:
                self._end()
        except SystemExit as error:
            exiting.flush_files()
            os._exit(exiting.exit_code(error))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
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
        self._loop.call_soon_threadsafe(self._run, self._dispatcher.send_finished)

    def _tidy(self) -> None:
        self._servant.tidy()
        self._cancellations.tidy()
        self._hosts_loop.call_later(TIDY_EVERY_S, self._tidy)

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._dispatcher.end()
        self._servant.let_go()
        connection.shutdown()
        exiting.flush_files()
        self._host.over()

    # --- of a class with async methods ------------------------------------------------------------

    def _begin_async(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve_async, name="remotely-actor", daemon=True).start()

    def _serve_async(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._until_over())
            self._end()
        except SystemExit as error:
            exiting.flush_files()
            os._exit(exiting.exit_code(error))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    async def _until_over(self) -> None:
        self._over = asyncio.Event()
        if not self._dispatcher.is_over():
            await self._over.wait()
        await self._dispatcher.before_end()

    # --- replies ----------------------------------------------------------------------------------

    def _send(self, reply: RoutedReply) -> None:
        if os.getpid() != self._pid:
            exiting.end_fork()
        # Ray reads the buffers later, on another thread, when the object may have changed them.
        head, *buffers = reply.frames
        self._host.reply(reply.route, [head, *map(writable, buffers)])


def _value_of(entry: Any, name: str) -> Any:
    """Return the value of an argument from the reply that it stands for."""
    if isinstance(entry, BaseException):
        raise references.of_argument(entry, name)
    message = wire.decode(received(entry), "actor")
    if message.kind is Kind.RAISED:
        error = raised_error.unpack(message.payload, message.buffers[0])
        raise references.of_argument(error, name)
    return codec.decode(message.payload, message.buffers)
