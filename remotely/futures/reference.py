"""References: objects that stand for a value, and for a result that is still in a store."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, NoReturn, TypeVar

from remotely.values import references
from remotely.values.codec import Encoded
from remotely.values.payload import Parcel
from remotely.values.unpicklable import NotToBePickled

R = TypeVar("R")

# What a `Reference` is, and what to do, where it is no argument of a call.
REFERENCE = "is a reference, and cannot be sent: call remotely.get() and pass what it returns"


class StoredResult:
    """A result in the store of its actor's machine, which stays there until this is deleted.

    `fetch` returns the value, or raises WorkerLost if it is lost; what it refers to keeps the
    result in its store.  `run(task, instead)` runs a task on a thread that may wait for the value,
    or `instead`.
    """

    def __init__(
        self,
        parcel: Parcel,
        fetch: Callable[[], Any],
        run: Callable[[Callable[[], object], Callable[[], object]], object],
    ) -> None:
        self._parcel = parcel
        self.fetch = fetch
        self._run = run
        self._is_coming = False

    def bring(self, future: Any) -> None:
        """Have `future.bring` called on a thread that may wait for the value, once."""
        if not self._is_coming:
            self._is_coming = True
            self._run(future.bring, future.bring)

    def entry(self) -> Parcel:
        """Return what stands for the value in a message."""
        return self._parcel


class Reference(Generic[R]):
    """Stands for the result of a call.  Pass it as an argument: it arrives as the value.

    The result is kept as long as a reference to it, or its future, exists.
    """

    def __init__(self, future: "Future[R]") -> None:
        self.future = future

    def get(self) -> R:
        """Wait for the value and fetch it.  Raises what the method raised."""
        try:
            return self.future.result()
        finally:
            del self  # its future has the error that is raised, whose traceback has this frame

    def __repr__(self) -> str:
        return f"<reference to {self.future!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        referred = references.as_reference(self.future)
        if referred is None:
            raise NotToBePickled(self, REFERENCE)
        return referred


class Put(ABC):
    """What `put` returns.  Passed in a call, it arrives as the value was at `put`."""

    value: Encoded

    @abstractmethod
    def get(self) -> Any:
        """Return a new copy of the value."""


class DependencyCallback:
    """A done-callback that does not need the value, which may stay in its store."""

    def __init__(self, function: Callable[["Future[Any]"], None]) -> None:
        self._function = function

    def __call__(self, future: "Future[Any]") -> None:
        self._function(future)


def refuse(thing: object) -> NoReturn:
    """Raise the TypeError of the standard library for an unpicklable object."""
    raise TypeError(f"cannot pickle {type(thing).__name__!r} object")
