"""Results that stay where they are, until somebody needs them."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, NoReturn, TypeVar

from remotely.values import references
from remotely.values.codec import Encoded

R = TypeVar("R")


class Elsewhere:
    """A result that is in the store of its actor's machine."""

    def fetch(self) -> Any:
        """Return the value.  Raises ActorDied or WorkerLost if it is lost."""
        raise NotImplementedError

    def entry(self) -> Any:
        """Return what arrives elsewhere as the value."""
        raise NotImplementedError


class Reference(Generic[R]):
    """Stands for the result of a call.  Pass it as an argument: it arrives as the value.

    The result is kept until the last reference to it, or its future, is gone.
    """

    def __init__(self, future: "Future[R]") -> None:
        self.future = future

    def get(self) -> R:
        """Wait for the value, and fetch it.  Raises what the method raised."""
        return self.future.result()

    def __repr__(self) -> str:
        return f"<reference to {self.future!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return references.as_reference(self.future) or refuse(self)


class Put:
    """What `put` returns.  It arrives as the value was then."""

    value: Encoded


class Onward:
    """A done-callback that does not ask for the value: that may stay where it is."""

    def __init__(self, function: Callable[["Future[Any]"], None]) -> None:
        self._function = function

    def __call__(self, future: "Future[Any]") -> None:
        self._function(future)


def refuse(thing: object) -> NoReturn:
    """Refuse to pickle it, as the standard library does; unpicklable.py says what to do."""
    raise TypeError(f"cannot pickle {type(thing).__name__!r} object")
