"""The order of calls: those of a thread to an actor begin in the order in which they are made."""

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import remotely

ROUNDS = 5


def hidden(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator under which a coroutine function looks like a plain one."""

    @functools.wraps(method)
    def call(*args: Any) -> Any:
        return method(*args)

    return call


class Plain:
    """Notes the items in the order in which its methods begin, or are read and written."""

    def __init__(self) -> None:
        object.__setattr__(self, "begun", [])  # the object notes what is written

    def plain(self, item: int) -> None:
        self.begun.append(item)

    @remotely.batched(max_size=64, wait_ms=1000)
    def batched(self, items: Any, **mode: Any) -> Any:
        self.begun.extend(items)
        return [None] * len(items)

    @remotely.batched(max_size=64, wait_ms=1000)
    def other_batched(self, items: Any) -> Any:
        self.begun.extend(items)
        return [None] * len(items)

    def generator(self, item: int) -> Iterator[int]:
        self.begun.append(item)
        yield from (1, 2)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("read_"):
            raise AttributeError(name)
        self.begun.append(int(name.removeprefix("read_")))

    def __setattr__(self, name: str, value: Any) -> None:
        self.begun.append(value)

    def all(self) -> list[int]:
        return list(self.begun)


class Async(Plain):
    async def awaited(self, item: int) -> None:
        self.begun.append(item)
        await asyncio.sleep(0.001)

    @hidden
    async def hidden(self, item: int) -> None:
        self.begun.append(item)
        await asyncio.sleep(0.001)

    @remotely.batched(max_size=64, wait_ms=1000)
    async def async_batched(self, items: Any) -> Any:
        self.begun.extend(items)
        await asyncio.sleep(0.001)
        return [None] * len(items)

    async def async_generator(self, item: int) -> AsyncIterator[int]:
        self.begun.append(item)
        yield 1


RemotePlain = remotely.remote_class(Plain)
RemoteAsync = remotely.remote_class(Async)


def submitted(method: str) -> Callable[[Any, int], Any]:
    return lambda actor, item: getattr(actor, method).submit(item)


def first_item(actor: Any, item: int) -> None:
    assert next(iter(actor.generator(item))) == 1


async def first_async_item(actor: Any, item: int) -> None:
    assert await anext(aiter(actor.async_generator(item))) == 1


KINDS: dict[str, Callable[[Any, int], Any]] = {
    "plain": submitted("plain"),
    "batched": submitted("batched"),
    "batched with a keyword": lambda actor, item: actor.batched.submit(item, mode=1),
    "other batched": submitted("other_batched"),
    "item of a generator": first_item,
    "attribute read": lambda actor, item: getattr(actor, f"read_{item}"),
    "attribute written": lambda actor, item: setattr(actor, "written", item),
}
ASYNC_KINDS: dict[str, Callable[[Any, int], Any]] = {
    **KINDS,
    "awaited": submitted("awaited"),
    "a coroutine of a plain method": submitted("hidden"),
    "async batched": submitted("async_batched"),
    "item of an async generator": lambda actor, item: asyncio.run(first_async_item(actor, item)),
}


@pytest.mark.parametrize(
    ("cls", "kinds"), [(RemotePlain, KINDS), (RemoteAsync, ASYNC_KINDS)], ids=["plain", "async"]
)
def test_calls_of_any_two_kinds_begin_in_the_order_in_which_they_are_made(
    any_cluster: None, cls: Any, kinds: dict[str, Callable[[Any, int], Any]]
) -> None:
    actor = cls()
    wrong = []
    items = itertools.count()
    for first, second in itertools.product(kinds, repeat=2):
        before = len(actor.all())
        made, futures = [], []
        for _ in range(ROUNDS):
            for kind in (first, second):
                made.append(next(items))
                futures.append(kinds[kind](actor, made[-1]))
        actor.plain(-1)  # after the batches
        for future in filter(None, futures):
            future.result()
        if (begun := actor.all()[before:]) != [*made, -1]:
            wrong.append((first, second, begun))
    assert not wrong
