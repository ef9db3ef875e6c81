"""An actor in a process that Ray has started: the same servant, with a queue for a socket.

Its thread does what the main thread of an actor of ours does (actor.py): it takes messages from the
queue and has them run (dispatch.py).  The process, its end and its memory are the Host's
(engines/ray/host.py), which finds this module by its name.
"""

import asyncio
import mmap
import os
import queue
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
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

Arrived = tuple[bytes, Frames]


def start(birth: Birth, place: Place, host: Host) -> "Hosted":
    """Begin to serve, on a thread of its own."""
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
        return message.payload, [memoryview(bytearray(buffer)) for buffer in message.buffers]

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
    """The servant's thread, and what the host may ask of it."""

    def __init__(self, birth: Birth, place: Place, host: Host) -> None:
        self._host = host
        self._pid = os.getpid()
        self._inbox: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()
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
        self._loop: asyncio.AbstractEventLoop | None = None  # of a class with async methods
        threading.Thread(target=self._run, name="remotely-actor", daemon=True).start()

    def take(self, route: bytes, frames: Frames, entries: Entries, names: Sequence[str]) -> None:
        if entries:
            self._values.refer(route, wire.call_id_of(frames[0]), entries, names)
        self._inbox.put((route, frames))
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._turn_async)

    def cancel(self, route: bytes, call_id: int) -> bool:
        return self._cancellations.cancels(route, call_id)

    def stop(self) -> None:
        self._dispatcher.stop()

    def state(self) -> dict[str, Any]:
        seen = activity.look(self._page)
        return {**seen._asdict(), "calls": self._servant.calls, "queue": self._inbox.qsize()}

    def _client(self, birth: Birth, prepare: control.Prepare) -> RayEngine:
        shipment = Shipment.from_tree(connection.shipped_root(), prepare.files)
        return RayEngine(birth.cluster, shipment, inside=birth.name)

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
            if self._servant.is_async and not self._dispatcher.is_over():
                asyncio.run(self._serve_async())
            self._dispatcher.end()
            self._servant.let_go()
            connection.shutdown()
            exiting.flush_files()
        except SystemExit as error:
            exiting.flush_files()
            os._exit(exiting.exit_code(error))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        self._host.over()

    def _serve(self) -> None:
        dispatcher, servant = self._dispatcher, self._servant
        tidy_at = time.monotonic() + TIDY_EVERY_S
        while not dispatcher.is_over() and not servant.is_async:
            dispatcher.send_finished()
            due_ms = dispatcher.until_due_ms()
            if not self._turn(TIDY_EVERY_S if due_ms is None else due_ms / 1000):
                dispatcher.run_due()
            if (now := time.monotonic()) >= tidy_at:
                tidy_at = now + TIDY_EVERY_S
                servant.tidy()
                self._cancellations.tidy()

    async def _serve_async(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._turn_async()
        await self._over.wait()
        await self._dispatcher.before_end()

    def _turn_async(self) -> None:
        dispatcher = self._dispatcher
        dispatcher.send_finished()
        while dispatcher.has_room and not dispatcher.is_over():
            if not self._turn(0.0) and not dispatcher.run_due():
                break
        if dispatcher.is_over():
            self._over.set()
        elif (due_ms := dispatcher.until_due_ms()) is not None:
            assert self._loop is not None
            self._loop.call_later(due_ms / 1000, self._turn_async)

    def _turn(self, timeout_s: float) -> bool:
        """Take one message, or be woken; return whether there was either."""
        try:
            arrived = self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait()
        except queue.Empty:
            return False
        if arrived is not None:
            route, frames = arrived
            self._dispatcher.handle(route, wire.decode(frames, "client"))
        return True

    # --- replies ----------------------------------------------------------------------------------

    def _send(self, reply: RoutedReply) -> None:
        if os.getpid() != self._pid:
            exiting.end_fork()
        # Ray reads the buffers later, on another thread, when the object may have changed them.
        head, *buffers = reply.frames
        self._host.reply(reply.route, [head, *(memoryview(bytes(b)) for b in buffers)])

    def _wake(self) -> None:
        if self._loop is None:
            self._inbox.put(None)
        else:
            self._loop.call_soon_threadsafe(self._turn_async)


def _value_of(entry: Any, name: str) -> Any:
    """Return the value of an argument from the reply that it stands for."""
    if isinstance(entry, BaseException):
        raise references.of_argument(entry, name)
    message = wire.decode(received(entry), "actor")
    if message.kind is Kind.RAISED:
        error = raised_error.unpack(message.payload, message.buffers[0])
        raise references.of_argument(error, name)
    return codec.decode(message.payload, message.buffers)
