"""The engine of REMOTELY_LOCAL=1: every object lives here, every call runs at once, here.

For debuggers, for tests, and for machines where there is no cluster.  Arguments are not copied.
"""

import asyncio
import inspect
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from remotely.engine import Options, Remote
from remotely.errors import ActorDied, NameTaken
from remotely.future import CallFuture, completed, failed
from remotely.remote_class import construct


class Local:
    """Implements `engine.Engine` without another process."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def place(
        self,
        cls: type,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Options,
        count: int,
    ) -> list[Remote]:
        if options.name in self._names:
            raise NameTaken(f"an actor named {options.name!r} is here already")
        return [self._make(cls, args, kwargs, options) for _ in range(count)]

    def call(
        self,
        remotes: Sequence[Remote],
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        background: bool,
    ) -> list[CallFuture[Any]]:
        def run(target: Any) -> Any:
            value = getattr(target, method)(*args, **kwargs)
            return asyncio.run(value) if inspect.iscoroutine(value) else value

        return [self._outcome(remote, run) for remote in remotes]

    def get(self, remotes: Sequence[Remote], name: str) -> list[CallFuture[Any]]:
        return [self._outcome(remote, lambda target: getattr(target, name)) for remote in remotes]

    def set(self, remotes: Sequence[Remote], name: str, value: object) -> list[CallFuture[Any]]:
        return [self._outcome(r, lambda target: setattr(target, name, value)) for r in remotes]

    def put(self, value: object) -> object:
        return value

    def end(self, remotes: Sequence[Remote], grace_s: float) -> None:
        for remote in remotes:
            self._end(remote.actor)

    def release(self, remote: Remote) -> None:
        if remote.owned:
            self._end(remote.actor)

    def find(self, name: str) -> Remote:
        if name not in self._names:
            raise NameError(f"there is no actor named {name!r}")
        return self.borrow(self._names[name], name)

    def borrow(self, actor: str, name: str) -> Remote:
        return Remote(self, actor, name, owned=False)

    def shutdown(self) -> None:
        for actor in list(self._objects):
            self._end(actor)

    def _end(self, actor: str) -> None:
        target = self._objects.pop(actor, None)
        self._names = {name: held for name, held in self._names.items() if held != actor}
        if callable(close := getattr(target, "close", None)):
            close()

    def _make(self, cls: type, args: Any, kwargs: Any, options: Options) -> Remote:
        actor = uuid.uuid4().hex
        self._objects[actor] = construct(cls, args, kwargs)
        name = options.name or f"{cls.__name__}-{len(self._objects)}"
        self._names[name] = actor
        return Remote(self, actor, name, owned=not options.detached)

    def _outcome(self, remote: Remote, run: Callable[[Any], Any]) -> CallFuture[Any]:
        if remote.actor not in self._objects:
            return failed(ActorDied(f"{remote.name} was closed", exit=0, may_have_run=False))
        try:
            return completed(run(self._objects[remote.actor]))
        except Exception as error:
            return failed(error)
