"""Methods that serve many callers at once: `@remotely.batched`.

Calls that arrive together are gathered, the method runs once for all of them, and each caller gets
its own result.  The method runs when `max_size` calls are there, or when no other call waits and
the first has waited for `wait_ms`.

    what the callers pass                what the method sees
    predict(x), predict(y)               predict([x, y]); with `stack`, predict(array of both)
    step(a, mode=m), step(b, mode=n)     step([a, b], mode=[m, n])

    what the method returns              what caller i gets
    a list, an array, a tensor           item i
    a tuple of such, a dict of such      the tuple, the dict, of its items
    None                                 None

This is the predictor of GA3C (Babaeizadeh et al., 2017, section 3).
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from remotely.objects.marks import MarkedMethod

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Batching(NamedTuple):
    """The batching of a method."""

    function: Callable[..., Any]
    max_size: int
    wait_s: float
    stack: bool

    def together(self, calls: Sequence[Arguments]) -> Arguments:
        """Return the arguments of one run for several calls of the same form."""
        join = _stacked if self.stack else list
        args = tuple(join(items) for items in zip(*(args for args, _ in calls), strict=True))
        first = calls[0][1]
        return args, {name: join([kwargs[name] for _, kwargs in calls]) for name in first}

    def apart(self, value: Any, count: int) -> list[Any]:
        """Return what each of `count` callers gets.  Raises ValueError for another number."""
        if value is None:
            return [None] * count
        if isinstance(value, tuple):
            parts = [self.apart(part, count) for part in value]
            return list(zip(*parts, strict=True))
        if isinstance(value, dict):
            items = {key: self.apart(part, count) for key, part in value.items()}
            return [{key: items[key][i] for key in items} for i in range(count)]
        if not hasattr(value, "__len__") or len(value) != count:
            got = (
                f"{len(value)} results" if hasattr(value, "__len__") else f"{type(value).__name__}"
            )
            raise ValueError(
                f"{self.function.__name__} is batched: for {count} calls it must return a list or "
                f"an array of {count} results (or a tuple or dict of these), and it returned {got}"
            )
        return [value[i] for i in range(count)]


class Gathering:
    """The calls of one method that wait to run together."""

    def __init__(self, batching: Batching) -> None:
        self.batching = batching
        self.due = 0.0
        self._calls: list[tuple[Any, Arguments]] = []

    def add(self, who: Any, arguments: Arguments, now: float) -> None:
        if not self._calls:
            self.due = now + self.batching.wait_s
        self._calls.append((who, arguments))

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= self.batching.max_size

    def take(self) -> list[list[tuple[Any, Arguments]]]:
        """Return the gathered calls in lists that take the same number and names of arguments."""
        forms: dict[Any, list[tuple[Any, Arguments]]] = {}
        for who, (args, kwargs) in self._calls:
            forms.setdefault((len(args), *sorted(kwargs)), []).append((who, (args, kwargs)))
        self._calls = []
        return list(forms.values())


class Batcher(Protocol):
    """The type of the decorator: callers pass, and get, an item of what the method has lists of.

    Of more arguments, and of arrays, type checkers know nothing.
    """

    @overload
    def __call__(
        self, method: Callable[[Any, list[A]], Sequence[R]], /
    ) -> MarkedMethod[[A], R]: ...
    @overload
    def __call__(
        self, method: Callable[[Any, list[A], list[B]], Sequence[R]], /
    ) -> MarkedMethod[[A, B], R]: ...
    @overload
    def __call__(self, method: Callable[..., Any], /) -> MarkedMethod[..., Any]: ...


@overload
def batched(function: Callable[[Any, list[A]], Sequence[R]], /) -> MarkedMethod[[A], R]: ...
@overload
def batched(
    function: Callable[[Any, list[A], list[B]], Sequence[R]], /
) -> MarkedMethod[[A, B], R]: ...
@overload
def batched(function: Callable[..., Any], /) -> MarkedMethod[..., Any]: ...
@overload
def batched(*, max_size: int = 64, wait_ms: float = 1.0, stack: bool = False) -> Batcher: ...
def batched(
    function: Callable[..., Any] | None = None,
    /,
    *,
    max_size: int = 64,
    wait_ms: float = 1.0,
    stack: bool = False,
) -> Any:
    """Let a method serve many callers at once: it sees a list of each argument.

    max_size  the most calls of one run
    wait_ms   how long the first call may wait for others; 0 takes what is there
    stack     stack arrays and tensors along a new first axis, also in dicts; numbers too

    A call from within the object, or on a plain object, is a batch of one.
    """
    if function is None:
        return functools.partial(batched, max_size=max_size, wait_ms=wait_ms, stack=stack)
    if max_size < 1 or wait_ms < 0:
        raise ValueError(f"batched(max_size={max_size}, wait_ms={wait_ms}): from 1 and 0 up")
    batching = Batching(function, max_size, wait_ms / 1000, stack)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def one(self: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = batching.together([(args, kwargs)])
            return batching.apart(await function(self, *args, **kwargs), 1)[0]

    else:

        @functools.wraps(function)
        def one(self: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = batching.together([(args, kwargs)])
            return batching.apart(function(self, *args, **kwargs), 1)[0]

    one.__remotely_batching__ = batching  # type: ignore[attr-defined]
    return one


def batched_methods(cls: type) -> dict[str, Batching]:
    """Return how the methods of a class and its bases are batched."""
    found = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name, None)
        if isinstance(batching := getattr(member, "__remotely_batching__", None), Batching):
            found[name] = batching
    return found


def _stacked(items: Sequence[Any]) -> Any:
    first = items[0]
    if isinstance(first, dict):
        return {key: _stacked([item[key] for item in items]) for key in first}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        return torch.stack(list(items))
    import numpy as np  # noqa: PLC0415 - what is stacked is an array, or becomes one

    return np.stack([np.asarray(item) for item in items])
