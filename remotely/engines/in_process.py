"""The carrier of REMOTELY_LOCAL=1: objects live in this process, and calls run synchronously.

It is for debuggers, for tests, and for machines without a cluster.  Arguments and results are not
copied: they may be objects that do not pickle, and a debugger shows the one object that there is.
"""

import asyncio
import contextvars
import inspect
import os
import sys
import time
import traceback
import uuid
import weakref
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import msgspec

from remotely.calling.actor import CalledActor
from remotely.calling.carrier import NO_TIMELINE, Encoder
from remotely.engine import Arguments, Arrival, Engine, Options, Promises, RemoteActor
from remotely.errors import (
    SHUT_DOWN,
    ActorDied,
    NameTaken,
    NotConnected,
    NotPicklable,
    RemotelyError,
    name_taken,
)
from remotely.futures import wakeup
from remotely.futures.future import CallFuture
from remotely.futures.reference import REFERENCE, Reference
from remotely.futures.stream import local_stream
from remotely.futures.unretrieved import report_key, report_text
from remotely.machine.gate import Gate
from remotely.objects.construct import construct
from remotely.objects.placeholders import RoutinePlaceholder, stays
from remotely.protocol.wire import Kind
from remotely.reporting import log_records
from remotely.reporting.cluster_status import (
    ActorStatus,
    ClientStatus,
    ClusterStatus,
    metric_status,
)
from remotely.reporting.throttled_log import ThrottledLog
from remotely.values.codec import Encoded, named_arguments
from remotely.values.owned import Owned
from remotely.values.references import check_argument
from remotely.values.unpicklable import FUTURE, PartNames

# The name of the actor whose method is running, for its log records, as on a cluster.
_running: contextvars.ContextVar[str] = contextvars.ContextVar("remotely_running", default="")


class InPlace(Owned):
    """Arguments that are not pickled."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__((), ())
        self.counted_bytes = 0
        self.args = args
        self.kwargs = kwargs


def _arguments(
    actors: Sequence[RemoteActor],
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: PartNames,
) -> tuple[InPlace, tuple[()]]:
    return InPlace(args, kwargs), ()


def _constructors(cls: type, arguments: Sequence[Arguments]) -> tuple[list[InPlace], None]:
    for each in arguments:
        _replaced(each, partial(_refuse, f"an argument of {cls.__name__}"))
    return [InPlace((cls, args, kwargs), {}) for args, kwargs in arguments], None


def _attribute(value: Any, name: str) -> InPlace:
    _replaced(value, partial(_refuse, name))
    return InPlace((value,), {})


class LocalChannel:
    """The way to one object of this process, until it ends: a `carrier.CallChannel`.

    A call has its outcome when `send` returns, so there is never anything to receive or to cancel.
    """

    is_open = True
    is_introduced = True
    lends = False
    life = 0
    pending = ()
    sources_sent = sys.maxsize  # its object imports what this process does

    def __init__(self, target: Any, forget: Callable[[], object] = lambda: None) -> None:
        self.target = target
        self.ended = ""  # how, if it has
        self._forget = forget

    def wait_until_introduced(self) -> None: ...

    def receive_in_background(self) -> None: ...

    def wait(self, future: Any, timeout: float | None = None) -> None: ...

    def holds(self, future: CallFuture[Any]) -> bool:
        return False

    def recall(self, future: CallFuture[Any]) -> bool:
        return False

    def cancel(self, future: CallFuture[Any], waits: bool) -> None: ...

    def end(self, how: str) -> Any:
        """Let go of the object, and return it; calls fail from now on."""
        self._forget()  # before the object is closed, which may be interrupted
        target, self.target, self.ended = self.target, None, self.ended or how
        return target

    def send(
        self,
        kind: Kind,
        name: str,
        value: Encoded,
        future: CallFuture[Any],
        background: bool,
        large: Any = None,
        may_requeue: bool = False,
    ) -> bool:
        actor: Any = future.actor
        if self.ended:
            future.on_unretrieved = None  # as on a cluster: the user has ended it
            why = f"{actor.name} was {self.ended}"
            future.settle(None, ActorDied(why, exit=0, may_have_run=False))
        else:
            future.settle(*self._outcome(kind, name, value, actor))
        future.run_callbacks()
        del future  # the error holds this frame: see future.py
        return True

    def _outcome(
        self, kind: Kind, name: str, value: Encoded, actor: RemoteActor
    ) -> tuple[Any, BaseException | None]:
        """Return the result of a call, or its error, whose frames hold no future (future.py)."""
        try:
            return _as_actor(actor.name, lambda: self._run(kind, name, value, actor)), None
        except (Exception, asyncio.CancelledError) as error:
            return None, error

    def _run(self, kind: Kind, name: str, value: Encoded, actor: RemoteActor) -> Any:
        if kind is Kind.END:
            _close(self.end("closed"))
            return None
        target = self.target
        face = partial(_face, target, actor)
        if kind is Kind.GET:
            found = getattr(target, name)
            return RoutinePlaceholder(found) if stays(found) else face(found)
        assert isinstance(value, InPlace)
        if kind is Kind.SET:
            setattr(target, name, *value.args)
            return None
        call = name, value.args, value.kwargs
        args, kwargs = _replaced(call[1:], partial(_result, call))
        value = _finish(getattr(target, name)(*args, **kwargs))
        if inspect.isasyncgen(value):
            return local_stream(_faces(_items(value), face))
        if inspect.isgenerator(value):
            return local_stream(_faces(value, face))
        return face(value)


class InProcess:
    """A `carrier.Carrier` to objects of this process."""

    cluster = ""
    inside = ""
    patience_s = 0.0
    lends = False
    is_immediate = True
    encoder = Encoder(_arguments, _constructors, _attribute, lambda put: put)
    promises = Promises(
        exit_status=False,
        own_process=False,
        output=False,
        deadlocks=False,
        keys=False,
        detached_restarts=False,
        dial_in=False,
        debugger=False,
    )

    def __init__(self) -> None:
        self.known: weakref.WeakValueDictionary[str, CalledActor] = weakref.WeakValueDictionary()
        self._channels: dict[str, LocalChannel] = {}
        self._names: dict[str, str] = {}
        self._throttled = ThrottledLog(lambda text: print(text, file=sys.stderr, flush=True))
        self._undo_naming = log_records.name_actors(_running.get)
        self._gate = Gate()

    # --- actors -----------------------------------------------------------------------------------

    def new(
        self, engine: Engine, cls: type, names: Sequence[str], options: Options
    ) -> list[CalledActor]:
        taken = set(self._names)
        for name in names:
            if name in taken:
                raise NameTaken(name_taken(name, "here"))
            taken.add(name)
        owned = not options.detached
        return [CalledActor(engine, uuid.uuid4().hex, name, owned) for name in names]

    def place(
        self,
        actors: Sequence[CalledActor],
        encoded: Sequence[Encoded],
        options: Options,
        state: object,
        patience_s: float | None,
    ) -> None:
        for actor, its in zip(actors, encoded, strict=True):
            assert isinstance(its, InPlace)
            cls, args, kwargs = its.args
            made = _as_actor(actor.name, lambda: construct(cls, args, kwargs))  # noqa: B023
            forget = partial(self._forget, actor.actor)
            actor.channel = self._channels[actor.actor] = LocalChannel(made, forget)
            self._names[actor.name] = actor.actor

    def abandon(self, actors: Sequence[CalledActor], kill: bool) -> None:
        for actor in actors:
            self._end_released(actor.actor)

    def borrowed(self, engine: Engine, actor: str, name: str) -> CalledActor:
        found = CalledActor(engine, actor, name, owned=False)
        found.channel = self._channels.get(actor)
        if found.channel is None:
            found.channel = LocalChannel(None)
            found.channel.end("closed")
        return found

    def await_name(self, options: Options, deadline: float, again: bool) -> bool:
        return False

    def find(self, engine: Engine, name: str) -> CalledActor | None:
        if name not in self._names:
            return None
        found = engine.borrow(self._names[name], name)
        assert isinstance(found, CalledActor)
        return found

    def hold(self, actor: CalledActor, giver: str) -> None:
        """Do nothing: handles do not leave this process."""

    def await_arrival(self, engine: Engine, class_name: str) -> Arrival:
        raise NotConnected(
            "with REMOTELY_LOCAL=1 there is no cluster that a process could dial in to: unset it "
            "to serve objects and to wait for them"
        )

    # --- calls ------------------------------------------------------------------------------------

    def begin_send(self, what: str) -> None:
        """Do nothing: any thread may call any object."""

    def connect(self, actor: CalledActor) -> NoReturn:
        raise AssertionError("channels of this process are always open")

    def transfer(
        self, actors: Sequence[CalledActor], encoded: Encoded, background: bool
    ) -> tuple[Encoded, None]:
        return encoded, None

    def outgoing(self, encoded: Encoded, several: bool, transfers: object) -> None:
        return None

    def message(self, actors: object, kind: Kind, name: str, *_: object) -> NoReturn:
        raise AssertionError("calls of this process never wait")

    def may_wait(self) -> bool:
        return True

    def check_wait(self, actor: object, future: CallFuture[Any], has_needs: bool) -> None: ...

    def sleep_until(
        self,
        is_over: Callable[[], object],
        timeout_s: float | None,
        actor: object,
        future: CallFuture[Any],
    ) -> None:
        wakeup.sleep_until(is_over, timeout_s, future)

    def is_any_elsewhere(self, actors: object) -> bool:
        return False

    def put(self, value: object) -> object:
        _replaced(value, partial(_refuse, "the value"))
        return value

    # --- the end ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Do nothing: this process can always run its own objects."""

    def begin_end(self, actors: Sequence[CalledActor], grace_s: float) -> None:
        """Do nothing: they have ended."""

    def await_end(self, actors: Sequence[CalledActor], deadline: float) -> None:
        """Do nothing: they have ended."""

    def finish_end(self, actors: Sequence[CalledActor]) -> None:
        for actor in actors:
            self._end(actor.actor, "closed")

    def kill(self, actors: Sequence[CalledActor]) -> None:
        for actor in actors:
            self._end(actor.actor, "killed")

    def release(self, actor: CalledActor) -> None:
        if actor.owned:
            self._end_released(actor.actor)

    def timeline(self, seconds: float) -> NoReturn:
        raise RemotelyError(NO_TIMELINE)

    def report(self, fresh: bool) -> ClusterStatus:
        from remotely.transport import own_metrics  # noqa: PLC0415 - nothing else of it is needed

        me = ClientStatus(pid=os.getpid(), machine="", actor="", actors=len(self._names))
        metrics = [metric_status(each) for each in own_metrics.of_process()]
        actors = [
            ActorStatus(
                name=name,
                class_name=type(self._channels[actor].target).__name__,
                actor=actor,
                machine="",
                worker="",
                pid=me.pid,
                cpus=0,
                gpu_ids=[],
                memory_limit=0,
                cpu_percent=0,
                rss=0,
                memory=0,
                calls=0,
                running=0,
                method="",
                method_s=0,
                queue=0,
                since=0,
                owner=me,
            )
            for name, actor in self._names.items()
        ]
        clients = [msgspec.structs.replace(me, metrics=metrics)]
        return ClusterStatus(address="", waiting=0, machines=[], clients=clients, actors=actors)

    def note_unretrieved(self, what: str, error: BaseException) -> None:
        self._throttled.add(report_key(what, error), report_text(what, error), time.monotonic())

    def forget(self) -> None:
        """Do nothing: a forked child has the objects too."""

    def leave(self) -> bool:
        with self._gate:
            return self._gate.close()

    def close(self) -> None:
        for actor in list(self._channels):
            self._end_released(actor)
        self._undo_naming()

    def left(self) -> NotConnected:
        return NotConnected(SHUT_DOWN)

    def _end(self, actor: str, how: str) -> Any:
        """End an object, and return it, unless it has ended."""
        channel = self._channels.get(actor)
        return None if channel is None else channel.end(how)

    def _forget(self, actor: str) -> None:
        self._channels.pop(actor, None)
        self._names = {name: held for name, held in self._names.items() if held != actor}

    def _end_released(self, actor: str) -> None:
        """End an actor, and print an error of its `close`, since there is no caller to raise in."""
        try:
            _close(self._end(actor, "closed"))
        except Exception:
            traceback.print_exc()


Referring = CallFuture[Any] | Reference[Any]


def _replaced(
    argument: Any, replace: Callable[[Referring], Any], parents: frozenset[int] = frozenset()
) -> Any:
    """Replace futures and references in an argument, also in lists, tuples and dicts.

    An argument without any is returned as it is, without a copy.
    """
    if isinstance(argument, CallFuture | Reference):
        return replace(argument)
    kind = type(argument)
    if kind not in (list, tuple, dict) or id(argument) in parents:
        return argument
    items = argument.values() if kind is dict else argument
    values = [_replaced(item, replace, parents | {id(argument)}) for item in items]
    if all(value is item for value, item in zip(values, items, strict=True)):
        return argument
    return dict(zip(argument, values, strict=True)) if kind is dict else kind(values)


def _result(call: tuple[str, tuple[Any, ...], dict[str, Any]], referring: Referring) -> Any:
    """Return the result that an argument of a call stands for."""
    future = referring.future if isinstance(referring, Reference) else referring
    check_argument(future, lambda: named_arguments(*call, [future])[0].name)
    return future.result()


def _refuse(what: str, referring: Referring) -> NoReturn:
    """Raise what a cluster raises for one that is no argument of a call."""
    why = REFERENCE if isinstance(referring, Reference) else FUTURE
    raise NotPicklable(f"{what} {why}")


def _as_actor(name: str, work: Callable[[], Any]) -> Any:
    token = _running.set(name)
    try:
        return work()
    finally:
        _running.reset(token)


def _close(target: Any) -> None:
    """Run the `close` of an object, if it has one."""
    if callable(close := getattr(target, "close", None)):
        _finish(close())


def _face(target: object, actor: RemoteActor, value: Any) -> Any:
    """Return a value, or a handle if it is the object itself."""
    return actor.face(actor) if value is target else value


def _faces(items: Generator[Any, None, Any], face: Callable[[Any], Any]) -> Iterator[Any]:
    try:
        for item in items:
            yield face(item)
    finally:
        items.close()


_END = object()


def _items(stream: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
    """Run an async generator, in one event loop: on a thread, as this one may run another loop."""
    runner = asyncio.Runner()

    async def awaited(each: Awaitable[Any]) -> Any:
        return await each

    with ThreadPoolExecutor(1) as thread:

        def run(each: Awaitable[Any]) -> Any:
            context = contextvars.copy_context()
            return thread.submit(context.run, runner.run, awaited(each)).result()

        try:
            while (item := run(anext(stream, _END))) is not _END:
                yield item
        finally:
            run(stream.aclose())
            thread.submit(runner.close).result()


def _finish(value: Any) -> Any:
    """Return the value; run a coroutine to completion, even if async code calls this."""
    if not inspect.iscoroutine(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(value)
    with ThreadPoolExecutor(1) as other:  # a thread can run only one loop at a time
        return other.submit(contextvars.copy_context().run, asyncio.run, value).result()
