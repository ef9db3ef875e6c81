"""The Ray actor that contains one object, and the form of messages on Ray.

A class with plain methods has a SerialHost, any other an AsyncHost; both have the same methods.
Methods of the group CONTROL never wait for users' code; those of the group WAITS only wait.  The
object itself is served by the same servant as on our own cluster (remotely/actor/hosted.py).

Ray swallows errors of a constructor, and reports them to the next caller.  So the constructor of a
host does nothing, and a message, INIT, creates the object, as on our own cluster.  Before INIT,
`state` returns None, so no client finds the actor.

A message to a host is a route, which identifies its client, and the head of the message, as bytes;
large buffers are out of band.  A reply is the same without a route, or NOT_RUN or LOST.
"""

import asyncio
import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import psutil
import ray

from remotely.engine import Options
from remotely.machine import this_machine, threads
from remotely.protocol import wire
from remotely.protocol.lease import DRAIN_S
from remotely.reporting.cluster_status import ActorStatus, ClientStatus
from remotely.values import codec

CONTROL, WAITS = "control", "waits"  # the concurrency groups
HOST_LOOK_S = 1.0  # interval of the checks of the memory, and of the object's creation
CALLS_AT_ONCE = 1_000_000  # in the event loop of an AsyncHost; the servant limits how many run
# The code of the process that Ray starts, by name: as a worker names that of the processes that it
# starts (`daemons.module_command`).  It runs users' methods, a layer above the engines.
HOSTED = "remotely.actor.hosted"

ROUTE_BYTES = 8
# Instead of a reply: the actor has ended, and the call did not run, or may have run.
NOT_RUN, LOST = b"", b"lost"

Entries = Sequence[Any]  # replies of other calls, or errors, in place of arguments
Frames = Sequence[bytes | memoryview]
M = TypeVar("M", bound=Callable[..., Any])


# --- messages -------------------------------------------------------------------------------------


def sendable(frames: Frames) -> Any:
    """Return frames in the form that Ray sends: the head as bytes, and buffers out of band."""
    head, *buffers = frames
    head = bytes(head)
    return (head, codec.out_of_band(buffers)) if buffers else head


def received(data: Any) -> list[bytes | memoryview]:
    """Return the frames of received data.  Buffers are copied, since Ray's store shares them
    read-only."""
    if isinstance(data, bytes):
        return [data]
    head, buffers = data
    return [head, *map(writable, buffers)]


def writable(buffer: Any) -> memoryview:
    """Return a writable copy.  numpy uses huge pages, so this is faster than a bytearray."""
    flat = memoryview(buffer).cast("B")
    return np.frombuffer(flat, np.uint8).copy().data if flat.nbytes else flat


# --- the description, place and state of a host ---------------------------------------------------


class HostBirth(NamedTuple):
    """The description of an actor, which its host receives before the object."""

    actor: str  # its id
    name: str
    class_name: str
    life: int
    is_serial: bool  # its host is a SerialHost
    options: Options
    owner: ClientStatus | None  # None if it is detached
    cluster: str  # as `RayCarrier.cluster`


class HostPlace(NamedTuple):
    """The place of a host."""

    pid: int
    machine: str
    host: str  # see this_machine.identity
    node: str  # as Ray names it


class HostState(NamedTuple):
    """The state of a host."""

    birth: HostBirth
    status: ActorStatus
    is_leaving: bool  # whether it was asked to end


class Hosting(Protocol):
    """The servant of a host: `actor.hosted.Hosted`."""

    is_closing: bool

    def take(
        self, route: bytes, frames: Frames, entries: Entries, names: Sequence[str]
    ) -> None: ...

    def cancel(self, route: bytes, call_id: int) -> bool: ...

    def stop(self) -> None: ...

    def end_if_stopped(self) -> None: ...

    def is_made(self) -> bool: ...

    def state(self) -> dict[str, Any]: ...


# --- the hosts ------------------------------------------------------------------------------------


def in_group(group: str) -> Callable[[M], M]:
    """Mark a method that Ray runs in a concurrency group."""

    def mark(method: M) -> M:
        return cast(M, ray.method(concurrency_group=group)(method))

    return mark


class RayHost:
    """`made_within_s` is how long its process waits for its object.

    0 means as long as its creator lives: Ray ends the process with its creator.
    """

    def __init__(self, name: str, made_within_s: float) -> None:
        self._name = name
        self._hosted: Hosting | None = None
        self._birth: HostBirth | None = None
        self._is_leaving = False
        self._over = threading.Event()  # the object has been released
        self._watched = threading.Event()
        if made_within_s:
            threads.start("maker", self._watch_maker, made_within_s)

    def __repr__(self) -> str:
        """Return the prefix that Ray writes before each line that the actor prints."""
        return self._name

    def _begin(self, birth: HostBirth) -> HostPlace:
        """Start the servant, and return the place of this process."""
        self._birth = birth
        if memory := birth.options.memory:  # on a thread, since a call may exceed the limit
            threads.start("memory", _watch_memory, memory)
        place = HostPlace(
            os.getpid(),
            this_machine.machine_name(),
            this_machine.identity(),
            ray.get_runtime_context().get_node_id(),
        )
        self._hosted = importlib.import_module(HOSTED).start(birth, place, self)
        return place

    def _watch_maker(self, made_within_s: float) -> None:
        """End the process if it has no object in time: its creator is gone, and callers wait."""
        deadline = time.monotonic() + made_within_s
        while self._hosted is None or not self._hosted.is_made():
            if time.monotonic() >= deadline:
                print(f"remotely: {self._name} has no object after {made_within_s:g} s", flush=True)
                os._exit(1)
            time.sleep(HOST_LOOK_S)

    @in_group(CONTROL)
    def cancel(self, route: bytes, call_id: int) -> bool:
        return self._hosted is not None and self._hosted.cancel(route, call_id)

    @in_group(CONTROL)
    def state(self) -> HostState | None:
        """Return its description and status; None before INIT has arrived."""
        hosted, birth = self._hosted, self._birth
        if hosted is None or birth is None or not hosted.is_made():
            return None
        process, options = psutil.Process(), birth.options
        assert isinstance(options.memory, int)
        status = ActorStatus(
            name=birth.name,
            class_name=birth.class_name,
            actor=birth.actor,
            machine=this_machine.machine_name(),
            worker=ray.get_runtime_context().get_node_id(),
            pid=process.pid,
            cpus=options.cores,
            gpus=options.gpus,
            gpu_ids=ray.get_gpu_ids(),
            memory_limit=options.memory,
            resources=dict(options.resources),
            cpu_percent=process.cpu_percent(),
            rss=(rss := process.memory_info().rss),
            memory=rss,  # its limit counts all of it
            queue=0,
            since=process.create_time(),
            owner=birth.owner,
            **hosted.state(),
        )
        return HostState(birth, status, self._is_leaving)

    def reply(self, route: bytes, frames: Frames) -> None:
        """Reply to a message.  Called on any thread on which the servant runs messages."""
        raise NotImplementedError

    def over(self) -> None:
        """Record that the object has been released, and no call runs.  Called like `reply`."""
        raise NotImplementedError

    def _await_end(self, grace_s: float, stops: bool) -> None:
        """Return when the object has been closed; if that takes too long, kill the process.

        1  With `stops` no further call begins, and the object is closed now; otherwise the message
           END closes it, which may have arrived already.
        2  Running calls have `grace_s` to finish.
        3  With `stops`, a `close` of the object that has begun by then has DRAIN_S more.
        4  Ray waits for running calls to finish, so `watch` returns first.
        """
        self._is_leaving = True
        hosted = self._hosted
        if stops and hosted is not None:
            hosted.stop()
        if not self._over.wait(grace_s):
            is_closing = stops and hosted is not None and hosted.is_closing
            if not is_closing or not self._over.wait(DRAIN_S):
                os._exit(1)
        self._watched.set()

    def _new_watch(self) -> threading.Event:
        """End the present `watch`, if there is one; return the event for the next to wait for."""
        self._watched.set()
        self._watched = watched = threading.Event()
        return watched


class SerialHost(RayHost):
    """The host of an object whose calls run one after the other on one thread.

    Ray runs the calls of a plain actor in the order in which each client made them, and waits for
    the references in their arguments.  It reads a result before it runs the next call, which may
    change the result.
    """

    def __init__(self, name: str, made_within_s: float) -> None:
        super().__init__(name, made_within_s)
        self._reply: Any = NOT_RUN

    def begin(self, birth: HostBirth) -> HostPlace:
        return self._begin(birth)

    def do(
        self,
        data: bytes,
        buffers: Sequence[Any] = (),
        names: Sequence[str] = (),
        *entries: Any,
    ) -> Any:
        """Handle one message, and return the reply.

        `entries` are what the arguments refer to: replies or errors.  `names` name these arguments.
        """
        if self._over.is_set():
            return NOT_RUN
        assert self._hosted is not None
        route, head = data[:ROUTE_BYTES], memoryview(data)[ROUTE_BYTES:]
        self._hosted.take(
            route, [head, *(memoryview(buffer) for buffer in buffers)], entries, names
        )
        reply, self._reply = self._reply, NOT_RUN  # the latter if the object was never created
        return reply

    def forget(self, route: bytes) -> None:
        """Do nothing: this kind of host has no state for a route."""

    @in_group(WAITS)
    def watch(self) -> None:
        """Fail when this process dies; return when it ends gracefully, or at the next `watch`."""
        self._new_watch().wait()

    def stop(self) -> None:
        """Close the object on the thread that runs messages; `leave` may come before or after."""
        if self._hosted is not None:
            self._hosted.stop()
            self._hosted.end_if_stopped()

    @in_group(WAITS)
    def leave(self, grace_s: float, stops: bool) -> None:
        """End the process (see `_await_end`); never returns."""
        self._await_end(grace_s, stops)
        ray.actor.exit_actor()

    def reply(self, route: bytes, frames: Frames) -> None:
        self._reply = sendable(frames)

    def over(self) -> None:
        self._over.set()


class _Turn:
    """The order of one client's messages."""

    def __init__(self) -> None:
        self.due = 1
        self.waiting: dict[int, asyncio.Future[None]] = {}


class AsyncHost(RayHost):
    """The host of an object that serves several calls at a time: batched, async, or on threads.

    It is an async Ray actor, whose calls begin in any order.  So clients number their messages, and
    the host passes them to the servant in that order.
    """

    def __init__(self, name: str, made_within_s: float) -> None:
        super().__init__(name, made_within_s)
        self._turns: dict[bytes, _Turn] = {}
        self._asked: dict[tuple[bytes, int], asyncio.Future[Any]] = {}

    async def begin(self, birth: HostBirth) -> HostPlace:
        # Calls on handles may block, so Ray's warning is turned off.
        os.environ["RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"] = "0"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        return self._begin(birth)

    async def do(
        self,
        data: bytes,
        buffers: Sequence[Any] = (),
        names: Sequence[str] = (),
        refs: Sequence[Any] = (),
    ) -> Any:
        """Handle one message, and return the reply.

        `refs` are the references in the arguments, `names` those arguments' names.

        1  The message waits for those with lower numbers, and then for its `refs`.
        2  It is passed to the servant, which replies now or later, by `reply`.
        3  The next number may continue, whatever happened to this one.
        4  This returns the reply; if the object is released before (`over`), NOT_RUN or LOST.
        """
        route, head = data[:ROUTE_BYTES], memoryview(data)[ROUTE_BYTES:]
        number = wire.call_id_of(head)
        turn = self._turns.setdefault(route, _Turn())
        if number != turn.due:
            await turn.waiting.setdefault(number, self._loop.create_future())
        outcome = self._loop.create_future()
        try:
            entries: Entries = await asyncio.gather(*refs, return_exceptions=True) if refs else ()
            if self._over.is_set():
                outcome.set_result(NOT_RUN)
            else:
                self._asked[route, number] = outcome
                assert self._hosted is not None
                self._hosted.take(
                    route, [head, *(memoryview(buffer) for buffer in buffers)], entries, names
                )
        finally:
            turn.due += 1
            if (next_one := turn.waiting.pop(turn.due, None)) is not None:
                next_one.set_result(None)
        return await outcome

    @in_group(CONTROL)
    async def forget(self, route: bytes) -> None:
        """Drop the state of a route that is no longer used."""
        self._loop.call_soon_threadsafe(self._turns.pop, route, None)

    @in_group(WAITS)
    async def watch(self) -> None:
        """See `SerialHost.watch`."""
        await asyncio.to_thread(self._new_watch().wait)

    async def stop(self) -> None:
        """Do nothing: `leave` is enough here, since it wakes the object's own loop."""

    @in_group(WAITS)
    async def leave(self, grace_s: float, stops: bool) -> None:
        """End the process (see `_await_end`); never returns."""
        await asyncio.to_thread(self._await_end, grace_s, stops)
        ray.actor.exit_actor()

    def reply(self, route: bytes, frames: Frames) -> None:
        number = wire.call_id_of(frames[0])
        # Copied: Ray reads the buffers later, on another thread, when the object may change them.
        head, *buffers = frames
        data = sendable([head, *map(writable, buffers)])
        if threading.get_ident() == self._thread:
            self._answer(route, number, data)
        else:
            self._loop.call_soon_threadsafe(self._answer, route, number, data)

    def over(self) -> None:
        self._loop.call_soon_threadsafe(self._end)

    def _answer(self, route: bytes, number: int, data: Any) -> None:
        outcome = self._asked.pop((route, number), None)
        if outcome is not None and not outcome.done():
            outcome.set_result(data)

    def _end(self) -> None:
        assert self._hosted is not None
        for route, number in list(self._asked):
            is_in_time = self._hosted.cancel(route, number)  # else it has begun
            self._answer(route, number, NOT_RUN if is_in_time else LOST)
        self._over.set()  # last: `leave` waits for it


# The number of concurrent calls in each group: on threads, or in an event loop.
Serial = ray.remote(concurrency_groups={CONTROL: 4, WAITS: 8})(SerialHost)
Async = ray.remote(concurrency_groups={CONTROL: 1_000, WAITS: 1_000})(AsyncHost)


def _watch_memory(limit: int) -> None:
    """End the process when its memory exceeds the limit."""
    process = psutil.Process()
    while (used := process.memory_info().rss) <= limit:
        time.sleep(HOST_LOOK_S)
    print(f"remotely: the actor used {used:,} bytes; its limit is {limit:,}", flush=True)
    os._exit(1)


def session_folder() -> Path:
    """Return Ray's own folder on this machine, for files that last as long as the cluster."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path())
