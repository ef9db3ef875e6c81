"""The Ray actor in which one object lives, as far as all objects have it in common.

A class with plain methods has a SerialHost, any other an AsyncHost.  Both have the same methods.
Those of the group CONTROL never wait for users' code, and those of the group WAITS do nothing else.

Ray swallows the errors of a constructor, and reports them to whoever makes the next call.  So this
one does nothing, and the object is made by a message, INIT, as on our own cluster.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import msgspec
import psutil
import ray

from remotely.engines.ray.frames import Entries, Frames
from remotely.machine import this_machine

CONTROL, WAITS = "control", "waits"  # the concurrency groups
LOOK_EVERY_S = 1.0  # at the memory, and whether there is an object
# It imports what runs users' code, which is above the engines; so it is found by its name, as a
# worker starts its actors' processes.
HOSTED = "remotely.actor.hosted"

M = TypeVar("M", bound=Callable[..., Any])


def in_group(group: str) -> Callable[[M], M]:
    """Mark a method that Ray runs in a concurrency group."""

    def mark(method: M) -> M:
        return cast(M, ray.method(concurrency_group=group)(method))

    return mark


class Birth(msgspec.Struct, frozen=True):
    """What a host is told before it is given an object."""

    actor: str  # its id
    name: str
    class_name: str
    life: int
    is_serial: bool  # its host is a SerialHost
    max_restarts: int
    cpus: float
    gpus: float
    env: list[str]  # the names of variables that the user has set
    memory: int  # bytes; beyond it the actor ends; 0 is no limit
    resources: dict[str, float]
    owner: tuple[int, str, str]  # pid and machine of the client, and its name if it is an actor
    cluster: str  # as `RayEngine.cluster`


class Place(msgspec.Struct, frozen=True):
    """Where a host has come to be."""

    pid: int
    machine: str
    host: str  # see this_machine.identity
    node: str  # as Ray names it


class Hosted(Protocol):
    """What the servant offers to its host."""

    is_closing: bool  # no call runs any more, and the object is being closed

    def take(self, route: bytes, frames: Frames, entries: Entries, names: Sequence[str]) -> None:
        """Run a message; its reply goes to `Line.reply`."""

    def cancel(self, route: bytes, call_id: int) -> bool:
        """Have a call not begin; return whether that was in time."""

    def stop(self) -> None:
        """Begin no further call, and close the object."""

    def end_if_stopped(self) -> None:
        """On the thread that runs messages: close the object, if that is due."""

    def is_made(self) -> bool:
        """Tell whether there is an object, or its constructor runs."""

    def state(self) -> dict[str, Any]:
        """Return what it is doing."""


class Line(Protocol):
    """What a host offers to its servant, on any thread on which that runs messages."""

    def reply(self, route: bytes, frames: Frames) -> None:
        """Give a message its reply."""

    def over(self) -> None:
        """The object has been let go: nothing runs any more."""


class Host:
    """`made_within_s` is how long its process waits for its object; 0 is as long as its maker
    lives, with whom Ray ends it."""

    def __init__(self, name: str, made_within_s: float) -> None:
        self._name = name
        self._hosted: Hosted | None = None
        self._birth: Birth | None = None
        self._is_over = False
        self._is_leaving = False
        if made_within_s:
            threading.Thread(target=self._watch_maker, args=(made_within_s,), daemon=True).start()

    def __repr__(self) -> str:
        """What Ray writes before each line that the actor prints."""
        return self._name

    @property
    def is_closing(self) -> bool:
        return self._hosted is not None and self._hosted.is_closing

    def _begin(self, birth: bytes) -> bytes:
        """Be ready for messages; return the Place."""
        self._birth = told = msgspec.msgpack.decode(birth, type=Birth)
        if told.memory:
            watch = threading.Thread(target=_watch_memory, args=(told.memory,), daemon=True)
            watch.start()  # a call may be what takes it all
        context = ray.get_runtime_context()
        place = Place(
            os.getpid(), this_machine.machine_name(), this_machine.identity(), context.get_node_id()
        )
        self._hosted = importlib.import_module(HOSTED).start(told, place, self)
        return msgspec.msgpack.encode(place)

    def _watch_maker(self, made_within_s: float) -> None:
        """End the process if it has no object by then: its maker is gone, and callers wait."""
        deadline = time.monotonic() + made_within_s
        while self._hosted is None or not self._hosted.is_made():
            if time.monotonic() >= deadline:
                print(f"remotely: {self._name} was not made within {made_within_s:g} s", flush=True)
                os._exit(1)
            time.sleep(LOOK_EVERY_S)

    @in_group(CONTROL)
    def cancel(self, route: bytes, call_id: int) -> bool:
        return self._hosted is not None and self._hosted.cancel(route, call_id)

    @in_group(CONTROL)
    def state(self) -> dict[str, Any] | None:
        """Return what it is and does, for `remotely.status()`; None before it has begun."""
        if self._hosted is None or self._birth is None:
            return None
        process = psutil.Process()
        return {
            **msgspec.structs.asdict(self._birth),
            **self._hosted.state(),
            "is_leaving": self._is_leaving,
            "pid": process.pid,
            "rss": process.memory_info().rss,
            "cpu_percent": process.cpu_percent(),
            "since": process.create_time(),
            "gpu_ids": ray.get_gpu_ids(),
            "node": ray.get_runtime_context().get_node_id(),
        }


def _watch_memory(limit: int) -> None:
    """End the process when it uses more."""
    process = psutil.Process()
    while (used := process.memory_info().rss) <= limit:
        time.sleep(LOOK_EVERY_S)
    print(f"remotely: the actor used {used:,} bytes, and may use {limit:,}", flush=True)
    os._exit(1)


def session_folder() -> Path:
    """Return Ray's own folder on this machine, for files that last as long as the cluster."""
    return Path(ray._private.worker.global_worker.node.get_session_dir_path())
