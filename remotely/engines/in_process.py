"""The engine of REMOTELY_LOCAL=1: objects live in this process, and calls run synchronously.

It is for debuggers, for tests, and for machines without a cluster.  Arguments and results are not
copied: they may be objects that do not pickle, and a debugger shows the one object that there is.
"""

import asyncio
import contextvars
import functools
import inspect
import os
import sys
import time
import traceback
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from remotely.calling.actor import Names
from remotely.engine import Arguments, Arrival, Options, Prepared, Promises, RemoteActor
from remotely.errors import ActorDied, NameTaken, NotConnected, name_taken
from remotely.futures.future import CallFuture, completed, failed
from remotely.futures.reference import Reference
from remotely.futures.stream import local_stream
from remotely.futures.unretrieved import OnUnretrieved, report_key, report_text
from remotely.objects.construct import construct
from remotely.objects.placeholders import RoutinePlaceholder, stays
from remotely.reporting import log_records
from remotely.reporting.cluster_status import ActorStatus, ClientStatus, ClusterStatus
from remotely.reporting.throttled_log import ThrottledLog
from remotely.values.unpicklable import PartNames

# The name of the actor whose method is running, for its log records, as on a cluster.
_running: contextvars.ContextVar[str] = contextvars.ContextVar("remotely_running", default="")


class InProcess:
    """Implements `engine.Engine` without another process."""

    cluster = ""
    promises = Promises(
        exit_status=False,
        own_process=False,
        output=False,
        deadlocks=False,
        keys=False,
        detached_restarts=False,
        dial_in=False,
    )

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._remotes: weakref.WeakValueDictionary[str, RemoteActor] = weakref.WeakValueDictionary()
        self._killed: weakref.WeakSet[RemoteActor] = weakref.WeakSet()
        self._auto_names = Names()
        self._throttled = ThrottledLog(lambda text: print(text, file=sys.stderr, flush=True))
        self._undo_naming = log_records.name_actors(_running.get)

    def place(
        self,
        cls: type,
        arguments: Sequence[Arguments],
        options: Options,
    ) -> list[RemoteActor]:
        return [self._make(cls, args, kwargs, options) for args, kwargs in arguments]

    def call(
        self,
        remotes: Sequence[RemoteActor],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
        retries: int = 0,
    ) -> list[CallFuture[Any]]:
        def run(remote: RemoteActor, target: Any) -> Any:
            here = [_value(argument) for argument in args]
            named = {name: _value(argument) for name, argument in kwargs.items()}
            value = _finish(getattr(target, method)(*here, **named))
            return remote.face(remote) if value is target else value

        report = self._on_unretrieved if background else None
        return [
            self._outcome(remote, functools.partial(run, remote), f"{remote.name}.{method}", report)
            for remote in remotes
        ]

    def prepare(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], names: PartNames = ""
    ) -> Prepared:
        return Prepared(
            lambda remote: self.call((remote,), method, args, kwargs, background=True)[0]
        )

    def get(self, remotes: Sequence[RemoteActor], name: str) -> list[CallFuture[Any]]:
        def read(target: Any) -> Any:
            value = getattr(target, name)
            return RoutinePlaceholder(value) if stays(value) else value

        return [self._outcome(remote, read) for remote in remotes]

    def set(
        self, remotes: Sequence[RemoteActor], name: str, value: object
    ) -> list[CallFuture[Any]]:
        return [self._outcome(r, lambda target: setattr(target, name, value)) for r in remotes]

    def put(self, value: object) -> object:
        return value

    def value_of(self, ref: object) -> object:
        return ref

    def end(self, remotes: Sequence[RemoteActor], grace_s: float) -> None:
        for remote in remotes:
            if not grace_s and remote.actor in self._objects:
                self._killed.add(remote)
            self._end(remote.actor, grace_s > 0)

    def release(self, remote: RemoteActor) -> None:
        if remote.owned:
            self._end_released(remote.actor)

    def find(self, name: str) -> RemoteActor:
        if name not in self._names:
            raise NameError(f"there is no actor named {name!r}")
        return self.borrow(self._names[name], name)

    def await_arrival(self, class_name: str) -> Arrival:
        raise NotConnected(
            "with REMOTELY_LOCAL=1 there is no cluster that a process could dial in to: unset it "
            "to serve objects and to wait for them"
        )

    def borrow(self, actor: str, name: str) -> RemoteActor:
        found = self._remotes.get(actor)
        if found is None:
            found = self._remotes[actor] = RemoteActor(self, actor, name, owned=False)
        return found

    def hold(self, actor: str, name: str, giver: str) -> RemoteActor:
        return self.borrow(actor, name)

    def report(self, fresh: bool = True) -> ClusterStatus:
        me = ClientStatus(pid=os.getpid(), machine="", actor="", actors=len(self._objects))
        actors = [
            ActorStatus(
                name=name,
                class_name=type(self._objects[actor]).__name__,
                actor=actor,
                machine="",
                worker="",
                pid=me.pid,
                cpus=0,
                gpu_ids=[],
                memory_limit=0,
                cpu_percent=0,
                rss=0,
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
        return ClusterStatus(address="", waiting=0, machines=[], clients=[me], actors=actors)

    def shutdown(self) -> None:
        for actor in list(self._objects):
            self._end_released(actor)
        self._undo_naming()

    def _end(self, actor: str, gracefully: bool = True) -> None:
        target = self._objects.pop(actor, None)
        self._names = {name: held for name, held in self._names.items() if held != actor}
        if gracefully and callable(close := getattr(target, "close", None)):
            _finish(close())

    def _end_released(self, actor: str) -> None:
        """End an actor, and print an error of its `close`, since there is no caller to raise in."""
        try:
            self._end(actor)
        except Exception:
            traceback.print_exc()

    def _make(self, cls: type, args: Any, kwargs: Any, options: Options) -> RemoteActor:
        if options.name in self._names and options.get_if_exists:
            return self.find(options.name)
        if options.name in self._names:
            raise NameTaken(name_taken(options.name, "here"))
        name = self._auto_names.of(cls, options)
        actor = uuid.uuid4().hex
        self._objects[actor] = _as_actor(name, lambda: construct(cls, args, kwargs))
        self._names[name] = actor
        remote = self._remotes[actor] = RemoteActor(self, actor, name, owned=not options.detached)
        return remote

    def _outcome(
        self,
        remote: RemoteActor,
        run: Callable[[Any], Any],
        what: str = "",
        report: OnUnretrieved | None = None,
    ) -> CallFuture[Any]:
        if remote.actor not in self._objects:
            how = "killed" if remote in self._killed else "closed"
            return failed(ActorDied(f"{remote.name} was {how}", exit=0, may_have_run=False))
        try:
            target = self._objects[remote.actor]
            return completed(_as_actor(remote.name, lambda: run(target)))
        except (Exception, asyncio.CancelledError) as error:
            return failed(error, what, report)

    def _on_unretrieved(self, what: str, error: BaseException) -> None:
        self._throttled.add(report_key(what, error), report_text(what, error), time.monotonic())


def _value(argument: Any, parents: frozenset[int] = frozenset()) -> Any:
    """Replace futures and references in an argument by their values, also in lists, tuples and
    dicts.  An argument without any is returned as it is, without a copy.
    """
    if isinstance(argument, Reference):
        argument = argument.future
    if isinstance(argument, CallFuture):
        return argument.result()
    kind = type(argument)
    if kind not in (list, tuple, dict) or id(argument) in parents:
        return argument
    items = argument.values() if kind is dict else argument
    values = [_value(item, parents | {id(argument)}) for item in items]
    if all(value is item for value, item in zip(values, items, strict=True)):
        return argument
    return dict(zip(argument, values, strict=True)) if kind is dict else kind(values)


def _as_actor(name: str, work: Callable[[], Any]) -> Any:
    token = _running.set(name)
    try:
        return work()
    finally:
        _running.reset(token)


def _finish(value: Any) -> Any:
    """Return the value; run a coroutine to completion, even if async code calls this."""
    if inspect.isgenerator(value):
        return local_stream(value)
    if not inspect.iscoroutine(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(value)
    with ThreadPoolExecutor(1) as other:  # a thread can run only one loop at a time
        return other.submit(contextvars.copy_context().run, asyncio.run, value).result()
