"""The generators that an actor keeps for its callers, who iterate over them remotely (stream.py).

A generator is closed when its consumer closes it, when it ends, and when its consumer is gone.
Nobody tells an actor that a client was killed, but a message to that client cannot be delivered.
So a silent consumer is sent an empty message now and then, at growing intervals: it may not read
for hours, and must not find thousands of them.
"""

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from types import AsyncGeneratorType
from typing import Any

from remotely.futures.stream import StreamToken

SILENT_S = 2.0  # after which a consumer is first checked


@dataclass
class _Kept:
    items: Any
    route: bytes  # of the consumer
    asked: float  # when it last asked for an item
    ask_after: float  # when to check it next
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # of an async one: an item at a time


class Streams:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._names = itertools.count(1)

    def keep(self, route: bytes, items: Any) -> StreamToken:
        """Keep a generator, plain or async; return what travels in its place."""
        name, now = f"{next(self._names)}", time.monotonic()
        self._kept[name] = _Kept(items, route, now, now + SILENT_S)
        return StreamToken(name)

    def is_async(self, name: str) -> bool:
        kept = self._kept.get(name)
        return kept is not None and isinstance(kept.items, AsyncGeneratorType)

    def next(self, route: bytes, name: str) -> Any:
        """Return the next item.  Raises StopIteration, or what the generator raises."""
        kept = self._asked(route, name)
        if kept is None:  # it ended while another request was on its way
            raise StopIteration
        try:
            return next(kept.items)
        except BaseException:
            self._kept.pop(name, None)
            raise

    async def next_async(self, route: bytes, name: str) -> Any:
        """Return the next item.  Raises StopAsyncIteration, or what the generator raises."""
        kept = self._asked(route, name)
        if kept is None:
            raise StopAsyncIteration
        async with kept.turn:
            try:
                return await anext(kept.items)
            except BaseException:
                self._kept.pop(name, None)
                await kept.items.aclose()
                raise

    def close(self, name: str) -> None:
        if (kept := self._kept.pop(name, None)) is not None:
            kept.items.close()

    async def close_async(self, name: str) -> None:
        if (kept := self._kept.pop(name, None)) is not None:
            async with kept.turn:
                await kept.items.aclose()

    def close_all(self) -> None:
        """Close the plain ones; the event loop has closed the others at its end."""
        for name in list(self._kept):
            if self.is_async(name):
                del self._kept[name]
            else:
                with contextlib.suppress(Exception):  # nobody is there to hear of it
                    self.close(name)

    def silent(self, now: float) -> set[bytes]:
        """Return the consumers to check now.  Any thread may call this."""
        routes = set()
        for kept in list(self._kept.values()):
            if kept.ask_after <= now:
                kept.ask_after = now + max(SILENT_S, now - kept.asked)
                routes.add(kept.route)
        return routes

    def of(self, route: bytes) -> list[str]:
        """Return the names of a consumer's streams."""
        return [name for name, kept in list(self._kept.items()) if kept.route == route]

    def _asked(self, route: bytes, name: str) -> _Kept | None:
        kept = self._kept.get(name)
        if kept is not None:
            kept.route, kept.asked = route, time.monotonic()
            kept.ask_after = kept.asked + SILENT_S
        return kept
