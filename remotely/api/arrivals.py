"""`remotely.arrivals`: the objects whose processes dial in, as they come."""

from collections.abc import Iterator
from typing import Any, TypeVar, overload

from remotely import arguments
from remotely.api import connection
from remotely.api.handle import handle_of
from remotely.api.verbs import class_of
from remotely.engine import Engine, Options

T = TypeVar("T")


@overload
def arrivals(
    cls: type[T], /, *, count: int | None = None, timeout: float | None = None
) -> Iterator[T]: ...
@overload
def arrivals(
    cls: str, /, *, count: int | None = None, timeout: float | None = None
) -> Iterator[Any]: ...
def arrivals(
    cls: Any, /, *, count: int | None = None, timeout: float | None = None
) -> Iterator[Any]:
    """Yield a handle of each object of a class that a process serves; wait for the next to dial in.

    cls      the class, or its name; also that of a base.  The process may have it from elsewhere:
             it is compared by its name
    count    after so many it ends
    timeout  how long, in seconds, it waits for the next; then it raises CallTimeout

    Each object goes to one client alone, and to another when that client has ended.  Handles are
    borrowed: the object stays when they are gone.
    """
    name = cls if isinstance(cls, str) else getattr(cls, "__name__", None)
    if not name or not isinstance(cls, str | type):
        raise TypeError(f"cls={cls!r}: it is to be a class, or the name of one")
    if count is not None:
        arguments.whole_number("count", count, 1)
    if timeout is not None:
        arguments.number("timeout", timeout)
    return _each(connection.current(), cls, name, count, timeout)


def _each(
    engine: Engine, cls: Any, name: str, count: int | None, timeout: float | None
) -> Iterator[Any]:
    taken = 0
    while count is None or taken < count:
        arrival = engine.await_arrival(name)
        try:
            remote = arrival.result(timeout)
            found = class_of(remote) if isinstance(cls, str) else cls
        except BaseException:
            arrival.give_back()
            raise
        wait = getattr(found, "__remotely__", Options()).wait
        taken += 1
        yield handle_of(found, remote, wait)
