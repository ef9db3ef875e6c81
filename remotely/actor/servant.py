"""The object of an actor, and the handler of each kind of message.

`answer` and its variants take a message and return its one reply.  They know nothing of sockets;
dispatch.py decides in what order and on which thread they are called.

This file also has their replies (`RoutedReply`), the generators that the actor keeps for its
callers (`Streams`), and the reply with which a client that did not create the actor gets its class
(`PickledClass`).

A generator is closed when its consumer closes it, when it ends, and when its consumer is gone.
An actor gets no notice that a client was killed, but a message to that client cannot be delivered.
So a silent consumer is sent empty messages at growing intervals: a consumer that does not read for
hours must not find thousands of them.
"""

import asyncio
import contextlib
import gc
import inspect
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MappingProxyType
from typing import Any, NamedTuple, Protocol

from remotely.actor.preparation import Preparation
from remotely.api import connection
from remotely.api.current_actor import current_actor, heading
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
    """A reply, the route to its client, and the loan of memory that it carries."""

    route: bytes
    frames: list[bytes | memoryview]
    loan: Loan | None = None
    is_small: bool = False  # a result that may be sent in one message with others


class Unfinished(NamedTuple):
    """What a plain method of a class with async methods has returned, to be awaited on its loop.

    `begun` is the number of the call in the activity, which ends when the coroutine does.
    """

    coroutine: "CoroutineType[Any, Any, Any]"
    begun: int = 0


def raised(route: bytes, message: Message, error: BaseException) -> RoutedReply:
    """Return the reply that reports an error, with its traceback as text."""
    return raised_for_all([(route, message)], error)[0]


def raised_for_all(
    calls: Iterable[tuple[bytes, Message]], error: BaseException
) -> list[RoutedReply]:
    """Return such replies to several calls that have run as one."""
    payload, text = raised_error.pack(error, heading(), _OURS)
    pieces = [payload] if payload else ()
    return [
        RoutedReply(route, wire.encode(Kind.RAISED, message.call_id, "", pieces, [text]))
        for route, message in calls
    ]


# Modules whose frames are removed from the top of tracebacks.
_OURS = frozenset(
    (
        "remotely.actor.servant",
        "remotely.actor.preparation",
        "remotely.actor.payloads",
        "remotely.pools.executor",
        codec.__name__,
    )
)


CONSUMER_SILENT_S = 2.0  # after which a consumer is first checked


@dataclass
class _Kept:
    items: Any
    route: bytes  # of the consumer
    asked: float  # when it last requested an item
    check_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # for an async generator


class Streams:
    """The generators that calls have returned; `note` is told how many there are."""

    def __init__(self, note: Callable[[int], object]) -> None:
        self._note = note
        self._kept: dict[str, _Kept] = {}
        self._numbers = itertools.count(1)

    def keep(self, route: bytes, method: str, items: Any) -> StreamToken:
        """Keep a generator, plain or async; return the token that is sent in its place.

        Its name begins with that of its method, since messages about its items show it.
        """
        name, now = f"{method} (stream {next(self._numbers)})", time.monotonic()
        self._kept[name] = _Kept(items, route, now, now + CONSUMER_SILENT_S)
        self._note(len(self._kept))
        return StreamToken(name)

    def is_async(self, name: str) -> bool:
        kept = self._kept.get(name)
        return kept is not None and isinstance(kept.items, AsyncGeneratorType)

    def next(self, route: bytes, name: str) -> Any:
        """Return the next item.  Raises StopIteration, or what the generator raises."""
        kept = self._touch(route, name)
        if kept is None:  # it ended while this request was on its way
            raise StopIteration
        try:
            return next(kept.items)
        except BaseException:  # whatever a generator raises, it has ended
            self._forget(name)
            raise

    async def next_async(self, route: bytes, name: str) -> Any:
        """Return the next item.  Raises StopAsyncIteration, or what the generator raises."""
        kept = self._touch(route, name)
        if kept is None:
            raise StopAsyncIteration
        async with kept.lock:
            try:
                return await anext(kept.items)
            except BaseException:  # it has ended, or its task is cancelled
                self._forget(name)
                await kept.items.aclose()
                raise

    def close(self, name: str) -> None:
        if (kept := self._forget(name)) is not None:
            kept.items.close()

    async def close_async(self, name: str) -> None:
        if (kept := self._forget(name)) is not None:
            async with kept.lock:
                await kept.items.aclose()

    def close_all(self) -> None:
        """Close the plain generators; the event loop has closed the async ones."""
        for name in list(self._kept):
            if self.is_async(name):
                self._forget(name)
            else:
                with contextlib.suppress(Exception):  # no caller is left to report it to
                    self.close(name)

    def _forget(self, name: str) -> _Kept | None:
        kept = self._kept.pop(name, None)
        self._note(len(self._kept))
        return kept

    def silent(self, now: float) -> set[bytes]:
        """Return the consumers to check now.  Any thread may call this."""
        routes = set()
        for kept in list(self._kept.values()):
            if kept.check_at <= now:
                kept.check_at = now + max(CONSUMER_SILENT_S, now - kept.asked)
                routes.add(kept.route)
        return routes

    def names_of(self, route: bytes) -> list[str]:
        """Return the names of the streams of a consumer."""
        return [name for name, kept in list(self._kept.items()) if kept.route == route]

    def _touch(self, route: bytes, name: str) -> _Kept | None:
        kept = self._kept.get(name)
        if kept is not None:
            kept.route, kept.asked = route, time.monotonic()
            kept.check_at = kept.asked + CONSUMER_SILENT_S
        return kept


class PickledClass:
    """A class to be pickled together with its source; unpickles as the class itself."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __reduce__(self) -> tuple[Any, ...]:
        pickled = codec.encode(self._cls, in_band=True).payload
        return _load_class, (pickled, library.whole()[0].content)


def _load_class(pickled: bytes, whole: bytes) -> Any:
    try:
        return codec.decode(pickled)
    except ModuleNotFoundError:
        if not whole:
            raise
        finder.offer(library.add(batch_of(whole)))
        finder.install(first=False)
        return codec.decode(pickled)


Call = tuple[tuple[bytes, Message], Arguments]  # one of a batch: its route and message


Handler = Callable[[bytes, Message], object]  # returns the result, or the reply itself


class Values(Protocol):
    """Decoding and encoding of values, which depends on the transport of the messages."""

    handlers: Mapping[Kind, Handler]  # of messages that concern only the transport of values

    def decode(self, route: bytes, message: Message) -> Any:
        """Return the value that a message carries."""

    def is_elsewhere(self, route: bytes, message: Message) -> bool:
        """Return whether `decode` would wait for another process, unless `fetch` did."""

    def fetch(self, route: bytes, message: Message) -> None:
        """Fetch the value of a message, for `decode`.  On any thread; never raises."""

    def decline(self, route: bytes, message: Message) -> None:
        """Release the value of a message that will not be decoded."""

    def returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        """Return the reply that carries a result.  Raises NotPicklable."""

    def waiting(self, now: float) -> list[bytes]:
        """Return the routes of clients that have not fetched a result for a while."""

    def forget(self, route: bytes) -> None:
        """Release everything kept for a client that is gone."""

    def tidy(self) -> None:
        """Forget clients that have ended, and reclaim what they held."""


class Servant:
    """Holds the object and runs messages on it.  A route identifies a client."""

    def __init__(
        self,
        values: Values,
        preparation: Preparation,
        activity: OneByOne,
        others: Mapping[Kind, Handler] = MappingProxyType({}),
    ) -> None:
        self.object: Any = None
        self.calls = 0
        self.failed = False  # the constructor raised
        self.is_made = False  # or is being made
        self.concurrency = 1
        self.is_async = False
        self.batched: dict[str, Batching] = {}
        self._is_borrowed = False  # the object existed before the actor and outlives it
        self._ends_by(SystemExit)
        self.streams = Streams(activity.note_streams)
        self._activity: OneByOne | Several = activity
        self._names: frozenset[str] = frozenset()  # of the class; others are delegated
        self._async_methods: frozenset[str] = frozenset()
        self._values = values
        self.is_elsewhere, self.fetch = values.is_elsewhere, values.fetch
        self._preparation = preparation
        self._handlers: dict[Kind, Handler] = {
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
            **values.handlers,
            **others,
        }

    def answer(self, route: bytes, message: Message) -> RoutedReply | Unfinished:
        """Run one message.  Every message gets exactly one reply, or the process dies.

        The reply to an Unfinished one is that of `answer_async`.

        SystemExit propagates on purpose: it ends this process, and the worker, which sees the
        process end, informs the caller.  Any other exception becomes a reply, even a
        KeyboardInterrupt: an actor has no keyboard, so the method itself raised it.
        """
        activity, kind = self._activity, message.kind  # INIT may replace the activity
        begun = activity.begin(_shown_as(message))
        errors, is_over = 0, True
        try:
            if self.is_made and kind in _SETUP_KINDS:
                raise RemotelyError("this actor has already been created")
            value = self._handlers[kind](route, message)
            if type(value) is RoutedReply:
                return value
            if type(value) is Unfinished:
                is_over = False
                return Unfinished(value.coroutine, begun)
            return self._values.returned(route, message, value)
        except self.ends:
            raise
        except BaseException as error:
            errors = _is_counted(message, error)
            return raised(route, message, error)
        finally:
            if is_over:
                activity.end(begun, errors)
            self.calls += kind is Kind.CALL

    def answer_error(
        self, calls: Sequence[tuple[bytes, Message]], error: BaseException
    ) -> list[RoutedReply]:
        """Return the replies to messages that have failed beside the object's own code."""
        for _, message in calls:
            begun = self._activity.begin(_shown_as(message))
            self._activity.end(begun, _is_counted(message, error))
            self.calls += message.kind is Kind.CALL
        return raised_for_all(calls, error)

    def cancelled(self, route: bytes, message: Message, is_decoded: bool = False) -> RoutedReply:
        """Return the reply to a call that its caller has cancelled."""
        if not is_decoded:
            self._values.decline(route, message)
        return self._values.returned(route, message, CancelledPlaceholder())

    def adopt(self, served: object, concurrency: int) -> None:
        """Serve an existing object, in a process that has a keyboard."""
        self.is_made = self._is_borrowed = True
        self._ends_by(SystemExit, KeyboardInterrupt)
        self._set_object(served, concurrency)

    def recreate(self) -> None:
        """Create the object as in the previous life.  On an error, print the traceback and exit."""
        for frames in self._preparation.kept_messages():
            reply = self.answer(b"", wire.decode(frames, "client"))
            if self.failed and isinstance(reply, RoutedReply):  # no caller waits for this reply
                trace = wire.decode(reply.frames, "actor").buffers[0]
                print(bytes(trace).decode(errors="replace"), file=sys.stderr)
                sys.exit(1)

    def is_coroutine(self, message: Message) -> bool:
        """Return whether a message is for `answer_async`.  This runs none of the user's code."""
        if message.kind is Kind.CALL:
            return message.name in self._async_methods
        return message.kind in (Kind.NEXT, Kind.CLOSE) and self.streams.is_async(message.name)

    async def answer_async(
        self, route: bytes, message: Message, unfinished: Unfinished | None = None
    ) -> RoutedReply:
        """Run a message as a coroutine: a call, an item or the end of an async stream, or `close`.

        What is not caught here becomes the reply too, by way of the task.
        """
        kind = message.kind
        begun = unfinished.begun if unfinished else self._activity.begin(_shown_as(message))
        errors = 0
        try:
            if kind is Kind.CALL:
                if unfinished is not None:
                    value = await unfinished.coroutine
                else:
                    self.calls += 1
                    args, kwargs = self.arguments(route, message)
                    contexts = [message.context] if message.context else ()
                    with self._tracing(message.name, contexts):
                        value = await getattr(self.object, message.name)(*args, **kwargs)
                outgoing = self._outgoing(route, message.name, value)
                while type(outgoing) is Unfinished:
                    outgoing = self._outgoing(route, message.name, await outgoing.coroutine)
                return self._values.returned(route, message, outgoing)
            if kind is Kind.END:
                await self.close_async()
                return self._values.returned(route, message, None)
            if kind is Kind.CLOSE:
                await self.streams.close_async(message.name)
                return self._values.returned(route, message, None)
            item = await self.streams.next_async(route, message.name)
            return self._values.returned(route, message, self._face(item))
        except StopAsyncIteration:
            return raised(route, message, StopIteration())
        except self._async_ends:
            raise
        except BaseException as error:
            errors = _is_counted(message, error)
            return raised(route, message, error)
        finally:
            self._activity.end(begun, errors)

    def answer_batch(self, batching: Batching, calls: Sequence[Call]) -> list[RoutedReply]:
        """Run several calls of a batched method as one."""
        begun, errors = self._activity.begin(batching.function.__name__, len(calls)), 0
        try:
            args, kwargs = batching.merge([arguments for _, arguments in calls])
            with self._tracing_batch(batching, calls):
                value = batching.function(self.object, *args, **kwargs)
            replies, errors = self._replies(batching, calls, value)
            return replies
        except self.ends:
            raise
        except BaseException as error:
            errors = len(calls)
            return raised_for_all([call for call, _ in calls], error)
        finally:
            self._activity.end(begun, errors)
            self.calls += len(calls)

    async def answer_batch_async(
        self, batching: Batching, calls: Sequence[Call]
    ) -> list[RoutedReply]:
        begun, errors = self._activity.begin(batching.function.__name__, len(calls)), 0
        try:
            args, kwargs = batching.merge([arguments for _, arguments in calls])
            with self._tracing_batch(batching, calls):
                value = await batching.function(self.object, *args, **kwargs)
            replies, errors = self._replies(batching, calls, value)
            return replies
        except self._async_ends:
            raise
        except BaseException as error:
            errors = len(calls)
            return raised_for_all([call for call, _ in calls], error)
        finally:
            self._activity.end(begun, errors)
            self.calls += len(calls)

    def arguments(self, route: bytes, message: Message) -> Arguments:
        args, kwargs = self._values.decode(route, message)
        return args, kwargs

    def close(self) -> None:
        """Call the class's own `close`, if it has one."""
        if callable(close := getattr(self.object, "close", None)):
            closing = close()
            if inspect.iscoroutine(closing):
                asyncio.run(closing)

    async def close_async(self) -> None:
        """Do as `close`, on the event loop of a class with async methods."""
        if callable(close := getattr(self.object, "close", None)):
            closing = close()
            if inspect.iscoroutine(closing):
                await closing

    def close_on_stop(self) -> None:
        """Close the object when the worker, or Ray, stops the actor; not a borrowed object."""
        if not self._is_borrowed:
            self.close()

    async def close_on_stop_async(self) -> None:
        """Do as `close_on_stop`, on the event loop of a class with async methods."""
        if not self._is_borrowed:
            await self.close_async()

    def release(self) -> None:
        """Drop the object, so that its `__del__` runs and its files are closed."""
        self.streams.close_all()
        self.object = None
        self._preparation.release()
        gc.collect()  # it may be part of a cycle

    def tidy(self) -> None:
        self._values.tidy()

    def silent(self, now: float) -> list[bytes]:
        """Return the routes of clients that have not fetched an item or a result for a while."""
        return [*self.streams.silent(now), *self._values.waiting(now)]

    def forget(self, route: bytes) -> None:
        self._values.forget(route)

    def _ends_by(self, *errors: type[BaseException]) -> None:
        """Let these exceptions end the actor; they are not sent to the caller."""
        self.ends: tuple[type[BaseException], ...] = errors
        # A coroutine that is closed, rather than run by its task, gets a GeneratorExit.
        self._async_ends: tuple[type[BaseException], ...] = (*errors, GeneratorExit)

    def suppress_cancelled_replies(self) -> None:
        """The event loop is ending: do not reply to the calls that it cancels.

        Their callers get the error that the actor has ended.
        """
        self._async_ends = (*self._async_ends, asyncio.CancelledError)

    # --- handlers of messages ---------------------------------------------------------------------

    def _init(self, route: bytes, message: Message) -> None:
        self.is_made = True
        self._preparation.lay_out_files()
        self.failed = True  # unless it returns
        self._set_object(*self._preparation.construct(route, message))
        self.failed = False

    def _set_object(self, made: object, concurrency: int) -> None:
        self.object, self.concurrency = made, concurrency
        cls = type(made)
        self._names = frozenset(dir(cls))
        self._async_methods = async_methods(cls)
        self.is_async = bool(self._async_methods) or has_async_streams(cls)
        self.batched = batched_methods(cls)
        if self.is_async or concurrency > 1:
            self._activity = Several(self._activity.page)

    def _call(self, route: bytes, message: Message) -> object:
        if message.context:
            with self._tracing(message.name, [message.context]):
                return self._call(route, message._replace(context=""))
        args, kwargs = self._values.decode(route, message)
        value = self._attribute(message.name)(*args, **kwargs)
        if message.name in _ITERATOR_METHODS and value is not self.object:
            value = (item for item in value)  # a stream: one item for each request
        return self._outgoing(route, message.name, value)

    def _tracing(
        self, method: str, contexts: Sequence[str]
    ) -> contextlib.AbstractContextManager[None]:
        """Return the spans of calls whose callers trace them."""
        if not contexts:
            return _NONE
        from remotely.calling import tracing  # noqa: PLC0415 - rarely needed

        actor = current_actor()
        names = {"remotely.actor": actor.name, "remotely.class": actor.class_name} if actor else {}
        return tracing.serving(method, contexts, names, connection.made)

    def _tracing_batch(
        self, batching: Batching, calls: Sequence[Call]
    ) -> contextlib.AbstractContextManager[None]:
        contexts = [message.context for (_, message), _ in calls if message.context]
        return self._tracing(batching.function.__name__, contexts)

    def _get(self, route: bytes, message: Message) -> object:
        if message.name == "__class__":  # sent by `get_actor` alone
            return PickledClass(type(self.object))
        value = self._attribute(message.name)
        return RoutinePlaceholder(value) if stays(value) else self._face(value)

    def _set(self, route: bytes, message: Message) -> None:
        setattr(self.object, message.name, self._values.decode(route, message))

    def _end(self, route: bytes, message: Message) -> None:
        self.close()

    def _attribute(self, name: str) -> Any:
        try:
            return getattr(self.object, name)
        except AttributeError:
            if name in dir(self.object):
                raise  # the user's property raised it
            raise AttributeError(unknown_name(type(self.object), name, dir(self.object))) from None

    def _outgoing(self, route: bytes, method: str, value: Any) -> Any:
        """Return a result, or what is sent in its place."""
        if not isinstance(value, _KEPT_HERE):
            return self._face(value)
        if isinstance(value, CoroutineType):
            if self.is_async:
                return Unfinished(value)
            return self._outgoing(route, method, asyncio.run(value))
        return self.streams.keep(route, method, value)

    def _face(self, value: Any) -> Any:
        """Return a value that is sent, or what stands for the object itself."""
        return SelfPlaceholder() if value is self.object else value

    # --- streams ----------------------------------------------------------------------------------

    def _next(self, route: bytes, message: Message) -> object:
        return self._face(self.streams.next(route, message.name))

    def _close_stream(self, route: bytes, message: Message) -> None:
        self.streams.close(message.name)

    # --- replies of batches -----------------------------------------------------------------------

    def _replies(
        self, batching: Batching, calls: Sequence[Call], value: Any
    ) -> tuple[list[RoutedReply], int]:
        """Return the replies, and how many of them are errors."""
        replies, errors = [], 0
        for answer, ((route, message), _) in zip(
            batching.split(value, len(calls)), calls, strict=True
        ):
            try:
                replies.append(self._values.returned(route, message, self._face(answer)))
            except RemotelyError as error:
                replies.append(raised(route, message, error))
                errors += 1
        return replies, errors


_NONE: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
_KEPT_HERE = (GeneratorType, AsyncGeneratorType, CoroutineType)
_ITERATOR_METHODS = frozenset(("__iter__", "__reversed__"))
# The running method in `remotely status`, for messages that name none.
SHOWN_AS = {
    Kind.PREPARE: "(its code arrives)",
    Kind.FILE: "(files arrive)",
    Kind.SOURCES: "(its code arrives)",
    Kind.INIT: "__init__",
    Kind.GET: "(an attribute)",
    Kind.SET: "(an attribute)",
    Kind.END: "close",
    Kind.NEXT: "(an item of a stream)",
    Kind.CLOSE: "(an item of a stream)",
    Kind.READS: "(a client connects)",
    Kind.WHOLE: "(a result is sent)",
    Kind.DEBUG: "(a debugger)",
}

_SETUP_KINDS = (Kind.PREPARE, Kind.FILE, Kind.INIT)
_COUNTED_KINDS = (Kind.CALL, Kind.NEXT)  # whose errors are those of methods


def _shown_as(message: Message) -> str:
    """Return the name of the running method in `remotely status`."""
    return message.name if message.kind is Kind.CALL else SHOWN_AS[message.kind]


def _is_counted(message: Message, error: BaseException) -> bool:
    """Return whether the status counts an error: not the end of a stream or of an iterator."""
    return message.kind in _COUNTED_KINDS and not isinstance(error, StopIteration)
