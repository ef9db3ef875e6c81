"""The object of an actor, and what each message does to it.

`answer` and its kin take a message and return its one reply.  They know nothing of sockets, and
nothing of the order or the thread in which they are called: that is the actor's part (actor.py).
"""

import asyncio
import gc
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, NamedTuple

from remotely.actor import log_sender
from remotely.actor.introduction import Introduction
from remotely.actor.streams import Streams
from remotely.api import connection
from remotely.api.current_actor import heading, serve
from remotely.arguments import did_you_mean
from remotely.errors import RemotelyError
from remotely.objects.batching import Arguments, Batching, batched_methods
from remotely.objects.construct import construct
from remotely.objects.stand_in import Itself, Routine, function_of, stays
from remotely.protocol import control, wire
from remotely.protocol.wire import Kind, Message
from remotely.reporting import log_records
from remotely.transport.activity import OneByOne, Several
from remotely.transport.keys import KeyPair
from remotely.values import arena, codec, restart_file, shipping, sources
from remotely.values.arena import SHARE_FROM_BYTES, ArenaAddress, Loan
from remotely.values.memory_peer import MemoryPeer, OutgoingValue, unpack


class RoutedReply(NamedTuple):
    """A reply, to whom it goes, and what is lent with it."""

    route: bytes
    frames: list[bytes | memoryview]
    loan: Loan | None = None
    is_small: bool = False  # a result that may travel with others


Call = tuple[tuple[bytes, Message], Arguments]  # one of a batch: from whom, and what


class Servant:
    """Holds the object.  A route names a client's connection."""

    def __init__(
        self, birth: control.Birth, delegate: Callable[[], KeyPair], activity: OneByOne
    ) -> None:
        self.object: Any = None
        self.calls = 0
        self.failed = False  # its constructor raised
        self.is_made = False  # or is being made
        self.concurrency = 1
        self.is_async = False
        self.batched: dict[str, Batching] = {}
        self._activity: OneByOne | Several = activity
        self._birth = birth
        self._delegate = delegate
        self._folder = Path(birth.folder)
        self._prepared: control.Prepare | None = None
        self._names: frozenset[str] = frozenset()  # of the class; others are delegated
        self._async_methods: frozenset[str] = frozenset()
        self._memory_peers: dict[bytes, MemoryPeer] = {}
        self.streams = Streams()

    def answer(self, route: bytes, message: Message) -> RoutedReply:
        """Run one message.  Every one gets exactly one reply, or the process dies.

        SystemExit is let through on purpose: it ends this process, and the worker, which sees it
        end, tells the caller in our place.  Any other error is an answer, a KeyboardInterrupt too:
        an actor has no keyboard, so the method has raised it.
        """
        activity, kind = self._activity, message.kind  # INIT may change the one
        begun = activity.begin(message.name if kind is Kind.CALL else _DOES[kind])
        try:
            if self.is_made and kind in _MAKING:
                raise RemotelyError("this actor has been made already")
            value = _RUN[kind](self, route, message)
            return self._returned(route, message, value)
        except SystemExit:
            raise
        except BaseException as error:
            return raised(route, message, error)
        finally:
            activity.end(begun)
            self.calls += kind is Kind.CALL

    def make_again(self) -> None:
        """Make the object as the life before was made.  If that fails, end with the traceback."""
        for frames in restart_file.read(self._folder, self._birth.request.actor):
            reply = self.answer(b"", wire.decode(frames, "client"))
            if self.failed:  # nobody waits for this reply
                told = wire.decode(reply.frames, "actor").buffers
                print(bytes(told[0]).decode(errors="replace"), file=sys.stderr)
                sys.exit(1)

    def _keep_recipe(self, payload: bytes | memoryview, buffers: Sequence[Any]) -> None:
        """Leave to the next life what made this one, if nobody else may be there to make it."""
        request = self._birth.request
        if request.owner or not request.max_restarts or self._birth.again:
            return
        assert self._prepared is not None
        prepare = wire.encode(Kind.PREPARE, 0, "", [control.write(self._prepared)])
        init = wire.encode(Kind.INIT, 0, "", [payload], buffers)
        restart_file.write(self._folder, request.actor, [prepare, init])

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
        begun = self._activity.begin(message.name if kind is Kind.CALL else _DOES[kind])
        try:
            if message.kind is Kind.CALL:
                self.calls += 1
                args, kwargs = self.arguments(route, message)
                value = await getattr(self.object, message.name)(*args, **kwargs)
                return self._returned(route, message, self._kept(route, value))
            if message.kind is Kind.CLOSE:
                await self.streams.close_async(message.name)
                return self._returned(route, message, None)
            item = await self.streams.next_async(route, message.name)
            return self._returned(route, message, item)
        except StopAsyncIteration:
            return raised(route, message, StopIteration())
        except _EXITS:
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
        except SystemExit:
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
        except _EXITS:
            raise
        except BaseException as error:
            return self._all_raised(calls, error)
        finally:
            self._activity.end(begun)

    def arguments(self, route: bytes, message: Message) -> Arguments:
        args, kwargs = self._decode(route, message)
        return args, kwargs

    def close(self) -> None:
        """Call the class's own `close`, if it has one."""
        if callable(close := getattr(self.object, "close", None)):
            closing = close()
            if inspect.iscoroutine(closing):
                asyncio.run(closing)

    def let_go(self) -> None:
        """Drop the object, so that its `__del__` runs and its files are closed."""
        self.streams.close_all()
        self.object = self._prepared = None
        gc.collect()  # it may be part of a cycle

    def tidy(self) -> None:
        """Called each second: let go of clients that are no more."""
        arena.tidy()
        for route, peer in list(self._memory_peers.items()):
            if not peer.alive():
                self._memory_peers.pop(route, None)

    # --- what a message does ----------------------------------------------------------------------

    def _prepare(self, route: bytes, message: Message) -> list[str]:
        prepare = control.Reader(control.Prepare).read(message.payload)
        assert isinstance(prepare, control.Prepare)
        self._prepared = prepare
        connection.adopt(prepare, self._birth, self._delegate)
        log_records.set_levels(prepare.log_levels)
        sys.argv = prepare.argv or [""]  # as multiprocessing does: modules may read it
        sources.finder.is_elsewhere = prepare.host != self._birth.host
        sources.finder.install(first=True)
        if prepare.sources:
            self._learn(sources.batch_of(prepare.sources))
        if prepare.host == self._birth.host:
            sys.path.extend(entry for entry in prepare.path if entry not in sys.path)
        return shipping.missing(self._folder, prepare.files)

    def _file(self, route: bytes, message: Message) -> None:
        _, (content,) = unpack(message, self._memory_peers.get(route))
        shipping.store(self._folder, message.name, content)

    def _sources(self, route: bytes, message: Message) -> None:
        _, (content,) = unpack(message, self._memory_peers.get(route))
        self._learn(sources.Batch(message.name, bytes(content)))

    def _learn(self, batch: sources.Batch) -> None:
        for name in sources.finder.offer(sources.library.add(batch)):
            print(
                f"remotely: {name} has changed since this actor imported it, and stays here as it "
                "was; make a new actor for the new one",
                file=sys.stderr,
            )

    def _init(self, route: bytes, message: Message) -> None:
        assert self._prepared is not None
        self.is_made = True
        if self._prepared.files:
            root = shipping.lay_out(self._folder, self._prepared.files)
            sys.path.insert(0, str(root))
            connection.set_shipped_root(root)
            sources.finder.shipped_root = root
        try:
            payload, buffers = unpack(message, self._memory_peers.get(route))
            self._keep_recipe(payload, buffers)
            cls, args, kwargs = codec.decode(payload, buffers)
            serve(cls)
            log_sender.drop_the_scripts()
            self.object = construct(cls, args, kwargs)
            cls = type(self.object)
            self._names = frozenset(dir(cls))
            self._async_methods = async_methods(cls)
            self.is_async = bool(self._async_methods) or has_async_streams(cls)
            self.batched = batched_methods(cls)
            self.concurrency = self._prepared.concurrency
            if self.is_async or self.concurrency > 1:
                self._activity = Several(self._activity.page)
        except BaseException:
            self.failed = True
            raise

    def _call(self, route: bytes, message: Message) -> object:
        args, kwargs = self._decode(route, message)
        value = self._attribute(message.name)(*args, **kwargs)
        if message.name in _MAKE_ITERATORS and value is not self.object:
            value = (item for item in value)  # one by one, as the caller asks for them
        return self._kept(route, value)

    def _get(self, route: bytes, message: Message) -> object:
        if message.name == "__class__":  # asked by `get_actor` alone
            return Introduction(type(self.object))
        value = self._attribute(message.name)
        return Routine(value) if stays(value) else value

    def _set(self, route: bytes, message: Message) -> None:
        setattr(self.object, message.name, self._decode(route, message))

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
            return Itself()
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

    # --- large values through memory --------------------------------------------------------------

    def _open_memory(self, route: bytes, message: Message) -> ArenaAddress | None:
        """Become the peer of a client; None if it has to be without."""
        address = control.Reader(ArenaAddress).read(message.payload)
        assert isinstance(address, ArenaAddress)
        ours = arena.ours()
        known = [p for p in list(self._memory_peers.values()) if p.lender.address == address]
        try:
            self._memory_peers[route] = known[0] if known else MemoryPeer(address)
        except OSError:
            return None
        return None if ours is None else ours.address

    def _memory_is_open(self, route: bytes, message: Message) -> None:
        self._memory_peers[route].reads = True

    def _decode(self, route: bytes, message: Message) -> Any:
        return codec.decode(*unpack(message, self._memory_peers.get(route)))

    # --- replies ----------------------------------------------------------------------------------

    def _returned(self, route: bytes, message: Message, value: object) -> RoutedReply:
        what = f"the result of {message.name}" if message.name else "the result"
        encoded = codec.encode(value, what)
        if encoded.nbytes < SHARE_FROM_BYTES:
            frames = wire.encode(Kind.RESULT, message.call_id, "", encoded.pieces, encoded.buffers)
            return RoutedReply(route, frames, is_small=len(frames) == 1)
        outgoing = OutgoingValue(encoded)
        loan = outgoing.lend(self._memory_peers.get(route))
        frames = outgoing.message(Kind.RESULT, message.call_id, "", loan)
        outgoing.close()
        return RoutedReply(route, frames, loan)

    def _each(self, batching: Batching, calls: Sequence[Call], value: Any) -> list[RoutedReply]:
        self.calls += len(calls)
        replies = []
        for answer, ((route, message), _) in zip(
            batching.apart(value, len(calls)), calls, strict=True
        ):
            try:
                replies.append(self._returned(route, message, answer))
            except RemotelyError as error:
                replies.append(raised(route, message, error))
        return replies

    def _all_raised(self, calls: Sequence[Call], error: BaseException) -> list[RoutedReply]:
        return [raised(route, message, error) for (route, message), _ in calls]


_EXITS = (SystemExit, GeneratorExit)  # of a coroutine: the latter is how an event loop ends it
_STAY_HERE = (GeneratorType, AsyncGeneratorType, CoroutineType)
_MAKE_ITERATORS = frozenset(("__iter__", "__reversed__"))
# What the worker is told that runs, where it is no method that the caller named.
_DOES = {
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
}
_MAKING = (Kind.PREPARE, Kind.FILE, Kind.INIT)
_RUN: dict[Kind, Callable[[Servant, bytes, Message], object]] = {
    Kind.PREPARE: Servant._prepare,
    Kind.FILE: Servant._file,
    Kind.SOURCES: Servant._sources,
    Kind.INIT: Servant._init,
    Kind.CALL: Servant._call,
    Kind.GET: Servant._get,
    Kind.SET: Servant._set,
    Kind.END: Servant._end,
    Kind.NEXT: Servant._next,
    Kind.CLOSE: Servant._close_stream,
    Kind.OPEN: Servant._open_memory,
    Kind.OPENED: Servant._memory_is_open,
}


def raised(route: bytes, message: Message, error: BaseException) -> RoutedReply:
    """Return the reply that tells of an error, with its traceback as text."""
    note = sources.missing_here(error)
    if note:
        error.add_note(note)
    trace = traceback.format_exception(type(error), error, _users_part(error))
    text = heading() + "".join(trace)
    try:
        pieces = codec.encode(error, in_band=True).pieces
    except RemotelyError:
        pieces = ()
    told = text.encode(errors="replace")
    return RoutedReply(route, wire.encode(Kind.RAISED, message.call_id, "", pieces, [told]))


def _users_part(error: BaseException) -> Any:
    """Return the traceback without our own frames at its top."""
    here, trace = error.__traceback__, error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace or here


_OURS = {__file__, codec.__file__}


def unknown_name(cls: type, name: str, known: list[str]) -> str:
    """Return a sentence about a name that a class does not have, with the nearest that it has."""
    hint = did_you_mean(name, (k for k in known if not k.startswith("__")))
    return f"{cls.__name__!r} has no method or attribute {name!r}{hint and f'; {hint}'}"


def async_methods(cls: type) -> frozenset[str]:
    """Return the names of a class's asynchronous methods, its bases' included."""
    return frozenset(
        name
        for name in dir(cls)
        if inspect.iscoroutinefunction(function_of(inspect.getattr_static(cls, name, None)))
    )


def has_async_streams(cls: type) -> bool:
    """Tell whether a class has an `async def` method that yields."""
    return any(
        inspect.isasyncgenfunction(function_of(inspect.getattr_static(cls, name, None)))
        for name in dir(cls)
    )
