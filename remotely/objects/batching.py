"""Batched methods: `@remotely.batched` runs a method once for the calls of many callers.

Calls that arrive together form a batch; each caller gets its own result.  The method runs when
`max_size` calls have arrived, or when no other call is queued and the first has waited `wait_ms`.

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
    """The settings of a batched method."""

    function: Callable[..., Any]
    max_size: int
    wait_s: float
    stack: bool

    def merge(self, calls: Sequence[Arguments]) -> Arguments:
        """Return the arguments of one run for several calls that pass the same parameters."""
        join = _stacked if self.stack else list
        args = tuple(join(items) for items in zip(*(args for args, _ in calls), strict=True))
        first = calls[0][1]
        return args, {name: join([kwargs[name] for _, kwargs in calls]) for name in first}

    def split(self, value: Any, count: int) -> list[Any]:
        """Return the result of each of `count` callers.  Raises ValueError for another number."""
        if value is None:
            return [None] * count
        if isinstance(value, tuple):
            parts = [self.split(part, count) for part in value]
            return list(zip(*parts, strict=True))
        if isinstance(value, dict):
            items = {key: self.split(part, count) for key, part in value.items()}
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


class PendingBatch:
    """The next batch of a method: the calls that have arrived for it.

    A call's first item is the route to its client, whose calls run in the order of arrival.
    """

    def __init__(self, batching: Batching) -> None:
        self.batching = batching
        self.due = 0.0
        self._calls: list[tuple[Any, Arguments]] = []
        self._routes: set[bytes] = set()

    def add(self, call: tuple[bytes, Any], arguments: Arguments, now: float) -> None:
        if not self._calls:
            self.due = now + self.batching.wait_s
        self._calls.append((call, arguments))
        self._routes.add(call[0])

    def has(self, route: bytes) -> bool:
        """Return whether a client has a call in this batch."""
        return route in self._routes

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= self.batching.max_size

    def take(self) -> list[list[tuple[Any, Arguments]]]:
        """Return the calls in batches that take the same number and names of arguments.

        A call joins the first such batch that does not run before an earlier call of its client.
        """
        batches: list[tuple[Any, list[tuple[Any, Arguments]]]] = []
        last: dict[bytes, int] = {}  # by route, the batch of its latest call
        for call in self._calls:
            (route, *_), (args, kwargs) = call
            parameters = (len(args), *sorted(kwargs))
            candidates = range(last.get(route, 0), len(batches))
            into = next((i for i in candidates if batches[i][0] == parameters), len(batches))
            if into == len(batches):
                batches.append((parameters, []))
            batches[into][1].append(call)
            last[route] = into
        self._calls = []
        self._routes.clear()
        return [calls for _, calls in batches]


class Batcher(Protocol):
    """The type of the decorator: callers pass and get single items of the method's lists.

    For more than two arguments, and for arrays, the types are Any.
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
    """Run a method once for the calls of many callers: each of its parameters is a list.

    max_size  the maximum number of calls in a batch
    wait_ms   the milliseconds that the first call may wait for others; 0 takes what has arrived
    stack     pass arrays instead of lists: arrays, tensors and numbers, also in dicts, are stacked
              along a new first axis

    A call from within the object, or on a plain object, is a batch of one.
    """
    if function is None:
        return functools.partial(batched, max_size=max_size, wait_ms=wait_ms, stack=stack)
    if max_size < 1 or wait_ms < 0:
        raise ValueError(
            f"batched(max_size={max_size}, wait_ms={wait_ms}): must be at least 1 and 0"
        )
    batching = Batching(function, max_size, wait_ms / 1000, stack)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def one(self: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = batching.merge([(args, kwargs)])
            return batching.split(await function(self, *args, **kwargs), 1)[0]

    else:

        @functools.wraps(function)
        def one(self: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = batching.merge([(args, kwargs)])
            return batching.split(function(self, *args, **kwargs), 1)[0]

    one.__remotely_batching__ = batching  # type: ignore[attr-defined]
    return one


def batched_methods(cls: type) -> dict[str, Batching]:
    """Return the batched methods of a class and its bases."""
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
    import numpy as np  # noqa: PLC0415 - needed only to stack arrays

    return np.stack([np.asarray(item) for item in items])
