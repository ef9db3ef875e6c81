"""The methods of a handle and of a group: what `handle.name` is before you call it."""

import inspect
import time
from collections.abc import Sequence
from typing import Any

from remotely import arguments
from remotely.api.dispatch import call, results
from remotely.futures.future import CallFuture
from remotely.objects.marks import retries_of, timeout_of
from remotely.objects.ray_hints import no_such_attribute


class Method:
    """A method of an actor: call it and wait, or `submit` the call and go on."""

    __slots__ = ("__wrapped__", "_handles", "_name")

    def __init__(self, handles: Sequence[Any], name: str, function: Any) -> None:
        self._handles = handles
        self._name = name
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wait = self._handles[0]._remotely_wait
        futures = self._send(args, kwargs, not wait)
        if not wait:
            return futures.pop()
        if futures[0].deadline is None:
            return futures.pop().result()
        return results([futures.pop()])[0]

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Send the call and return its future at once."""
        return self._send(args, kwargs, True).pop()

    def _send(self, args: Any, kwargs: Any, background: bool) -> list[CallFuture[Any]]:
        function = self.__wrapped__
        retries, seconds = retries_of(function), timeout_of(function)
        if seconds is None:
            return call(self._handles, self._name, args, kwargs, background, retries)
        deadline = time.monotonic() + seconds
        # In the background: nothing on its way out takes longer.
        # Not in a name: with REMOTELY_LOCAL=1 the call's error holds this frame; see future.py.
        return _limited(
            call(self._handles, self._name, args, kwargs, True, retries), seconds, deadline
        )

    @property
    def __name__(self) -> str:
        return self._name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return inspect.getdoc(self.__wrapped__)

    @property
    def __signature__(self) -> inspect.Signature:
        if not callable(self.__wrapped__) and not hasattr(self.__wrapped__, "__get__"):
            return inspect.signature(lambda *args, **kwargs: None)  # only the actor knows
        bind = getattr(self.__wrapped__, "__get__", None)
        return arguments.signature_of(bind(self) if bind else self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also our own, while the method is being copied
            raise AttributeError(name)
        raise AttributeError(no_such_attribute(self._name, name))

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._handles[0]!r}>"


class GroupMethod(Method):
    """A method of all members of a group; results are in member order."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._handles:
            return []
        wait = self._handles[0]._remotely_wait
        if not wait:
            return self._send(args, kwargs, True)
        return results(self._send(args, kwargs, True))

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Send the calls and return their futures at once, in member order."""
        return self._send(args, kwargs, True)


def _limited(
    futures: list[CallFuture[Any]], seconds: float, deadline: float
) -> list[CallFuture[Any]]:
    """Give whoever waits for these so many seconds, until the deadline."""
    for future in futures:
        future.seconds, future.deadline = seconds, deadline
    return futures
