"""The words in which the programs are written; the system that they run on gives each its meaning.

    @actor                                   a class whose objects are actors
    await spawn(Kind, count, *arguments)     a list of handles, of actors made side by side
    await call(handle.method, *arguments)    ask, and wait for the answer; without await, a future
    await send(handle.method, *arguments)    tell, and wait for nothing

All methods are `async def`, because no actor of Savina blocks on a message: while one of its
methods waits, it serves others.  `SAVINA_ON` names the module of the system, in the processes of
all actors too.
"""

import importlib
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from tools.bench_savina import ON

_SYSTEM: Any = importlib.import_module(os.environ.get(ON, "tools.bench_savina.ours.on_remotely"))

actor: Callable[[type], Any] = _SYSTEM.actor
spawn: Callable[..., Awaitable[list[Any]]] = _SYSTEM.spawn
call: Callable[..., Awaitable[Any]] = _SYSTEM.call
send: Callable[..., Awaitable[None]] = _SYSTEM.send
running: Callable[[], AbstractAsyncContextManager[None]] = (
    _SYSTEM.running
)  # a context in which all of these work


class Sizes(NamedTuple):
    """The sizes of a program: of a test, of the benchmark, and of Savina, where an actor is small.

    Here most systems give each actor a process of its own, so there are fewer.
    """

    quick: dict[str, int]
    full: dict[str, int]
    savina: dict[str, int]
