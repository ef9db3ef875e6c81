"""Groups: several actors of one class that are called as one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from remotely.api.handle import (
    MISSING,
    Handle,
    Method,
    check_slots,
    end,
    member_of,
    read,
    results,
    special_method,
    write,
)
from remotely.futures.future import CallFuture
from remotely.objects.members import is_method
from remotely.objects.placeholders import RoutinePlaceholder
from remotely.objects.special import defines, leave
from remotely.protocol.lease import DRAIN_S

T = TypeVar("T")


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


class Group(Generic[T]):
    """Several actors of one class, called as one: arguments are pickled once."""

    __slots__ = ("_remotely_handles",)

    _remotely_handles: tuple[Any, ...]

    def __init__(self, handles: Iterable[T]) -> None:
        object.__setattr__(self, "_remotely_handles", tuple(handles))
        for handle in self._remotely_handles:
            if not issubclass(type(handle), Handle):
                raise TypeError(f"a group is made of handles; {handle!r} is not one")

    def __getattr__(self, name: str) -> Any:
        handles = self._remotely_handles
        if not handles:
            raise AttributeError(f"{name!r}: the group is empty")
        member = member_of(handles[0]._remotely_class, name)
        if member is not MISSING and is_method(member):
            return GroupMethod(handles, name, member)
        values = results(read(handles, name))
        if all(type(value) is RoutinePlaceholder for value in values):
            return GroupMethod(handles, name, values[0])
        return [
            Method((handle,), name, value) if type(value) is RoutinePlaceholder else value
            for handle, value in zip(handles, values, strict=True)
        ]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._remotely_handles:
            check_slots(self._remotely_handles[0]._remotely_class, name)
        results(write(self._remotely_handles, name, value))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> "Group[T]": ...
    def __getitem__(self, index: int | slice) -> "T | Group[T]":
        if isinstance(index, slice):
            return Group(self._remotely_handles[index])
        return self._remotely_handles[index]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._remotely_handles)

    def __iter__(self) -> Iterator[T]:
        return iter(self._remotely_handles)

    def __enter__(self) -> "Group[T]":
        """Enter each member, if the class defines `__enter__`, and return the group.

        If one of them raises, those that have entered are left with its error; none is closed.
        """
        handles = self._remotely_handles
        if not _defines(handles, "__enter__"):
            return self
        member = member_of(handles[0]._remotely_class, "__enter__")
        entering = GroupMethod(handles, "__enter__", member).submit()
        try:
            results(entering)
        except BaseException as error:
            entered = [
                handle
                for handle, future in zip(handles, entering, strict=True)
                if _has_entered(future)
            ]
            _leave(entered, error)
            raise
        finally:
            del entering  # see future.py
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool | None:
        try:
            return _leave(self._remotely_handles, error)
        finally:
            end(self._remotely_handles, DRAIN_S)

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 3 else ""
        return f"<group of {len(self)}: {', '.join(map(repr, self._remotely_handles[:3]))}{more}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, (self._remotely_handles,)


def _defines(handles: Sequence[Handle], name: str) -> bool:
    return bool(handles) and defines(handles[0]._remotely_class, name)


def _leave(handles: Sequence[Handle], error: Any) -> bool | None:
    """Leave members that have entered, if the class defines `__exit__`."""
    if not _defines(handles, "__exit__"):
        return False
    leaves = special_method("__exit__", member_of(handles[0]._remotely_class, "__exit__"))
    return leave([leaves.__get__(handle) for handle in handles], error)


def _has_entered(future: CallFuture[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
