"""The object of an actor, and what each message does to it.

`answer` and its kin take a message and return its one reply.  They know nothing of sockets, nor in
what order and on which thread they are called: that is decided in dispatch.py.

Beside the servant are what it replies with (`RoutedReply`), the generators that it keeps for its
callers (`Streams`), and how a client that did not make the actor gets its class (`Introduction`).

A generator is closed when its consumer closes it, when it ends, and when its consumer is gone.
Nobody tells an actor that a client was killed, but a message to that client cannot be delivered.
So a silent consumer is sent an empty message now and then, at growing intervals: it may not read
for hours, and must not find thousands of them.
"""

import asyncio
import contextlib
import gc
import inspect
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NamedTuple, Protocol

from remotely.actor.preparation import Preparation
from remotely.api.current_actor import heading
from remotely.errors import RemotelyError
from remotely.futures.future import CancelledPlaceholder, SelfPlaceholder, StreamToken
from remotely.objects.batching import Arguments, Batching, batched_methods
from remotely.objects.introspection import async_methods, has_async_streams, unknown_name
from remotely.objects.placeholders import RoutinePlaceholder, stays
from remotely.protocol import wire
from remotely.protocol.wire import Kind, Message
from remotely.transport.activity import OneByOne, Several
from remotely.values import codec, raised_error
from remotely.values.arena import Loan
from remotely.values.sources import batch_of, finder, library


class RoutedReply(NamedTuple):
    """A reply, the route of the client that it goes to, and what is lent with it."""

    route: bytes
    frames: list[bytes | memoryview]
    loan: Loan | None = None
    is_small: bool = False  # a result that may share a message with others


def raised(route: bytes, message: Message, error: BaseException) -> RoutedReply:
    """Return the reply that reports an error, with its traceback as text."""
    payload, text = raised_error.pack(error, heading(), _OURS)
    pieces = [payload] if payload else ()
    return RoutedReply(route, wire.encode(Kind.RAISED, message.call_id, "", pieces, [text]))


# The frames at the top of every traceback, which would tell the user nothing.
_OURS = frozenset(
    (
        "remotely.actor.servant",
        "remotely.actor.preparation",
        "remotely.actor.payloads",
        "remotely.pools.executor",
        codec.__name__,
    )
)


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


class Introduction:
    """Arrives as the class."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = codec.encode(self._cls, in_band=True).payload
        return _arrive, (pickled, library.whole()[0].content)


def _arrive(pickled: bytes, whole: bytes) -> Any:
    try:
        return codec.decode(pickled)
    except ModuleNotFoundError:
        if not whole:
            raise
        finder.offer(library.add(batch_of(whole)))
        finder.install(first=False)
        return codec.decode(pickled)


Call = tuple[tuple[bytes, Message], Arguments]  # one of a batch: its route and message


Does = Callable[[bytes, Message], object]  # returns what the caller gets, or the reply itself


class Values(Protocol):
    """How values come and go, which depends on what carries the messages."""

    does: Mapping[Kind, Does]  # messages about that alone

    def decode(self, route: bytes, message: Message) -> Any:
        """Return the value that a message carries."""

    def decline(self, route: bytes, message: Message) -> None:
        """Let go of a value that nobody here wants."""

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        """Return the reply that carries a result.  Raises NotPicklable."""

    def waiting(self, now: float) -> list[bytes]:
        """Return the routes of clients that have left results for a while."""

    def forget(self, route: bytes) -> None:
        """A client is gone."""

    def tidy(self) -> None:
        """Forget clients that have ended, and take back what they held."""


class Servant:
    """Holds the object.  A route names a client."""

    def __init__(self, values: Values, preparation: Preparation, activity: OneByOne) -> None:
        self.object: Any = None
        self.calls = 0
        self.failed = False  # the constructor raised
        self.is_made = False  # or is being made
        self.concurrency = 1
        self.is_async = False
        self.batched: dict[str, Batching] = {}
        self._is_borrowed = False  # the object was there before, and stays
        self._ends_by(SystemExit)
        self.streams = Streams()
        self._activity: OneByOne | Several = activity
        self._names: frozenset[str] = frozenset()  # of the class; others are delegated
        self._async_methods: frozenset[str] = frozenset()
        self._values = values
        self._preparation = preparation
        self._does: dict[Kind, Does] = {
            Kind.PREPARE: preparation.prepare,
            Kind.FILE: preparation.store_file,
            Kind.SOURCES: preparation.learn_sources,
            Kind.INIT: self._init,
            Kind.CALL: self._call,
            Kind.GET: self._get,
            Kind.SET: self._set,
            Kind.END: self._end,
            Kind.NEXT: self._next,
            Kind.CLOSE: self._close_stream,
            **values.does,
        }

    def answer(self, route: bytes, message: Message) -> RoutedReply:
        """Run one message.  Every message gets exactly one reply, or the process dies.

        SystemExit is let through on purpose: it ends this process, and the worker, which sees it
        end, tells the caller in our place.  Any other error is a reply, even a KeyboardInterrupt:
        an actor has no keyboard, so the method itself has raised it.
        """
        activity, kind = self._activity, message.kind  # INIT may change the one
        begun = activity.begin(message.name if kind is Kind.CALL else _SHOWN_AS[kind])
        try:
            if self.is_made and kind in _MAKING:
                raise RemotelyError("this actor has been made already")
            value = self._does[kind](route, message)
            if type(value) is RoutedReply:
                return value
            return self._values.returned(route, message, value)
        except self._ends:
            raise
        except BaseException as error:
            return raised(route, message, error)
        finally:
            activity.end(begun)
            self.calls += kind is Kind.CALL

    def cancelled(self, route: bytes, message: Message, is_decoded: bool = False) -> RoutedReply:
        """Return the reply to a call that its caller has taken back."""
        if not is_decoded:
            self._values.decline(route, message)
        return self._values.returned(route, message, CancelledPlaceholder())

    def adopt(self, served: object, concurrency: int) -> None:
        """Serve an object that was there before, in a process that has a keyboard."""
        self.is_made = self._is_borrowed = True
        self._ends_by(SystemExit, KeyboardInterrupt)
        self._take(served, concurrency)

    def make_again(self) -> None:
        """Make the object as in the previous life.  If that fails, print the traceback and exit."""
        for frames in self._preparation.kept_messages():
            reply = self.answer(b"", wire.decode(frames, "client"))
            if self.failed:  # nobody waits for this reply
                told = wire.decode(reply.frames, "actor").buffers
                print(bytes(told[0]).decode(errors="replace"), file=sys.stderr)
                sys.exit(1)

    def is_coroutine(self, message: Message) -> bool:
        """Tell whether a message is for `answer_async`."""
        if message.kind is Kind.CALL:
            name = message.name
            return name in self._async_methods or (
                name not in self._names
                and inspect.iscoroutinefunction(getattr(self.object, name, None))
            )
        return message.kind in (Kind.NEXT, Kind.CLOSE) and self.streams.is_async(message.name)

    async def answer_async(self, route: bytes, message: Message) -> RoutedReply:
        """Run one message that waits for others."""
        kind = message.kind
        begun = self._activity.begin(message.name if kind is Kind.CALL else _SHOWN_AS[kind])
        try:
            if message.kind is Kind.CALL:
                self.calls += 1
                args, kwargs = self.arguments(route, message)
                value = await getattr(self.object, message.name)(*args, **kwargs)
                return self._values.returned(route, message, self._kept(route, value))
            if message.kind is Kind.CLOSE:
                await self.streams.close_async(message.name)
                return self._values.returned(route, message, None)
            item = await self.streams.next_async(route, message.name)
            return self._values.returned(route, message, item)
        except StopAsyncIteration:
            return raised(route, message, StopIteration())
        except self._async_ends:
            raise
        except BaseException as error:
            return raised(route, message, error)
        finally:
            self._activity.end(begun)

    def answer_batch(self, batching: Batching, calls: Sequence[Call]) -> list[RoutedReply]:
        """Run several calls of a batched method as one."""
        begun = self._activity.begin(batching.function.__name__, len(calls))
        try:
            args, kwargs = batching.together([arguments for _, arguments in calls])
            return self._each(batching, calls, batching.function(self.object, *args, **kwargs))
        except self._ends:
            raise
        except BaseException as error:
            return self._all_raised(calls, error)
        finally:
            self._activity.end(begun)

    async def answer_batch_async(
        self, batching: Batching, calls: Sequence[Call]
    ) -> list[RoutedReply]:
        begun = self._activity.begin(batching.function.__name__, len(calls))
        try:
            args, kwargs = batching.together([arguments for _, arguments in calls])
            value = await batching.function(self.object, *args, **kwargs)
            return self._each(batching, calls, value)
        except self._async_ends:
            raise
        except BaseException as error:
            return self._all_raised(calls, error)
        finally:
            self._activity.end(begun)

    def arguments(self, route: bytes, message: Message) -> Arguments:
        args, kwargs = self._values.decode(route, message)
        return args, kwargs

    def close(self) -> None:
        """Call the class's own `close`, if it has one."""
        if callable(close := getattr(self.object, "close", None)):
            closing = close()
            if inspect.iscoroutine(closing):
                asyncio.run(closing)

    def close_unasked(self) -> None:
        """The same where no client has asked for it, but whoever is above us."""
        if not self._is_borrowed:
            self.close()

    def let_go(self) -> None:
        """Drop the object, so that its `__del__` runs and its files are closed."""
        self.streams.close_all()
        self.object = None
        self._preparation.let_go()
        gc.collect()  # it may be part of a cycle

    def tidy(self) -> None:
        """Forget clients that have ended; called every few seconds."""
        self._values.tidy()

    def silent(self, now: float) -> list[bytes]:
        """Return the routes of clients that have left streams or results for a while."""
        return [*self.streams.silent(now), *self._values.waiting(now)]

    def forget(self, route: bytes) -> None:
        """A client is gone, and will not fetch what was kept for it."""
        self._values.forget(route)

    def _ends_by(self, *errors: type[BaseException]) -> None:
        """These errors of a method end the actor, and are no replies."""
        self._ends: tuple[type[BaseException], ...] = errors
        # The latter is how an event loop ends a coroutine.
        self._async_ends: tuple[type[BaseException], ...] = (*errors, GeneratorExit)

    def leave_cancelled_unanswered(self) -> None:
        """The event loop ends: the callers of what it cancels hear that the actor has ended."""
        self._async_ends = (*self._async_ends, asyncio.CancelledError)

    # --- what a message does ----------------------------------------------------------------------

    def _init(self, route: bytes, message: Message) -> None:
        self.is_made = True
        self._preparation.lay_out_files()
        try:
            self._take(*self._preparation.construct(route, message))
        except BaseException:
            self.failed = True
            raise

    def _take(self, made: object, concurrency: int) -> None:
        """This is the object."""
        self.object, self.concurrency = made, concurrency
        cls = type(made)
        self._names = frozenset(dir(cls))
        self._async_methods = async_methods(cls)
        self.is_async = bool(self._async_methods) or has_async_streams(cls)
        self.batched = batched_methods(cls)
        if self.is_async or concurrency > 1:
            self._activity = Several(self._activity.page)

    def _call(self, route: bytes, message: Message) -> object:
        args, kwargs = self._values.decode(route, message)
        value = self._attribute(message.name)(*args, **kwargs)
        if message.name in _MAKE_ITERATORS and value is not self.object:
            value = (item for item in value)  # one by one, as the caller asks for them
        return self._kept(route, value)

    def _get(self, route: bytes, message: Message) -> object:
        if message.name == "__class__":  # asked by `get_actor` alone
            return Introduction(type(self.object))
        value = self._attribute(message.name)
        return RoutinePlaceholder(value) if stays(value) else value

    def _set(self, route: bytes, message: Message) -> None:
        setattr(self.object, message.name, self._values.decode(route, message))

    def _end(self, route: bytes, message: Message) -> None:
        self.close()

    def _attribute(self, name: str) -> Any:
        try:
            return getattr(self.object, name)
        except AttributeError:
            if name in dir(self.object):
                raise  # a property of the user's failed
            raise AttributeError(unknown_name(type(self.object), name, dir(self.object))) from None

    def _kept(self, route: bytes, value: Any) -> Any:
        """Return a result, or what travels in its place."""
        if value is self.object:
            return SelfPlaceholder()
        if not isinstance(value, _STAY_HERE):
            return value
        if isinstance(value, CoroutineType):  # of a class that has no async methods itself
            return self._kept(route, asyncio.run(value))
        return self.streams.keep(route, value)

    # --- streams ----------------------------------------------------------------------------------

    def _next(self, route: bytes, message: Message) -> object:
        return self.streams.next(route, message.name)

    def _close_stream(self, route: bytes, message: Message) -> None:
        self.streams.close(message.name)

    # --- replies of batches -----------------------------------------------------------------------

    def _each(self, batching: Batching, calls: Sequence[Call], value: Any) -> list[RoutedReply]:
        self.calls += len(calls)
        replies = []
        for answer, ((route, message), _) in zip(
            batching.apart(value, len(calls)), calls, strict=True
        ):
            try:
                replies.append(self._values.returned(route, message, answer))
            except RemotelyError as error:
                replies.append(raised(route, message, error))
        return replies

    def _all_raised(self, calls: Sequence[Call], error: BaseException) -> list[RoutedReply]:
        return [raised(route, message, error) for (route, message), _ in calls]


_STAY_HERE = (GeneratorType, AsyncGeneratorType, CoroutineType)
_MAKE_ITERATORS = frozenset(("__iter__", "__reversed__"))
# What `remotely status` shows as running where the caller named no method.
_SHOWN_AS = {
    Kind.PREPARE: "(its code arrives)",
    Kind.FILE: "(files arrive)",
    Kind.SOURCES: "(its code arrives)",
    Kind.INIT: "__init__",
    Kind.GET: "(an attribute)",
    Kind.SET: "(an attribute)",
    Kind.END: "close",
    Kind.NEXT: "(an item of a stream)",
    Kind.CLOSE: "(an item of a stream)",
    Kind.OPEN: "(memory is opened)",
    Kind.OPENED: "(memory is opened)",
    Kind.STORE: "(memory is opened)",
    Kind.WHOLE: "(a result is sent)",
}
_MAKING = (Kind.PREPARE, Kind.FILE, Kind.INIT)
